"""`rtcontrol bench` against baselines: what they decide, over the wire, together, with other tools and sizes."""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from commands import call, refused

from rtcontrol.agents import Tools
from rtcontrol.bench import chat as chat_bench
from rtcontrol.bench import everything, heads, sizes, speculative, yard
from rtcontrol.bench.batch import SIZES, bench_batch
from rtcontrol.bench.chat import bench_agent, bench_chat, random_chat
from rtcontrol.bench.everything import BenchOptions, batch, memory
from rtcontrol.bench.head_texts import HeadTexts
from rtcontrol.bench.heads import VALUES, bench_heads, tries
from rtcontrol.bench.load import LoadClient
from rtcontrol.bench.other_tools import FIELDS, NEVER_TAUGHT, drawn, flown, renamed, undressed
from rtcontrol.bench.other_tools import WAYS as DRESSED_WAYS
from rtcontrol.bench.page import page
from rtcontrol.bench.prefix import bench_prefix, empty_cache
from rtcontrol.bench.serving import BASELINES, OURS, counts_of, quickest
from rtcontrol.bench.shapes import CHANGING, CONSTANT, HEAD_TOKENS, VOCABULARY, eight_token_heads
from rtcontrol.bench.situations import schemas, situations
from rtcontrol.bench.speculative import VALUE, WAYS, bench_speculative
from rtcontrol.bench.tables import tables
from rtcontrol.bench.train_groups import PROMPTS, random_groups
from rtcontrol.bench.watch import compare
from rtcontrol.bench.wire import NAMED, OVER_DECIDE, QUESTIONS, STATED, free_port
from rtcontrol.envs import registry
from rtcontrol.envs.evaluate import cases
from rtcontrol.gateway.decisions import DecisionsRequest
from rtcontrol.gateway.systemone import SystemOneRequest
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.models.decode.plan import ROOT as TRIE_ROOT
from rtcontrol.models.decode.protocol import PassCost
from rtcontrol.models.errors import UserError
from rtcontrol.models.interpreters import VLLM
from rtcontrol.models.runners.prefix_store import cache_folder
from rtcontrol.models.runners.torch_runner import TorchRunner
from rtcontrol.models.train.finetune.dataset import GroupCollator
from rtcontrol.models.train.scratch import ModelShape
from rtcontrol.telemetry.figure_table import markdown
from rtcontrol.training.base_worlds import RECIPES
from rtcontrol.training.fit_run import name_things
from rtcontrol.training.tool_randomization import TAUGHT, plain
from rtcontrol_client.wire.messages import CallMessage, ErrorMessage
from tests.helpers.processes import ROOT
from tests.models.chat.families import checkpoint

TINY = ModelShape(hidden=24, layers=1, heads=2, kv_heads=1, intermediate=32)
PYTHON = os.environ.get(VLLM)


@pytest.mark.parametrize(("early", "nodes"), [(False, 4 * HEAD_TOKENS), (True, 4)])
def test_four_heads_of_eight_tokens_are_all_evaluated_or_forced_from_the_first_on(
    early: bool, nodes: int, tmp_path: Path
) -> None:
    made = eight_token_heads(tmp_path / "m", 3, early, TINY)
    decider = DeciderSpec(str(made.folder), tuple(made.tools)).build()
    assert VOCABULARY - 64 < decider.runner.caps.vocabulary <= VOCABULARY
    prompts = [
        [*decider.template.prefix_ids(decider.plan.tools), *decider.template.suffix_ids(s.instruction, s.observation)]
        for s in made.asked
    ]
    assert {len(p) for p in prompts} == {CONSTANT + CHANGING}
    assert prompts[0][:CONSTANT] == prompts[1][:CONSTANT]
    assert sum(a == b for a, b in zip(*(p[CONSTANT:] for p in prompts[:2]), strict=True)) < 4
    for one in made.asked:
        found = decider.decide(one.observation, one.instruction)
        assert found.forward_passes == 1 and found.call is not None
        values = [text for _, text in decider.plan.head_values(found.call)]
        assert [len(decider.tokenizer.encode(str(text))) for text in values] == [HEAD_TOKENS] * 4
    assert found.tokens == CHANGING + nodes


def test_a_case_names_what_the_interpreter_lacks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VLLM, raising=False)
    assert "has no vllm" in refused(capsys, "bench", "serving", "--python", sys.executable)
    assert "no interpreter" in refused(capsys, "bench", "serving", "--python", str(tmp_path / "none"))
    monkeypatch.setenv(VLLM, sys.executable)
    assert "Choose late, early, lander" in refused(capsys, "bench", "serving", "submarine")
    assert "Choose xgrammar, guidance" in refused(capsys, "bench", "serving", "--backend", "outlines")


def test_what_cannot_be_measured_here_keeps_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VLLM, sys.executable)
    monkeypatch.delenv("RTCONTROL_DATA", raising=False)
    kept = {name: tmp_path / "figures" / f"{name}.json" for name in ("serving", "chat")}
    (tmp_path / "figures").mkdir()
    figures = Path(everything.__file__).parents[2] / "docs" / "benchmarks"
    for path in kept.values():
        path.write_text((figures / "heads.json").read_text())
    assert call("bench", "all", "serving", "chat", "--again", "--quick", "--out", str(tmp_path / "figures")) == 0
    said = capsys.readouterr().out
    assert "serving: stays as it is." in said and "has no vllm" in said and "chat: stays as it is." in said
    assert all(path.exists() for path in kept.values())


@pytest.fixture
def passes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a pass costs is not measured: how many there are would depend on what else the machine does."""
    monkeypatch.setattr(TorchRunner, "cost", lambda self, handle: PassCost(1.0, 0.0))


@pytest.mark.usefixtures("passes_count")
def test_a_chat_models_ways_give_one_call_in_fewer_passes(tmp_path: Path) -> None:
    folder, tools = checkpoint(tmp_path, "hermes"), schemas("driver")["bundled"]
    found = bench_agent(str(folder), tools, situations("driver", chat_bench.WARM_UP + 3))
    passes = found["passes"]
    assert found["decisions"] == 3 and found["same_call"] == 1.0
    assert passes["sequential"] <= passes["skip_forced"] / 2 <= passes["token_by_token"] / 4
    assert passes["parallel"] < passes["token_by_token"]
    (table,) = tables({"bench": "chat", "cases": {"driver": found}})
    assert [row[0].partition(": ")[0] for row in table.rows] == ["driver"] * 4


def test_a_model_with_heads_is_no_chat_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert "bench decide" in refused(capsys, "bench", "chat", "--model", "lander")


@pytest.mark.usefixtures("passes_count")
def test_qwens_tokenizer_keeps_the_passes_within_the_targets(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_bench, "random_chat", lambda folder, told: random_chat(folder, told, TINY))
    found = bench_chat(None, ("lander", "driver"), 2, None, lambda done, of: None)
    for case in found["cases"].values():
        passes = case["passes"]
        assert case["same_call"] == 1.0 and case["info"]["model"] == "random weights"
        assert (
            2 * passes["sequential"] <= passes["skip_forced"] and 4 * passes["sequential"] <= passes["token_by_token"]
        )


def test_drafts_save_passes_by_their_depth_and_change_no_call() -> None:
    steps: list[tuple[int, int]] = []
    found = bench_speculative(4, None, lambda *step: steps.append(step), TINY, TINY)
    counts = found["counts"]
    assert steps[-1] == (4 + speculative.WARM_UP,) * 2
    assert counts["none"]["passes"] == VALUE + 1 and counts["none"]["guessed"] == 0
    passes = [counts[way]["passes"] for way in WAYS if way.startswith("draft")]
    assert passes == sorted(passes, reverse=True) and passes[0] < counts["none"]["passes"]
    assert counts["prompt"]["passes"] < counts["none"]["passes"] / 2
    for way in WAYS:  # what is guessed wrong is all that is evaluated in vain
        one = counts[way]
        assert one["tokens"] - counts["none"]["tokens"] == pytest.approx(one["guessed"] - one["right"], abs=0.02)
    (table,) = tables({"bench": "speculative", "result": found})
    assert len(table.rows) == len(WAYS) == 6


def test_a_draft_of_a_given_depth_guesses_so_many_tokens_a_pass(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(speculative, "WRONG", 0.0)
    monkeypatch.setattr(speculative, "WARM_UP", 0)
    counts = bench_speculative(2, None, lambda *step: None, TINY, TINY)["counts"]
    # A pass carries a certain token and so many guesses; the first begins with the head, of which all are guesses.
    for depth in speculative.DEPTHS:
        one = counts[f"draft_{depth}"]
        assert one["right"] == one["guessed"] and one["passes"] == -(-(VALUE + 1) // (depth + 1))
    assert counts["draft_whole"]["passes"] == 1


def test_texts_of_heads_become_typed_calls_and_what_is_none_is_none() -> None:
    tool = {"name": "go", "parameters": {"properties": {"n": {"enum": [1, 2]}, "on": {"type": "boolean"}}}}
    decider: STDecider = DeciderSpec("lander", (tool, {"name": "stop"})).build()
    texts = HeadTexts(decider.plan, str)
    assert texts.call(["go", "2", "true"]) == Call("go", {"n": 2, "on": True})
    assert texts.call(["go", "", "false"]) == Call("go", {"on": False})
    assert texts.call(["stop", "2", "true"]) == Call("stop", {})
    assert texts.call(["go", "3", "true"]) is None and texts.call(["fly", "", ""]) is None
    ids = HeadTexts(decider.plan, lambda text: tuple(decider.tokenizer.encode(text)))
    assert ids.call([tuple(decider.tokenizer.encode(t)) for t in ("go", "1", "true")]) == Call(
        "go", {"n": 1, "on": True}
    )


def test_of_several_numbers_of_threads_the_quickest_is_taken_and_a_given_one_is_not_tried() -> None:
    asked = situations("lander", 3)
    tried: list[float] = []

    def decide(seconds: float, one: Any) -> None:
        tried.append(seconds)
        time.sleep(seconds)

    assert quickest([0.02, 0.001, 0.03], decide, asked) == 0.001
    assert tried == [0.02, 0.001, 0.03] * 3
    assert quickest([0.5], decide, asked) == 0.5 and 0.5 not in tried
    assert counts_of(3) == [3] and counts_of(None)[0] == 1


@pytest.mark.slow
@pytest.mark.timeout(580)
@pytest.mark.skipif(not PYTHON, reason=f"{VLLM} names no interpreter that has vLLM")
@pytest.mark.parametrize("case", ["late", "lander"])
def test_vllm_decides_the_same_prompts_by_the_same_weights(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.helpers.processes import ROOT

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    out = tmp_path / "serving.json"
    assert call("bench", "serving", case, "--dtype", "fp32", "--decisions", "12", "--json", str(out)) == 0
    found: dict[str, Any] = json.loads(out.read_text())["cases"][f"{case}, fp32"]
    counts = found["counts"]
    print(found["ms"], counts)
    assert set(found["ms"]) == {OURS, *BASELINES} and found["decisions"] == 12
    assert counts["one_pass_passes"] == 1 and counts["vllm_json_legal"] == 1.0
    if case == "lander":
        assert counts["simpletool_equal"] >= 0.9 and counts["simpletool_best_equal"] >= 0.9
        assert counts["simpletool_tokens"] == counts["simpletool_best_tokens"] == 2 * found["heads"]
    else:
        assert found["prompt_tokens"] == CONSTANT + CHANGING and found["heads"] == 4
        assert counts["simpletool_tokens"] == counts["simpletool_best_tokens"] == 4 * HEAD_TOKENS
        assert counts["simpletool_best_steps"] == HEAD_TOKENS
    said = capsys.readouterr().out
    assert "SimpleTool's way" in said and "grammar" in said


def test_a_tokenizer_of_somebody_elses_makes_a_chat_checkpoint(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "known", "hermes")
    made = random_chat(tmp_path / "made", folder / "tokenizer.json", TINY)
    decider = DeciderSpec(str(made), tuple(schemas("lander")["bundled"])).build()
    assert decider.decide("x", "y").call is not None and decider.template.profile == "chat"


@pytest.mark.parametrize("way", DRESSED_WAYS)
@pytest.mark.parametrize("env", RECIPES)
def test_a_call_under_other_names_is_the_worlds_own_again(env: str, way: str) -> None:
    tools, skill, rng = RECIPES[env].agent.tools.schemas, registry.skill(env), Random(0)
    assert skill is not None
    for number in range(3):
        made = drawn(tools, way, number)
        assert len(made.tools) == len(tools) + DRESSED_WAYS[way].more + 8 * DRESSED_WAYS[way].strangers
        for _ in range(40):
            call = skill.any_call(rng)
            assert undressed(made, made.call(call)) == call
        own = {name for name, _ in made.names.values()}
        for tool in made.tools:
            if tool.name not in own:
                assert undressed(made, Call(tool.name)) is None
    assert DRESSED_WAYS[way].synonyms == 0.0 or {tool.name for tool in made.tools} - {tool.name for tool in tools}


@pytest.mark.parametrize("env", RECIPES)
def test_what_is_seen_is_the_same_under_other_names_of_its_fields(env: str) -> None:
    skill = registry.skill(env)
    assert skill is not None
    seen = next(RECIPES[env].demonstrations(0, 1)).observation
    other = renamed(env, seen)
    assert not {*FIELDS[env]} & {*other.split()}
    assert [word for word in other.split() if word not in FIELDS[env].values()] == [
        word for word in seen.split() if word not in FIELDS[env]
    ]


def test_no_name_that_is_never_taught_is_drawn_by_a_recipe() -> None:
    for taught, kept in zip(TAUGHT, NEVER_TAUGHT, strict=True):
        assert taught.keys() == kept.keys()
        assert not {n for names in taught.values() for n in names} & {n for names in kept.values() for n in names}


def test_the_own_tools_score_as_they_do_anywhere() -> None:
    skill = registry.skill("paddle")
    assert skill is not None
    told = cases(skill.goals[4], [5000, 5001])
    assert flown("paddle", "paddle", plain(RECIPES["paddle"].agent.tools.schemas), told) == [1, 1]


def test_clients_of_a_server_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "load.json"
    assert call("bench", "load", "--clients", "2", "--hz", "10", "--seconds", "1", "--json", str(out)) == 0
    assert "2 at 10 Hz, noop, 1 s" in capsys.readouterr().out
    (case,) = json.loads(out.read_text())["cases"]
    assert case["expected"] == 20 and case["calls"] + case["missing"] >= 10
    assert case["way_ms"]["p50"] > 0 and len(case["raw_way_ms"]) == case["calls"] and case["http"] is None


def test_what_a_server_refuses_is_told_in_its_words() -> None:
    client = LoadClient(f"tcp://127.0.0.1:{free_port()}", 10.0)  # nobody is there
    with pytest.raises(UserError) as refused:
        client._take(ErrorMessage(code="busy", message="No room for 16 Hz.", remedy="Ask for less.", fatal=True))
    assert str(refused.value) == "The server refused a client: No room for 16 Hz. Ask for less."
    client.socket.close(0)


def test_ticks_of_a_server_that_falls_silent_are_missing() -> None:
    client = LoadClient(f"tcp://127.0.0.1:{free_port()}", 10.0)  # nobody is there

    def come(*ticks: int) -> float:
        for k in ticks:
            stamps = {"deadline_ns": 0, "t_server_ns": 0}
            client._take(CallMessage(session="x" * 20, tick=k, epoch=0, status="held", ttl_ms=0, **stamps))
        return time.monotonic()

    come(0, 1, 2)
    client.forget()
    assert client.missing(time.monotonic() + 3.05) == 29  # none came
    now = come(4, 5, 7)
    assert client.missing(now + 0.1) == 2  # 3 and 6
    assert client.missing(now + 2.05) == 2 + 19
    client.socket.close(0)


def test_both_decision_apis_ask_what_decide_is_asked() -> None:
    for asked in (
        DecisionsRequest(model="", input="", questions=QUESTIONS).typed_questions(),
        SystemOneRequest(state="", questions=NAMED).typed_questions(),
    ):
        assert tuple(one.question() for one in asked) == STATED


@pytest.mark.slow
def test_every_transport_is_timed_beside_a_bare_echo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "wire.json"
    assert call("bench", "wire", "--trips", "100", "--json", str(out)) == 0
    assert "above the echo" in " ".join(capsys.readouterr().out.split())
    document = json.loads(out.read_text())
    assert document["ms"]["echo"]["p50"] < document["ms"]["model_http"]["p50"]
    assert all(len(raw) >= 100 for raw in document["raw_ms"].values())
    assert set(document["raw_over_decide_ms"]) == set(OVER_DECIDE)
    for name, over in document["raw_over_decide_ms"].items():
        assert all(0 < rest < trip for rest, trip in zip(over, document["raw_ms"][name], strict=True))


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
        assert len({trie.token(TRIE_ROOT) for trie in found}) == count
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


def test_both_ways_are_flown_and_what_changes_is_told() -> None:
    done: list[None] = []
    found = compare(1.0, 1, "inprocess", "expert", lambda: done.append(None))
    assert len(done) == 2
    (unwatched,), (watched,) = found["runs"]["unwatched"], found["runs"]["watched"]
    assert unwatched["messages"] == 0 < watched["messages"]
    ratio = watched["p99"] / unwatched["p99"] - 1
    # Of one pair, the median is the run's own.
    assert found["median"]["change"]["p99"] == pytest.approx(ratio, abs=1e-3)
    assert found["together"]["watched"]["p99"] == pytest.approx(watched["p99"])


def test_a_run_that_fails_is_told_with_its_words() -> None:
    with pytest.raises(UserError, match="no such model"):
        compare(1.0, 1, "inprocess", "no such model", lambda: None)


def test_every_call_is_legal_and_all_tools_and_goals_occur() -> None:
    tools, rng = Tools(yard.TOOLS), random.Random(0)
    rows = list(itertools.islice(yard.Yard().rows(rng), 1_500))
    called = {tools.validate(row.call).name for row in rows if row.call is not None}
    assert called == {tool.name for tool in tools} and len(called) == 6
    assert {yard.kind_of(row.instruction) for row in rows} == set(yard.GOALS)
    assert sum("{" in said[0] for said in yard.GOALS.values()) == 4
    assert name_things(rows)


def test_the_right_call_changes_with_the_instruction_in_most_states() -> None:
    assert yard.changes(800) > 0.5


def test_an_instruction_of_another_world_is_refused() -> None:
    seen = yard.observe(random.Random(1))
    with pytest.raises(ValueError, match="no goal"):
        yard.right("land on the pad", seen)
    with pytest.raises(ValueError, match="nothing that is there"):
        yard.right("go to the purple one", seen)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "SHAPES", {"tiny": ModelShape(64, 2, 4, 2, 128)})


@pytest.mark.usefixtures("tiny")
def test_every_way_decides_alike_in_the_passes_that_it_needs() -> None:
    told: list[tuple[int, int]] = []
    found = everything.sizes(everything.BenchOptions(threads=1), ("tiny",), 5, lambda *done: told.append(done))
    result = found["shapes"]["tiny"]
    assert result["agreement"] == 1.0 and result["decisions"] == 5 and told[-1] == (15, 15)
    passes = {way: result["tokens"][f"{way}_passes"] for way in ("one_pass", "token_by_token", "json", "hf_json")}
    assert passes["one_pass"] == 1 and 8 <= passes["token_by_token"] <= 9 and passes["json"] == passes["hf_json"] > 40
    assert ("without_graphs" in result["ms"]) == torch.cuda.is_available()
    assert "| tiny | 0 M | " in markdown(tables(found))


def test_a_shape_that_is_none_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert "qwen2.5-0.5b, qwen2.5-1.5b" in refused(capsys, "bench", "sizes", "qwen")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, on which it is measured")
def test_without_a_gpu_and_without_a_name_nothing_is_measured_for_an_hour(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no GPU" in refused(capsys, "bench", "sizes")
    assert "no GPU" in str(everything.missing("sizes"))


def test_what_is_measured_on_a_gpu_alone_is_shown_with_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    assert "\nsizes: not measured." in page(folder)
    (folder / "sizes-gpu.json").write_bytes((ROOT / "docs" / "benchmarks" / "sizes-gpu.json").read_bytes())
    shown = page(folder)
    assert "| qwen2.5-3b | 2783 M | " in shown and "NVIDIA H100 80GB HBM3; " in shown
    assert "\nsizes: not measured." not in shown


def test_groups_share_nothing_and_have_eight_heads() -> None:
    groups = random_groups(8)
    assert all(len(g.heads) == 8 and PROMPTS[0] <= len(g.suffix) <= PROMPTS[1] for g in groups)
    assert len({g.suffix[:2] for g in groups}) == 8
    packed, apart = (GroupCollator((1,), layout).batch(groups) for layout in ("packed", "separate"))  # type: ignore[arg-type]
    assert sorted(packed.labels.tolist()) == sorted(apart.labels.tolist())
    # Every prompt stands there once, whichever its neighbours are.
    assert packed.tokens.numel() == 1 + sum(len(g.suffix) + sum(len(h.ids) for h in g.heads) for g in groups)
    assert apart.tokens.shape[0] == 64


def test_a_shape_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no shape 'qwen'" in refused(capsys, "bench", "train", "--shape", "qwen")
    assert "too few" in refused(capsys, "bench", "train", "--rows", "8")
