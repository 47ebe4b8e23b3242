"""`rtcontrol bench decide`: all ways decide alike, the floor holds what the call's own walk needs and no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import call, refused

from rtcontrol.bench import decide
from rtcontrol.bench.json_writer import JsonWriter
from rtcontrol.bench.situations import AGENTS, TICKS, schemas, situations
from rtcontrol.bench.timing import Stopwatch, like, tail
from rtcontrol.cli.figures import Shown, show
from rtcontrol.models.decider import DeciderSpec

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
    assert "No model 'nope'" in refused(capsys, "bench", "memory", "--model", "nope")
