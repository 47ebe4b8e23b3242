"""`rtcontrol bench batch`, `heads`, `prefix`, `memory`: a few rounds of each."""

from __future__ import annotations

import pytest

from rtcontrol.bench import heads
from rtcontrol.bench.batch import SIZES, bench_batch
from rtcontrol.bench.everything import BenchOptions, batch, memory
from rtcontrol.bench.heads import VALUES, bench_heads, tries
from rtcontrol.bench.prefix import bench_prefix, empty_cache
from rtcontrol.bench.situations import schemas, situations
from rtcontrol.bench.tables import tables
from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.decode.plan import ROOT
from rtcontrol.models.runners.prefix_store import cache_folder

SPEC = DeciderSpec("lander", tuple(schemas("lander")["bundled"]))


def test_batches_are_measured_beside_one_alone_the_bare_forward_and_one_sessions_situations() -> None:
    rounds: list[None] = []
    found = bench_batch(SPEC, situations("lander", 60), (1, 4), 2, lambda: rounds.append(None))
    assert len(rounds) == 2 and found["threads"] == 1
    for way in ("sessions", "situations", "bare"):
        assert set(found["ms"][way]) == {"1", "4"} and len(found["raw_ms"][way]["4"]) == 2
    # A session's tick: what changed in the prompt, and the first tree.
    assert 5 < found["tokens_each"] < 40


def test_the_batch_table_labels_the_papers_figures_as_its_authors() -> None:
    document = batch(BenchOptions(), 2, lambda done, total: None, SIZES[:2])
    (table,) = tables(document)
    assert [row[0] for row in table.rows] == ["1", "2"]
    assert [row[table.columns.index("the paper's efficiency, %")] for row in table.rows] == ["100.0", "96.5"]
    assert "measured by its authors on their GPUs" in table.note


def test_heads_share_the_same_values_and_all_ways_read_the_same_off_them(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Checkpoint.open("lander").tokenizer
    for count in range(1, 9):
        found = tries(tokenizer, count)
        values = [value[0] for trie in found for value in trie.leaves.values()]
        assert len(found) == count and len(set(values)) == len(values) == VALUES
        assert len({trie.token(ROOT) for trie in found}) == count
    monkeypatch.setattr(heads, "WARM_UP", 1)
    measured = bench_heads(SPEC, situations("lander", 12), 2, lambda: None)
    assert measured["agreement"] == 1.0
    assert list(measured["nodes"]) == [str(n) for n in range(1, 9)] == list(measured["ms"]["packed"])


def test_prefixes_are_computed_restored_and_cached_in_a_folder_of_their_own() -> None:
    before = cache_folder()
    with empty_cache() as folder:
        assert cache_folder() == folder != before
    assert cache_folder() == before and not folder.exists()
    found = bench_prefix(SPEC, situations("lander", 12), 2, lambda: None)
    p50 = {name: figures["p50"] for name, figures in found["ms"].items()}
    assert p50["cached"] < p50["nothing_cached"]
    assert p50["first_disk"] > p50["open_disk"] > 0 < p50["open_computed"] < p50["first_computed"]
    assert cache_folder() == before


def test_memory_is_that_of_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RTCONTROL_DATA", raising=False)
    document = memory(BenchOptions(), 2, lambda done, total: None, ("bundled",))
    (table,) = tables(document)
    assert "each further session" in [row[0] for row in table.rows]
    (case,) = document["result"]["cases"].values()
    mib = case["mib"]
    assert 0 < mib["bare python"]["rss"] < mib["python and libraries"]["rss"] / 4 < mib["all"]["rss"]
    assert mib["model and first session"]["uss"] > mib["each further session"]["uss"]
    assert case["vocabulary"] == 7063 and case["open_s"]["further"] > 0
