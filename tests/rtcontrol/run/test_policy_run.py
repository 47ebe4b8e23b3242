"""Runs and sessions that a policy server flies: its start, its loss and return, and who decides beside it."""

from __future__ import annotations

import gc
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import call, refused

from rtcontrol.hosts.inprocess import InProcessHost
from rtcontrol.hosts.policy_api import PolicySource
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.telemetry.record_reader import read_record
from rtcontrol_client import Client
from tests.helpers.processes import ROOT, Program, free_port, until
from tests.rtcontrol.hosts.policy_standin import actions, policy

PADDLE = ("--env", "paddle", "--no-live")


def report_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "report.json").read_text())
    return found


def test_a_run_by_a_policy_has_a_record_and_a_report_that_say_who_decided(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with policy(lambda n, asked: actions(1.0, 2.0)) as made:
        model = f"openpi:{made.url}"
        line = ("run", *PADDLE, "--model", model, "--clock", "lockstep", "--duration", "2", "--out", str(out))
        assert call(*line) == 0
        asked = made.questions
    report = report_of(out)
    assert report["host_info"]["engine"] == "openpi" and report["host_info"]["actions"] == ["velocity"]
    assert report["calls"]["total"] == report["ticks"] and report["model"] == model
    rows = [event for event in read_record(out / "record.mcap") if "data" in event]
    flown = asked[-len(rows) :]
    fields = ("ball_x", "ball_y", "ball_vx", "ball_vy", "own_y", "other_y")
    assert [q["observation/state"].tolist() for q in flown] == [
        [float(np.float32(row["data"][name])) for name in fields] for row in rows
    ]


def test_a_run_does_not_begin_without_its_policy_or_with_one_that_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = f"openpi:ws://127.0.0.1:{free_port()}"
    told = refused(capsys, "run", *PADDLE, "--model", gone, "--out", str(tmp_path / "a"))
    assert "cannot be reached" in told.replace("\n", " ") and "docs/policies.md" in told
    with policy(lambda n, asked: {"actions": np.zeros((8, 7), np.float32)}) as made:
        told = refused(capsys, "run", *PADDLE, "--model", f"openpi:{made.url}", "--out", str(tmp_path / "b"))
    assert "does not fit the agent" in told and "(8, 7)" in told


ELSEWHERE = {
    "a backup": ("run", *PADDLE, "--model", "noop", "--backup", "openpi:ws://127.0.0.1:1"),
    "an interpreter": ("run", *PADDLE, "--model", "noop", "--interpreter", "openpi:ws://127.0.0.1:1"),
    "six tools": ("run", "--env", "road", "--no-live", "--model", "openpi:ws://127.0.0.1:1"),
}


@pytest.mark.parametrize("line", ELSEWHERE.values(), ids=ELSEWHERE.keys())
def test_where_a_policy_cannot_decide_it_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: tuple[str, ...]
) -> None:
    refused(capsys, *line, "--out", str(tmp_path / "out"))


def test_a_policy_that_goes_away_costs_ticks_and_the_run_goes_on_when_it_is_back(tmp_path: Path) -> None:
    example, port, out = ROOT / "examples" / "policy_server.py", free_port(), tmp_path / "out"
    line = ["-m", "rtcontrol", "run", *PADDLE, "--model", f"openpi:ws://127.0.0.1:{port}", "--hold-ms", "200"]
    first = Program([str(example), str(port)], tmp_path / "first.log")
    run = second = None
    kinds = lambda: [e for e in read_record(out / "record.mcap") if "kind" in e] if out.exists() else []  # noqa: E731
    try:
        first.says("a policy at")
        run = Program([*line, "--duration", "280", "--out", str(out)], tmp_path / "run.log")
        until(
            lambda: (out / "record.mcap").exists() and sum(e["kind"] == "call" for e in kinds()) >= 8,
            seconds=90,
            every=0.1,
        )
        first.kill()
        until(lambda: any(e.get("subcause") == "connection" for e in kinds()), seconds=90, every=0.1)
        lost = len(kinds())
        second = Program([str(example), str(port)], tmp_path / "second.log")
        until(lambda: sum(e["kind"] == "call" for e in kinds()[lost:]) >= 8, seconds=90, every=0.1)
        assert run.end() == 143
    finally:
        for program in filter(None, (first, second, run)):
            program.kill()
    events = list(read_record(out / "record.mcap"))
    assert any(e.get("why") == "miss" for e in events if "safe" in e), "the safe call acted meanwhile"
    assert report_of(out)["misses_by_subcause"].get("decide.connection", 0) >= 1


def test_a_local_backup_decides_while_the_policy_says_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    at_rest = lambda asked: asked["observation/state"][2] == 0  # noqa: E731 (as in the warm-up, and before each serve)
    with policy(lambda n, asked: actions(1.0) if at_rest(asked) else None) as made:
        given = ("--model", f"openpi:{made.url}", "--backup", "expert", "--host", "inprocess", "--duration", "4")
        assert call("run", *PADDLE, *given, "--out", str(out)) == 0
    decided = report_of(out)["decided_by"]
    assert decided["first"] >= 1 and decided["backup"] >= 10


def test_sessions_of_the_wire_are_decided_by_a_policy(tmp_path: Path) -> None:
    port = free_port()
    with policy(lambda n, asked: actions(2.0)) as made:
        line = ["-m", "rtcontrol", "serve", "--agent", "paddle", "--model", f"openpi:{made.url}", "--host", "inprocess"]
        line += ["--bind", f"tcp://127.0.0.1:{port}", "--hz", "4", "--out", str(tmp_path / "served")]
        server = Program(line, tmp_path / "log")
        try:
            server.says("listening on")
            given: dict[str, Any] = {"agent": "paddle", "connect_timeout_s": 60.0}
            with Client.connect(f"tcp://127.0.0.1:{port}", **given) as client:
                data = dict.fromkeys(("ball_x", "ball_y", "ball_vx", "ball_vy", "own_y", "other_y"), 30.0)

                def called() -> bool:
                    client.observe(data=data)
                    time.sleep(0.05)
                    return any(one.arguments == {"velocity": 2} for one in client.call().calls)

                until(called)
        finally:
            server.kill()


def test_a_host_that_is_closed_leaves_no_connection_and_no_thread() -> None:
    links = lambda: [thread for thread in threading.enumerate() if thread.name == "policy link"]  # noqa: E731
    gc.collect()
    before = {*links()}
    with policy(lambda n, asked: actions(1.0)) as made:
        move = {"name": "move", "parameters": {"properties": {"velocity": {"type": "number"}}}}
        host = InProcessHost(PolicySource.parse(f"openpi:{made.url}", [move], 1_000_000))
        host.start()
        host.deciders[0].decide(DecisionRequest(1, 1, "", "go", data={"x": 1.0}))
        assert {*links()} - before
        host.close()
        del host
        until(lambda: gc.collect() >= 0 and not {*links()} - before)
