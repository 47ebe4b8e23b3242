"""`rtcontrol bench serving`, `chat`, `speculative`: a few decisions each, of tiny random models; vLLM's part where it
is."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from commands import call, refused

from rtcontrol.bench import chat as chat_bench
from rtcontrol.bench import everything, speculative
from rtcontrol.bench.chat import bench_agent, bench_chat, random_chat
from rtcontrol.bench.head_texts import HeadTexts
from rtcontrol.bench.serving_case import BASELINES, OURS, counts_of, quickest
from rtcontrol.bench.shapes import CHANGING, CONSTANT, HEAD_TOKENS, VOCABULARY, eight_token_heads
from rtcontrol.bench.situations import schemas, situations
from rtcontrol.bench.speculative import VALUE, WAYS, bench_speculative
from rtcontrol.bench.tables import tables
from rtcontrol.models.call import Call
from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.models.decode.protocol import PassCost
from rtcontrol.models.interpreters import VLLM
from rtcontrol.models.runners.torch_runner import TorchRunner
from rtcontrol.models.train.scratch import ModelShape
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
    found = bench_chat(None, (), 2, None, lambda done, of: None)
    for case in found["cases"].values():
        passes = case["passes"]
        assert case["same_call"] == 1.0 and case["info"]["model"] == "random weights"
        assert (
            2 * passes["sequential"] <= passes["skip_forced"] and 4 * passes["sequential"] <= passes["token_by_token"]
        )


def test_drafts_save_passes_by_their_depth_and_change_no_call() -> None:
    steps: list[tuple[int, int]] = []
    found = bench_speculative(12, None, lambda *step: steps.append(step), TINY, TINY)
    counts = found["counts"]
    assert steps[-1] == (12 + speculative.WARM_UP,) * 2
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
