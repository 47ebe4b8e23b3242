"""The lander flown over a slow endpoint that loses answers: the backup flies, and learns from what came too late."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from commands import call, refused

from rtcontrol.bridges.wire.messages import Bye, CallMessage
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.run import assembly
from rtcontrol.telemetry.record_reader import read_record
from tests.helpers.processes import until
from tests.rtcontrol.serve.conftest import serving

sys.path.insert(0, str(Path(__file__).parents[1] / "hosts"))

from standin_endpoint import standin

pytestmark = pytest.mark.realtime
FLY = ("run", "--env", "lander", "--host", "inprocess", "--no-live", "--hz", "16")
EXPERT = assembly.EXPERTS["lander"]


def expert(told: str, name: str, options: list[str]) -> str:
    """What the lander's expert does, as an answer to one question."""
    instruction, _, seen = (line.partition(": ")[2] for line in told.split("\n"))
    return str(EXPERT(DecisionRequest(0, 0, seen, instruction)).arguments[name.removeprefix("engines.")])


def far_away(n: int) -> tuple[float, Any]:
    """110 to 430 ms; one of twenty is lost."""
    chance = random.Random(n)
    return chance.uniform(0.11, 0.43), chance.choice([503, "drop"]) if chance.random() < 0.05 else None


def test_a_slow_endpoint_that_loses_answers_flies_with_a_backup_and_teaches_it(tmp_path: Path) -> None:
    out, lines = tmp_path / "out", tmp_path / "rows.jsonl"
    with standin(far_away, expert) as made:
        words = ("--model", f"decisions:{made.url}", "--backup", "expert", "--duration", "12", "--out", str(out))
        assert call(*FLY, *words) == 0
    report = json.loads((out / "report.json").read_text())
    assert report["decided_by"]["first"] <= 1 and report["decided_by"]["backup"] >= 0.9 * report["ticks"]
    answers = report["first_answers"]
    assert answers["late"] >= 80 and answers["in_time"] <= 1 and answers["lost"] == answers["unsure"] == 0
    events = [event for event in read_record(out / "record.mcap") if "first" in event]
    losses = Counter(event["loss"] for event in events if "loss" in event)
    assert losses.total() == answers["failed"] >= 1 and report["first_losses"] == dict(losses)
    assert set(losses) <= {"http", "connection"}
    assert report["answer_ms"]["p50"] >= 110
    assert call("data", "from-recording", str(out), "--teacher", "--out", str(lines)) == 0
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert len(rows) == answers["late"] + answers["in_time"]
    for row in rows:
        decided = EXPERT(DecisionRequest(0, 0, row["observation"], row["instruction"]))
        assert row["call"] == decided.to_dict(), "what it saw, not what was to be seen when it answered"


def test_an_endpoint_is_no_backup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "expert", "--backup", "decisions:http://127.0.0.1:1", "--out", str(tmp_path / "out"))
    assert "may be as late as any" in refused(capsys, *FLY, *words)


def test_a_servers_session_over_an_endpoint_has_the_servers_backup(tmp_path: Path) -> None:
    with (
        standin(lambda n: (0.25, None), expert) as far,
        serving(tmp_path / "out", model=f"decisions:{far.url}", backup="expert") as made,
    ):
        peer = made.enter(hz=20)
        for _ in range(30):
            peer.observe()
            assert peer.expect(CallMessage).status in ("fresh", "held", "safe")
        peer.send(Bye(session=peer.token))
        path = made.out / "session-0001" / "report.json"
        until(lambda: path.exists() and path.read_text().endswith("}\n"), str(made.said))
    report = json.loads(path.read_text())
    assert report["backup"] == "expert" and report["decided_by"]["backup"] >= 15
    assert report["first_answers"]["late"] >= 1 and len(far.bodies) >= 2
