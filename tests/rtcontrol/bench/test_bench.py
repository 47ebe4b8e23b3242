"""`rtcontrol bench`: methods are compared under equal conditions, and clients' calls are counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import call, refused

from rtcontrol.bench import decide
from rtcontrol.bench.decide import JsonWriter
from rtcontrol.bench.situations import situations, tool_lists
from rtcontrol.models.decider import DeciderSpec

CASES = [
    ("lander", "bundled", {"token_by_token": 2, "json": 22}),
    ("paddle", "bundled", {"token_by_token": 2, "json": 15}),
]


@pytest.mark.parametrize(("agent", "tools", "expected"), CASES)
def test_all_methods_make_the_same_decisions(
    agent: str, tools: str, expected: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide, "WARM_UP", 1)  # its times are not judged here
    steps: list[None] = []
    spec = DeciderSpec(agent, tuple(tool_lists(agent)[tools]))
    result = decide.bench_tools(spec, situations(agent, 12)[-5:], lambda: steps.append(None))
    assert len(steps) == 5 and result["agreement"] == 1.0 and result["decisions"] == 4
    tokens = result["tokens"]
    # One node at a time evaluates nothing in vain, where all heads are read.
    assert tokens["floor_tokens"] == tokens["least_tokens"] <= tokens["packed_tokens"]
    assert tokens["token_by_token_passes"] == expected["token_by_token"]
    assert tokens["json_passes"] == expected["json"] > tokens["json_skip_forced_passes"]
    assert result["threads"] == 1  # a small model's, whatever the process has


def test_json_writes_the_call_and_skips_forced_tokens() -> None:
    decider = DeciderSpec("lander", tuple(tool_lists("lander")["bundled"])).build()
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


def test_command_shows_and_saves_every_method(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(decide, "WARM_UP", 1)
    out = tmp_path / "decide.json"
    assert (
        call("bench", "decide", "--set", "bench.model=paddle", "--set", "bench.decisions=20", "--json", str(out)) == 0
    )
    shown = capsys.readouterr()
    for words in ("bare forward", "one pass", "json", "json skip forced"):
        assert words in shown.out
    assert "measuring: 50 %" in shown.err
    document = json.loads(out.read_text())
    assert document["agent"] == "paddle" and document["machine"]["cores"] and document["measured"]
    assert document["schemas"]["bundled"]["agreement"] == 1.0
    assert "There is no folder 'nope' in" in refused(capsys, "bench", "decide", "--set", "bench.model=nope")
    assert "Choose auto, fp32" in refused(capsys, "bench", "decide", "--set", "bench.dtype=int3")
    assert "has no vllm" in refused(capsys, "bench", "serving")


CLIENTS = ("--set", "bench.clients=2", "--set", "bench.hz=10", "--set", "bench.seconds=1")


@pytest.mark.integration
def test_clients_of_a_server_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "load.json"
    assert call("bench", "load", *CLIENTS, "--json", str(out)) == 0
    assert "2 at 10 Hz, noop, 1 s" in capsys.readouterr().out
    (case,) = json.loads(out.read_text())["cases"]
    assert case["expected"] == 20 and case["calls"] + case["missing"] >= 10
    assert case["way_ms"]["p50"] > 0


@pytest.mark.integration
@pytest.mark.slow
def test_every_transport_is_timed_next_to_a_bare_echo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "wire.json"
    assert call("bench", "wire", "--set", "bench.trips=100", "--json", str(out)) == 0
    assert "above the echo" in capsys.readouterr().out
    document = json.loads(out.read_text())
    ways = {"echo", "null_zmq", "null_ws", "model_zmq", "model_ws"}
    assert set(document["ms"]) == ways and document["trips"] == 100
