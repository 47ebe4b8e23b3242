"""What a stranger's record names is never gone to, unless the command line says so."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import EXPERT, call, refused

from rtcontrol.telemetry.encoder import Encoder
from rtcontrol.telemetry.record_reader import read_record
from tests.rtcontrol.hosts.standin_endpoint import standin

COMMANDS = ("replay {}", "run --no-live --host inprocess --env {}", "replay {} --as-env")


@pytest.fixture(scope="module")
def flown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("flown")
    assert call(*EXPERT, "--clock", "lockstep", "--episodes", "1", "--duration", "1", "--out", str(out)) == 0
    return out / "record.mcap"


def strange(flown: Path, out: Path, **header: Any) -> Path:
    """The record with another header."""
    encoder = Encoder()
    for i, event in enumerate(read_record(flown)):
        if "header" in event:
            event["header"] |= header
        encoder.add(i, event)
    out.write_bytes(encoder.take() + encoder.finish())
    return out


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("api", ["decisions", "systemone"])
def test_an_endpoint_that_a_record_names_is_not_asked_and_gets_no_key(
    flown: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    api: str,
    command: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RTCONTROL_DECISION_KEY", "the-users-own")
    with standin() as server:
        named = f"{api}:{server.url}#m"
        path = strange(flown, tmp_path / "theirs.mcap", model=named, backup=named, engine="torch", host="inprocess")
        said = refused(capsys, *command.format(path).split())
        assert not server.connections and f"--model '{named}'" in said and str(path) in said


def test_the_command_line_may_name_it(flown: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTCONTROL_DECISION_KEY", "the-users-own")
    with standin() as server:
        path = strange(flown, tmp_path / "theirs.mcap", model=f"decisions:{server.url}#m")
        assert call("replay", str(path), "--model", f"decisions:{server.url}") == 0
        assert server.bodies and server.headers[0]["authorization"] == "Bearer the-users-own"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("named", ["./checkpoint", "someone/checkpoint", "{}/agent.py", "mcp:{}/run", "../lander"])
def test_a_folder_a_hub_id_or_a_program_that_a_record_names_is_not_opened(
    flown: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    named: str,
    command: str,
) -> None:
    """In the folder from which it is run all of these lie there, and would leave a trace."""
    monkeypatch.chdir(tmp_path)
    trace = tmp_path / "trace"
    (tmp_path / "agent.py").write_text(f"open({str(trace)!r}, 'w')\n")
    (tmp_path / "run").write_text(f"#!/bin/sh\ntouch {trace}\n")
    (tmp_path / "run").chmod(0o755)
    (tmp_path / "checkpoint").mkdir()
    own = named.format(tmp_path)
    opened: list[str] = []
    watching = True

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event in ("socket.connect", "subprocess.Popen"):
            opened.append(event)
        elif watching and event == "open" and "checkpoint" in str(arguments[0]):
            opened.append(str(arguments[0]))

    sys.addaudithook(watch)
    try:
        path = strange(flown, tmp_path / "theirs.mcap", model=own, agent=own, env=own, tools_from=own)
        said = refused(capsys, *command.format(path).split())
    finally:
        watching = False
    assert f"--model '{own}'" in said and not trace.exists() and not opened


def test_a_report_and_rows_of_it_name_it_and_go_nowhere(flown: Path, tmp_path: Path) -> None:
    with standin() as server:
        named = f"decisions:{server.url}"
        path = strange(flown, tmp_path / "theirs.mcap", model=named, agent=f"{tmp_path}/x.py", env=named)
        out = tmp_path / "rows.jsonl"
        for command in (
            "report {}",
            f"report {{}} --format html --out {tmp_path}/page.html",
            f"data from-recording {{}} --out {out}",
        ):
            assert call(*command.format(path).split()) == 0
        assert not server.connections
        assert json.loads(out.read_text().splitlines()[0])["source"] == f"record:{named}"


def test_a_recorded_model_of_this_installation_needs_no_word(flown: Path, tmp_path: Path) -> None:
    path = strange(flown, tmp_path / "theirs.mcap", model="lander")
    assert call("replay", str(path)) == 0


def test_no_endless_releases_are_made_up_between_two_observations(
    flown: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = strange(flown, tmp_path / "theirs.mcap", hz=0.001)
    assert "Leave --hz out" in refused(capsys, "replay", str(path), "--model", "noop", "--hz", "30")
    assert call("replay", str(path), "--model", "noop") == 0
