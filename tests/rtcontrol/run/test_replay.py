"""Tests of replays: recorded observations are decided again, and names in a record are never opened."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import EXPERT, call, refused, report_in

from rtcontrol.telemetry.record_reader import read_record
from rtcontrol.telemetry.recorder import Encoder
from tests.rtcontrol.hosts.standin_endpoint import standin

LOCKSTEP = (*EXPERT, "--clock", "lockstep", "--episodes", "1")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("recorded")
    assert call(*LOCKSTEP, "--duration", "3", "--out", str(out)) == 0
    return out / "record.mcap"


def replayed(tmp_path: Path, record: Path, *options: str) -> dict[str, Any]:
    path = tmp_path / "replay.json"
    assert call("replay", str(record), *options, "--json", str(path)) == 0
    told = json.loads(path.read_text())
    assert isinstance(told, dict)
    return told


def calls(record: Path) -> list[str]:
    return [event["call"] for event in read_record(record) if event.get("kind") == "call"]


@pytest.mark.parametrize("model", ["expert", "lander"])
def test_replay_with_same_decider_gives_same_calls(recorded: Path, tmp_path: Path, model: str) -> None:
    one, other = (replayed(tmp_path, recorded, "--model", model) for _ in range(2))
    assert one["decisions"] == one["compared"] == len(calls(recorded)) > 40 and one["whole"] and not one["errors"]
    if model == "expert":  # it was recorded
        assert one["agreement"] == 1.0 and not one["differing"]
    for timed in ("decide_ms", "above_period", "machine"):
        del one[timed], other[timed]
    assert one == other


def test_recording_cut_short_is_replayed_to_its_end(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cut.mcap"
    encoder = Encoder()
    for i, event in enumerate(read_record(recorded)):
        encoder.add(i, event)
        if i % 20 == 0:
            encoder.end_chunk()
    path.write_bytes(encoder.waiting[: len(encoder.waiting) * 7 // 10])
    found = replayed(tmp_path, path)
    assert not found["whole"] and 0 < found["decisions"] < len(calls(recorded)) and found["agreement"] == 1.0
    assert "cut short" in capsys.readouterr().out


def test_record_without_observations_is_not_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*LOCKSTEP, "--duration", "1", "--set", "record.observations=no", "--out", str(tmp_path)) == 0
    capsys.readouterr()
    for command in ("replay", "data from-recording"):
        said = refused(capsys, *command.split(), str(tmp_path))
        assert "has no observations" in said and "record.observations=yes" in said


def strange(recorded: Path, out: Path, **header: Any) -> Path:
    """Write a copy of the record with a changed header, and return its path."""
    encoder = Encoder()
    for i, event in enumerate(read_record(recorded)):
        if "header" in event:
            event["header"] |= header
        encoder.add(i, event)
    encoder.finish()
    out.write_bytes(encoder.waiting)
    return out


def test_endpoint_named_in_record_gets_no_requests(
    recorded: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RTCONTROL_DECISION_KEY", "the-users-own")
    with standin() as server:
        named = f"decisions:{server.url}#m"
        path = strange(recorded, tmp_path / "theirs.mcap", model=named, backup=named, engine="torch", host="inprocess")
        said = refused(capsys, "replay", str(path))
        assert not server.connections and f"--model '{named}'" in said and str(path) in said


@pytest.mark.parametrize("named", ["someone/checkpoint", "{}/agent.py", "mcp:{}/run"])
def test_path_named_in_record_is_not_opened(
    recorded: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    named: str,
) -> None:
    """The current folder has a file for each of these names, and an audit hook would notice that one is opened."""
    monkeypatch.chdir(tmp_path)
    trace = tmp_path / "trace"
    (tmp_path / "agent.py").write_text(f"open({str(trace)!r}, 'w')\n")
    (tmp_path / "run").write_text(f"#!/bin/sh\ntouch {trace}\n")
    (tmp_path / "run").chmod(0o755)
    (tmp_path / "checkpoint").mkdir()
    own, opened, watching = named.format(tmp_path), list[str](), True

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        read = event == "open" and "checkpoint" in str(arguments[0])
        if watching and (read or event in ("socket.connect", "subprocess.Popen")):
            opened.append(event)

    path = strange(recorded, tmp_path / "theirs.mcap", model=own, agent=own, env=own, load_tools=own)
    sys.addaudithook(watch)
    try:
        said = refused(capsys, "replay", str(path))
    finally:
        watching = False
    assert f"--model '{own}'" in said and not trace.exists() and not opened


def test_calls_kept_by_hysteresis_replay_the_same(tmp_path: Path) -> None:
    out = tmp_path / "run"
    steady = ("--host", "inprocess", "--no-live", "--clock", "lockstep", "--episodes", "1", "--set", "loop.seed=7")
    assert call("run", "--env", "lander", *steady, "--set", "loop.hysteresis=margin=0.6", "--out", str(out)) == 0
    kept = [event for event in read_record(out / "record.mcap") if "kept" in event]
    told = report_in(out)
    assert kept and told["steadiness"]["kept_by_hysteresis"] == len(kept)
    found = replayed(tmp_path, out)
    assert found["agreement"] == 1.0 and found["compared"] > 40
    assert call("replay", str(out), "--model", "expert") == 0  # it has no heads: decided as it decides
