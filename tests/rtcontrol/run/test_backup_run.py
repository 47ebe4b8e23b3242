"""Runs with two deciders, and runs that a decision API flies: by a stand-in with latency and losses, and by our own."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from commands import EXPERT, call, refused

from rtcontrol.hosts.failover import BackupHost, Handover
from rtcontrol.hosts.inprocess import InProcessHost
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.hosts.ray_pool import StandbyHost, two_hosts
from rtcontrol.loop.config import RunConfig
from rtcontrol.models.train.rows import Row
from rtcontrol.run import assembly
from rtcontrol.telemetry.record_reader import read_record
from rtcontrol_client.wire.messages import Bye, CallMessage
from tests.helpers.processes import until
from tests.rtcontrol.hosts.pooled import naming, reply_of
from tests.rtcontrol.hosts.standin_endpoint import standin
from tests.rtcontrol.serve.conftest import serving


@pytest.mark.integration
def test_a_run_with_a_backup_says_who_decided_and_its_answers_are_rows_to_train_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, lines = tmp_path / "out", tmp_path / "rows.jsonl"
    assert call(*EXPERT, "--backup", "noop", "--duration", "2", "--out", str(out)) == 0
    report = json.loads((out / "report.json").read_text())
    assert report["backup"] == "noop" and report["host_info"]["backup"]["model"] == "noop"
    assert report["decided_by"]["first"] >= 0.8 * report["ticks"] - 5
    assert sum(report["first_answers"].values()) >= report["decided_by"]["first"]
    assert "decided by the first one" in capsys.readouterr().out
    assert call("data", "from-recording", str(out), "--teacher", "--out", str(lines)) == 0
    made = [json.loads(line) for line in lines.read_text().splitlines()]
    assert len(made) == report["first_answers"]["in_time"] + report["first_answers"]["late"] >= 20
    assert {row["source"] for row in made} == {"teacher:expert"}
    rows = [Row.from_dict(row) for row in made]
    expert = assembly.EXPERTS["lander"]
    asked = [DecisionRequest(0, 0, row.observation, row.instruction) for row in rows]
    assert [row.call for row in rows] == [expert(request) for request in asked]
    assert call("data", "from-recording", str(out), str(out), "--out", str(lines)) == 0
    assert len(lines.read_text().splitlines()) % 2 == 0, "several records, one after the other"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--backup", "paddle"), "trained on other tools"),
        (("--backup", "nowhere"), "nowhere"),
    ],
)
def test_terms_that_are_none_are_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    assert said in refused(capsys, *EXPERT, *options, "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_standby_of_two_local_models_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("run", "--env", "lander", "--backup", "lander", "--standby", "--no-live", "--out", str(tmp_path / "o"))
    assert "--standby is for one local model" in refused(capsys, *words)


@pytest.mark.integration
def test_beside_a_first_decider_elsewhere_the_standby_is_the_backups(tmp_path: Path) -> None:
    config = RunConfig(env="lander", out=tmp_path, backup="lander", standby=True)
    chosen = assembly.agent("lander")
    host = assembly.host(config, assembly.decider(config, chosen, "random"), "random", chosen)
    assert isinstance(host, BackupHost)
    assert isinstance(host._backup, StandbyHost) and isinstance(host.first.host, InProcessHost)
    assert host.first._terms == Handover(0.5, 62_500_000, 4)
    host.close()


@pytest.mark.serial
def test_two_local_models_decide_in_processes_of_their_own_and_either_may_be_lost() -> None:
    host = BackupHost(*two_hosts(naming("left"), naming("right")), Handover(0.5, 50_000_000, 1))
    told: list[dict[str, Any]] = []
    host.first.emit = lambda t_ns, event: told.append(event)

    def decided(tick: int) -> str:
        host.submit(DecisionRequest(tick, 1, "x", "go", within_ns=2_000_000_000))
        reply = reply_of(host)
        assert reply.tick == tick
        return reply.by

    try:
        info = host.start()
        assert info["pid"] != info["backup"]["pid"]
        assert decided(0) == "first"
        os.kill(int(info["pid"]), signal.SIGKILL)
        until(lambda: not host.first.host.alive(), seconds=5.0, every=0.001)
        began = time.monotonic()
        assert [decided(tick) for tick in range(1, 5)] == ["backup"] * 4
        assert time.monotonic() - began < 2.0 and host.alive() and host.incarnation == 0
        assert {(event.decider, event.event) for event in host.events} == {("first", "lost")}
        until(host.first.host.alive, seconds=60.0)
        until(lambda: decided(5 + len(told)) == "first", seconds=30.0)
        os.kill(int(info["backup"]["pid"]), signal.SIGKILL)
        until(lambda: not host._backup.alive(), seconds=5.0, every=0.001)
        assert decided(1000) == "first" and host.alive()
        until(host._backup.alive, seconds=60.0)
        assert decided(1001) in ("first", "backup") and host.incarnation == 1
        assert ("backup", "restarted") in {(event.decider, event.event) for event in host.events}
    finally:
        host.close()


def test_a_session_whose_model_is_elsewhere_has_the_servers_backup_and_a_local_one_has_none(tmp_path: Path) -> None:
    with serving(tmp_path / "out", model="random", backup="expert") as made:
        peer = made.enter(pacing="client")
        assert [peer.ask().status for _ in range(5)] == ["fresh"] * 5
        peer.send(Bye(session=peer.token))
        path = made.out / "session-0001" / "report.json"
        until(lambda: path.exists() and path.read_text().endswith("}\n"), made.said)
        report = json.loads(path.read_text())
        assert report["backup"] == "expert" and sum(report["decided_by"].values()) == report["ticks"] == 5
        totals = made.admission.totals().counts
        assert totals["decided_by_first"] + totals["decided_by_backup"] == 5
        local = made.enter(model="lander", pacing="client")
        assert isinstance(local.ask(), CallMessage)
        local.send(Bye(session=local.token))
        path = made.out / "session-0002" / "report.json"
        until(lambda: path.exists() and path.read_text().endswith("}\n"), made.said)
        assert json.loads(path.read_text())["backup"] is None


FLY = ("run", "--env", "lander", "--host", "inprocess", "--no-live", "--hz", "16")
DECIDES = assembly.EXPERTS["lander"]


def expert(told: str, name: str, options: list[str]) -> str:
    """What the lander's expert does, as an answer to one question."""
    instruction, _, seen = (line.partition(": ")[2] for line in told.split("\n"))
    return str(DECIDES(DecisionRequest(0, 0, seen, instruction)).arguments[name.removeprefix("engines.")])


def far_away(n: int) -> tuple[float, Any]:
    """110 to 430 ms; one of twenty is lost."""
    chance = random.Random(n)
    return chance.uniform(0.11, 0.43), chance.choice([503, "drop"]) if chance.random() < 0.05 else None


@pytest.mark.realtime
def test_a_slow_endpoint_that_loses_answers_flies_with_a_backup_and_teaches_it(tmp_path: Path) -> None:
    out, lines = tmp_path / "out", tmp_path / "rows.jsonl"
    with standin(far_away, expert) as made:
        words = ("--model", f"decisions:{made.url}", "--backup", "expert", "--duration", "5", "--out", str(out))
        assert call(*FLY, *words) == 0
    report = json.loads((out / "report.json").read_text())
    assert report["decided_by"]["first"] <= 1 and report["decided_by"]["backup"] >= 0.9 * report["ticks"]
    answers = report["first_answers"]
    assert answers["late"] >= 30 and answers["in_time"] <= 1 and answers["lost"] == answers["unsure"] == 0
    events = [event for event in read_record(out / "record.mcap") if "first" in event]
    losses = Counter(event["loss"] for event in events if "loss" in event)
    assert losses.total() == answers["failed"] >= 1 and report["first_losses"] == dict(losses)
    assert set(losses) <= {"http", "connection"}
    assert report["answer_ms"]["p50"] >= 110
    assert call("data", "from-recording", str(out), "--teacher", "--out", str(lines)) == 0
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert len(rows) == answers["late"] + answers["in_time"]
    for row in rows:
        decided = DECIDES(DecisionRequest(0, 0, row["observation"], row["instruction"]))
        assert row["call"] == decided.to_dict(), "what it saw, not what was to be seen when it answered"


@pytest.mark.realtime
def test_an_endpoint_is_no_backup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "expert", "--backup", "decisions:http://127.0.0.1:1", "--out", str(tmp_path / "out"))
    assert "may be as late as any" in refused(capsys, *FLY, *words)


FLY_AT_ONCE = ("run", "--env", "lander", "--host", "inprocess", "--no-live", "--clock", "wall")


def flown(out: Path, model: str, *more: str) -> dict[str, Any]:
    assert call(*FLY_AT_ONCE, "--model", model, "--out", str(out), *more) == 0
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return report


@pytest.mark.realtime
def test_losses_are_counted_by_their_causes(tmp_path: Path) -> None:
    faults = {7: 503, 11: "drop", 13: "garbage", 17: "refuse"}

    def plan(n: int) -> tuple[float, Any]:
        slow = n > 45 and n % 19 == 0
        return (1.0 if slow else 0.003), faults.get(n % 19) if n > 45 else None

    with standin(plan, expert) as made:
        report = flown(tmp_path / "out", f"decisions:{made.url}", "--hz", "10", "--duration", "4")
    asked = len(made.bodies)
    assert asked > 70
    events = [e for e in read_record(tmp_path / "out" / "record.mcap") if e.get("kind") == "miss"]
    told = Counter(e["subcause"] for e in events if e["cause"] == "decide")
    # The last one of all may have been under way at the end.
    sent = Counter(faults[n % 19] for n in range(46, asked - 1) if n % 19 in faults)
    assert (told["http"], told["connection"], told["malformed"], told["refused"]) == (
        sent[503],
        sent["drop"],
        sent["garbage"],
        sent["refuse"],
    )
    assert told["timeout"] >= 1 and report["misses_by_subcause"]["decide.timeout"] == told["timeout"]
    assert report["decide_ms"]["p50"] >= 3, "real latencies"
    assert any("HTTP 503: status 503" in e.get("error", "") for e in events)


def test_mistakes_are_told_before_the_first_tick(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(model: str) -> str:
        assert call(*FLY_AT_ONCE, "--model", model, "--out", str(tmp_path / "out")) == 2
        said = capsys.readouterr().err
        assert "Traceback" not in said and not (tmp_path / "out" / "record.mcap").exists()
        return said

    with standin(lambda n: (0.0, 401)) as made:
        assert "HTTP 401" in refused(f"decisions:{made.url}") and len(made.bodies) <= 45
    assert "its URL is none" in refused("decisions:nowhere")
    said = refused(f"decisions:{made.url}")
    assert "None of" in said and "decisions came" in said
