"""`--backup` on the command line, over the wire and in Ray: who decides, what is written, what is refused."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from commands import EXPERT, call, refused

from rtcontrol.bridges.wire.messages import Bye, CallMessage
from rtcontrol.hosts.failover import BackupHost, Handover
from rtcontrol.hosts.inprocess import InProcessHost
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.hosts.ray_standby import StandbyHost, two_hosts
from rtcontrol.loop.config import RunConfig
from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.models.train.rows import Row, RowEncoder
from rtcontrol.run import assembly
from tests.helpers.processes import until
from tests.rtcontrol.hosts.pooled import naming, reply_of
from tests.rtcontrol.serve.conftest import serving

pytestmark = pytest.mark.serial


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


def test_without_a_first_decider_there_are_no_answers_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*EXPERT, "--clock", "lockstep", "--duration", "1", "--out", str(tmp_path / "out")) == 0
    capsys.readouterr()
    said = refused(
        capsys, "data", "from-recording", str(tmp_path / "out"), "--teacher", "--out", str(tmp_path / "r.jsonl")
    )
    assert "no sure and legal answers of a first decider" in said and "--backup" in said
    assert not list(tmp_path.glob("r.jsonl*"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--backup-below", "0.4"), "are for --backup"),
        (("--first-in-flight", "2"), "are for --backup"),
        (("--backup", "noop", "--backup-below", "2"), "no probability"),
        (("--backup", "noop", "--backup-after-ms", "0"), "must be above 0"),
        (("--backup", "noop", "--first-in-flight", "0"), "out of range"),
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


def test_beside_a_first_decider_elsewhere_the_standby_is_the_backups(tmp_path: Path) -> None:
    config = RunConfig(env="lander", out=tmp_path, backup="lander", standby=True, backup_after_ms=90.0)
    chosen = assembly.agent("lander")
    host = assembly.host(config, assembly.decider(config, chosen, "random"), "random", chosen)
    assert isinstance(host, BackupHost)
    assert isinstance(host._backup, StandbyHost) and isinstance(host.first.host, InProcessHost)
    assert host.first._terms == Handover(0.5, 90_000_000, 62_500_000, 4)
    host.close()


def test_two_local_models_decide_in_processes_of_their_own_and_either_may_be_lost() -> None:
    host = BackupHost(*two_hosts(naming("left"), naming("right")), Handover(0.5, 50_000_000, 50_000_000, 1))
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
    with serving(tmp_path / "out", model="random", backup="expert", backup_below=1.0) as made:
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


def test_a_row_of_a_record_is_encoded_by_what_trains() -> None:
    chosen, checkpoint = assembly.agent("lander"), Checkpoint.open("lander")
    plan = compile_plan(tool_schemas(chosen.tools.openai()), checkpoint.tokenizer)
    call = {"name": "engines", "arguments": {"main": 70, "side": -50}}
    line = {"instruction": "land", "observation": "x 0", "history": ["engines(main=0, side=0)"], "call": call}
    row = Row.from_dict({**line, "tools": chosen.tools.openai(), "source": "teacher:far", "weight": 1.0})
    encoded = RowEncoder(checkpoint.template, checkpoint.tokenizer, plan).encode(row)
    texts = [checkpoint.tokenizer.decode(head.labels[:-1]) for head in encoded.heads]
    assert [text.strip() for text in texts] == ["engines", "70", "-50"] and row.history == tuple(line["history"])
    assert Row.from_dict({**line, "call": None}).call is None
