"""`rtcontrol bench decide` and what is measured beside it: all ways decide alike."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import call, refused
from hypothesis import example, given
from hypothesis import strategies as st

from rtcontrol.bench import decide
from rtcontrol.bench.dtype import TOLERANCE, WARM_UP, compare, compare_engines
from rtcontrol.bench.dtype import decide as decide_in
from rtcontrol.bench.json_writer import HFJson, JsonWriter
from rtcontrol.bench.situations import AGENTS, TICKS, Situation, schemas, situations
from rtcontrol.bench.tables import tables
from rtcontrol.bench.timing import Stopwatch, like, tail
from rtcontrol.cli.figures import Shown, show
from rtcontrol.evaluation.json_calls import forced, legal, matcher
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.models.runners.registry import ENGINES, installed
from rtcontrol.models.schema.tool_schema import tool_schemas
from tests.models.small import TOLD, build, build_checkpoint, law, qwen, tool, tool_lists

CASES = [
    ("lander", "bundled", None, {"token_by_token": 2, "json": 22}),
    ("lander", "long", "land_now", {"token_by_token": 8, "json": 53}),
    ("paddle", "bundled", None, {"token_by_token": 2, "json": 15}),
]


@pytest.mark.parametrize(("agent", "tools", "function", "expected"), CASES)
def test_all_ways_decide_alike_and_the_floor_holds_the_calls_own_nodes(
    agent: str, tools: str, function: str | None, expected: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide, "WARM_UP", 1)  # its times are not judged here
    steps: list[int] = []
    spec = DeciderSpec(agent, tuple(schemas(agent)[tools]))
    found = decide.bench_tools(spec, situations(agent, 12)[-5:], 3, steps.append, function)
    assert sum(steps) == 5 and found["agreement"] == 1.0
    tokens = found["tokens"]
    # One node at a time evaluates nothing for nothing, where all heads are read.
    assert (
        tokens["uncached_prompt_tokens"] < tokens["floor_tokens"] == tokens["least_tokens"] <= tokens["packed_tokens"]
    )
    assert tokens["token_by_token_passes"] == expected["token_by_token"]
    assert tokens["json_passes"] == tokens["hf_json_passes"] == expected["json"] > tokens["json_skip_forced_passes"]
    assert {"one_pass_over_bare_forward", "json_over_one_pass", "hf_json_over_one_pass"} <= set(found["ratios"])
    assert len(found["raw_ms"]["one_pass"]) == found["decisions"] == 4 and len(found["raw_ms"]["json"]) == 1
    assert found["threads"] == 1  # a small model's, whatever the process has


def test_situations_are_each_agents_own_and_told_in_more_than_one_way() -> None:
    told = {agent: situations(agent, 6 * TICKS) for agent in AGENTS}
    for agent, found in told.items():
        assert len({one.instruction for one in found}) >= 4
        assert found == situations(agent, 6 * TICKS)
        assert len({one.observation.split()[0] for one in found}) == 1
        others = {one.instruction for name in AGENTS if name != agent for one in told[name]}
        assert not others & {one.instruction for one in found}


def test_json_in_our_own_engine_writes_the_call_and_evaluates_forced_tokens_with_the_next_choice() -> None:
    decider = DeciderSpec("lander", tuple(schemas("lander")["bundled"])).build()
    prefix = decider.template.prefix_ids(decider.plan.tools)
    plain, skipping = (
        JsonWriter(decider.runner, decider.tokenizer, decider.plan.tools, prefix, skip) for skip in (False, True)
    )
    for one in situations("lander", 3):
        decided = decider.decide(one.observation, one.instruction).call
        assert decided is not None
        prompt = [*prefix, *decider.template.suffix_ids(one.instruction, one.observation)]
        assert plain.write(prompt, decided) == skipping.write(prompt, decided) == decided
        size = len(decider.tokenizer.encode(json.dumps(decided.to_dict())))
        assert plain.passes == plain.nodes == size
        assert skipping.passes < size / 3
        assert size / 2 < skipping.nodes <= size  # all but what follows the last choice


def test_everything_runs_under_the_runners_threads_and_the_process_gets_its_own_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        runner = DeciderSpec("lander", tuple(schemas("lander")["bundled"])).build().runner
        with like(runner) as threads:  # type: ignore[arg-type]
            assert threads == torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_stall_of_the_machine_is_not_the_decisions_own_compute() -> None:
    import time

    _, took = Stopwatch(torch.device("cpu")).time(lambda: time.sleep(0.05))
    assert took.wall_ms >= 50 > 25 > took.cpu_ms
    found = tail([1.0] * 99 + [7.0], [1.0] * 100)
    assert (found["wall"]["above_5x"], found["cpu"]["above_5x"]) == (1, 0)
    assert found["wall"]["max_over_p50"] == pytest.approx(7.0, rel=0.01)


def test_the_command_shows_every_way_and_the_worst_decisions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(decide, "WARM_UP", 1)
    out = tmp_path / "decide.json"
    assert call("bench", "decide", "--model", "paddle", "--decisions", "20", "--json", str(out)) == 0
    said = capsys.readouterr().out
    for words in ("bare forward", "JSON call in this engine", "Hugging Face", "simthinkd", "worst decision"):
        assert words in said
    document = json.loads(out.read_text())
    assert document["agent"] == "paddle" and document["machine"]["cores"]
    found = document["schemas"]["bundled"]
    assert found["agreement"] == 1.0 and (found["decisions"], found["tail"]["one_pass"]["decisions"]) == (20, 66)


def test_an_unknown_agent_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Choose lander" in refused(capsys, "bench", "heads", "--agent", "submarine")


def test_each_table_is_shown_once_when_it_is_ready_and_progress_goes_to_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown: list[str] = []
    took = dict.fromkeys(("p50", "p99", "p99_9", "max"), 1.5)

    def run(step: Shown) -> dict[str, Any]:
        document = {
            "bench": "wire",
            "model": "lander",
            "ms": {"echo": took},
            "bytes": {},
            "observation_bytes": 1,
            "trips": 1,
        }
        step(1, 2)
        assert "measuring: 50 %" in capsys.readouterr().err
        step.ready(document)
        shown.append(capsys.readouterr().out)
        return document

    show(run, None)
    assert "1.500" in shown[0] and capsys.readouterr().out == ""


def test_memory_says_in_one_line_that_there_is_no_such_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert "There is no folder 'nope' in" in refused(capsys, "bench", "memory", "--model", "nope")


ENDS = ("at last", "by hand", "for now")
WAYS = ("token_by_token", "together")
# Values that part only many tokens behind their beginning, which drawn ones seldom do: each pass stands on all before.
DEEP = [tool(name, v=[f"to the far end of the left side of a road {end}" for end in ENDS]) for name in ("go", "stop")]


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_bf16_decides_like_itself_token_by_token_and_together_wherever_no_choice_is_a_near_tie(
    kind: str, tmp_path: Path
) -> None:
    folder, total = build_checkpoint(tmp_path / kind, kind, seed=5), Counter[str]()

    @law(8)
    @example(tools=DEEP, told=[("a bed", "cab"), ("", "faced é")])
    @given(tools=tool_lists(most=3, parameters=3), told=st.lists(TOLD, min_size=2, max_size=4))
    def holds(tools: Any, told: list[tuple[str, str]]) -> None:
        asked = [Situation(instruction, seen) for seen, instruction in told]
        found = compare(DeciderSpec(str(folder), tuple(tools)), asked, together=3)
        assert not any(found["differ_without_near_tie"][way] for way in WAYS)
        assert found["largest_difference"] < TOLERANCE
        total.update({"decisions": found["decisions"], "near-ties": found["near_ties"]})
        total.update({f"equal to {way}": count for way, count in found["equal"].items()})

    holds()
    print(f"{kind}: {dict(total)}")
    assert total["near-ties"] < total["decisions"]  # else the law says nothing


# Between two levels of its own engines the lander is nearly undecided at times, so that the rule for those is tried.
@pytest.mark.parametrize(("model", "tools", "count"), [("lander", "bundled", 40), ("driver", "long", 16)])
def test_bundled_model_in_bf16_holds_the_law_and_mostly_calls_what_fp32_calls(
    model: str, tools: str, count: int
) -> None:
    spec = DeciderSpec(model, tuple(schemas(model)[tools]))
    found = compare(spec, situations(model, 2 * count)[count:])
    print(tools, found["equal"], found["near_ties"], found["largest_difference"])
    assert not any(found["differ_without_near_tie"][way] for way in WAYS)
    assert found["largest_difference"] < TOLERANCE
    assert found["equal"]["fp32"] >= 0.9 * count
    assert found["near_ties"] < count / 2 and (found["near_ties"] > 0 or tools == "long")
    assert found["info"]["dtype"] == "bf16"


def test_a_margin_is_the_smallest_lead_on_the_way_to_the_call(tmp_path: Path) -> None:
    folder = build_checkpoint(tmp_path / "m", seed=5)
    tools = [{"name": n, "parameters": {"properties": {"v": {"enum": ["left", "right"]}}}} for n in ("go", "stop")]
    decider = build(folder, tools)
    one = decide_in(decider, Situation("alpha", "beta"))
    deciding = decider.begin("beta", "alpha").deciding
    assert deciding.work is not None
    confidence = decider.decide("beta", "alpha").confidence
    # Of two choices the probability tells the margin: p = 1 / (1 + exp(-lead)), and the largest score is above a lead.
    assert 0 < one.margin < 2 and min(confidence.values()) > 0.5
    assert (one.margin > TOLERANCE) == (decide_in(decider, Situation("alpha", "beta")).margin > TOLERANCE)


SPEC = DeciderSpec("lander", tuple(schemas("lander")["bundled"]))


def test_engines_give_the_same_calls_in_as_many_passes() -> None:
    found = compare_engines(SPEC, ("torch", "transformers"), situations("lander", WARM_UP + 12))
    assert (found["decisions"], found["tolerance"]) == (12, 1e-4)
    ours, theirs = found["engines"].values()
    assert ours["equal"] == 12 and theirs["equal"] + found["near_ties"] >= 12
    assert theirs["differ_without_near_tie"] == 0
    assert ours["forward_passes"] == theirs["forward_passes"] >= 1
    assert len(theirs["raw_ms"]) == 12
    (table,) = tables({"bench": "engines", "model": "lander", "result": found})
    assert f"torch {torch.__version__} in fp32 on cpu; transformers" in table.note
    absent = [name for name in ENGINES if name not in installed()]
    assert [row[0] for row in table.rows] == ["torch", "transformers", *absent]
    assert all("not installed" in row[-1] for row in table.rows[2:])
    assert table.beside(table, "GPU").rows[0][-1] == f"{ours['ms']['p50']:.2f}", "columns of a GPU are by engine"


def test_another_call_that_was_no_near_tie_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = STDecider.decide

    def other(self: STDecider, *told: Any) -> Any:
        made = plain(self, *told)
        if self.spec.engine == "transformers":
            object.__setattr__(made, "call", Call("land_now", {}))
        return made

    monkeypatch.setattr(STDecider, "decide", other)
    found = compare_engines(SPEC, ("torch", "transformers"), situations("lander", WARM_UP + 3))
    assert found["engines"]["torch"]["differ_without_near_tie"] == 0
    assert found["engines"]["transformers"]["differ_without_near_tie"] == 3 - found["near_ties"]


def test_it_goes_on_behind_the_cached_prompt_and_asks_for_nothing_that_will_be_gone(tmp_path: Path) -> None:
    folder = build_checkpoint(tmp_path / "m")
    tokenizer = Checkpoint.open(str(folder)).tokenizer
    baseline = HFJson(folder, tokenizer, torch.float32, torch.device("cpu"))
    prefix, suffix = tokenizer.encode("go turn stop left right fast slow"), tokenizer.encode("red and green")
    call, sizes = Call("go", {"a": "left", "b": 3}), list[int]()
    model: Any = baseline._model
    model.get_input_embeddings().register_forward_pre_hook(lambda _, given: sizes.append(given[0].shape[1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        baseline.warm(prefix)
        for _ in range(2):
            sizes.clear()
            assert baseline.generate([*prefix, *suffix], call) == call
            assert sizes == [len(suffix)] + [1] * (len(baseline.json_ids(call)) - 1)


def test_certain_text_is_forced_up_to_the_next_choice(data: Path) -> None:
    tokenizer = qwen(data)
    tools = tool_schemas([tool("set_speed", speed=["slow", "very fast"], hard={"type": "boolean"}), tool("stop")])
    grammar, written = matcher(tokenizer, tools, tokenizer.size), list[int]()
    text = json.dumps({"name": "set_speed", "arguments": {"speed": "very fast", "hard": True}})
    choices = []
    while True:
        written += forced(grammar, tokenizer)
        if grammar.is_accepting():
            break
        (token, *_) = tokenizer.encode(text.removeprefix(tokenizer.decode(written)))
        pieces = sorted((tokenizer.decode([int(i)]) for i in np.flatnonzero(legal(grammar))), key=len)
        # What is left to choose is text: not whether a space and a quotation mark are one token or two.
        assert not all(map(pieces[-1].startswith, pieces))
        choices.append(tokenizer.decode([token]))
        grammar.consume_token(token)
        written.append(token)
    assert tokenizer.decode(written) == text
    assert choices == ["set", "very", " true"]


def test_the_cost_of_recording_is_measured_beside_the_same_loop_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, options = tmp_path / "cost.json", ("--seconds", "0.5", "--rounds", "1", "--model", "expert")
    assert call("bench", "record", *options, "--host", "inprocess", "--json", str(out)) == 0
    assert "MB an hour" in capsys.readouterr().out
    slow, fast = json.loads(out.read_text())["rates"]
    for one in (slow, fast):
        assert one["ticks"] >= 4 and one["lost"] == 0 and one["write_ms"]["p50"] > 0
        assert set(one["latency_ms"]) == {"without", "with"}
        assert all(ms["p50"] is not None for ms in one["latency_ms"].values())
    # Schemas and header, a few kilobytes, are written once an hour and not once a second.
    assert 1e6 < slow["bytes_an_hour"] < 60e6


def test_a_model_for_other_tools_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "trained on other tools" in refused(capsys, "bench", "record", "--model", "paddle")
