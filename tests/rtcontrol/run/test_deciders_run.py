"""Tests of the deciders of a run: backup, plans, an interpreter, and a checkpoint's confidence gate."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import EXPERT, call, refused, report_in, spawn, wait_for_ticks

from rtcontrol.models.checkpoint.checkpoint import ZOO
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.run import assembly
from rtcontrol.run.model_compatibility import adapt
from rtcontrol.telemetry.record_reader import read_record
from tests.helpers.processes import until
from tests.rtcontrol.hosts.chat_server import ChatServer, chat_server, completion
from tests.rtcontrol.run.yard import agent_file, world_file


@pytest.mark.integration
def test_run_with_a_backup_reports_who_decided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert call(*EXPERT, "--set", "host.backup=noop", "--duration", "2", "--out", str(out)) == 0
    report = report_in(out)
    assert report["backup"] == "noop" and report["host_info"]["backup"]["model"] == "noop"
    assert report["decided_by"]["first"] >= 0.8 * report["ticks"] - 5
    assert sum(report["first_answers"].values()) >= report["decided_by"]["first"]
    assert "decided: first" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--set", "host.backup=paddle"), "trained on other tools"),
        (("--set", "host.backup=nowhere"), "nowhere"),
        (
            ("--model", "lander", "--set", "host.backup=lander", "--set", "host.standby=true", "--host", "ray"),
            "host.standby and host.backup exclude",
        ),
        (("--set", "loop.interpreter=noop"), "cannot interpret instructions"),
        (("--set", "loop.interpreter=chat:nowhere"), "The URL of chat is not valid"),
        (("--set", "loop.interpreter=/nowhere/at/all"), "/nowhere/at/all"),
        (("--model", "decisions:nowhere"), "The URL of decisions is not valid"),
    ],
)
def test_wrong_deciders_are_refused_before_the_run_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    assert said in refused(capsys, *EXPERT, *options, "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


SLOW = ("def expert(data, goal):\n", "def expert(data, goal):\n    import time\n    time.sleep(0.12)\n")
PLAN = (
    'return Call("drive", {"way": "north" if y > 0 else "south" if y < 0 else "stop"})',
    "first = 'north' if y > 0 else 'south' if y < 0 else 'stop'\n"
    '    return [Call("drive", {"way": first})] * 3 + [Call("drive", {"way": "stop"})]',
)


@pytest.mark.realtime
def test_slow_expert_with_plans_meets_deadlines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = agent_file(tmp_path, SLOW, PLAN, ("abs(x) > abs(y)", "False"))
    run = ("run", "--env", world_file(tmp_path), "--agent", agent, "--model", "expert", "--no-live", "--episodes", "40")
    assert call(*run, "--duration", "5", "--set", "loop.max_age_ms=400", "--out", str(tmp_path / "out")) == 0
    report = report_in(tmp_path / "out")
    told = report["plans"]
    assert report["on_time"] > 0 and told["in_force"] > 0 and told["steps"]["max"] in (1, 2, 3)
    assert "plans: " in "".join(capsys.readouterr())
    events = list(read_record(tmp_path / "out" / "record.mcap"))
    steps = [e for e in events if "step" in e and "kind" in e]
    assert steps and all(0 <= e["step"] < e["steps"] == 4 for e in steps)
    assert {e["outcome"] for e in events if "plan" in e} <= {"in_force", "over"}


ANSWERS = {"about seventy up please": completion(("hover", '{"y": 0.7}'))}
NONE = completion(("not_understood", "{}"))


@pytest.fixture
def chat() -> Iterator[ChatServer]:
    with chat_server(lambda body: ANSWERS.get(body["messages"][-1]["content"], NONE)) as server:
        yield server


def events(out: Path, key: str) -> list[dict[str, Any]]:
    return [event for event in read_record(out / "record.mcap") if key in event and "observation" not in event]


def test_typed_instruction_is_interpreted_recorded_and_reported(chat: ChatServer, tmp_path: Path) -> None:
    out = tmp_path / "run"
    told = ("--set", f"loop.interpreter=chat:{chat.url}#small", "--set", "view.stdin=true", "--out", str(out))
    run = spawn(*EXPERT, *told, "--duration", "120", "--hz", "20")
    assert run.stdin is not None
    wait_for_ticks(out, 5)
    for count, words in ((2, "about seventy up please"), (3, "make me a sandwich"), (3, "/stop")):
        run.stdin.write(f"{words}\n")
        run.stdin.flush()
        until(lambda count=count: len(events(out, "understood")) == count, seconds=30)
    said, complaint = run.communicate(timeout=60)
    assert run.returncode == 0, complaint
    assert '"about seventy up please" is understood as: hover at 0.7 (chat:small, ' in complaint
    assert '"make me a sandwich" is not understood: it asks for none of the goals.' in complaint
    assert "The previous instruction stays active. You can say: " in complaint
    assert "\nunderstood: " in said and 'as "hover at 0.7"' in said.replace("\n", " ")
    report = report_in(out)
    assert [one["understood"] for one in report["understood"]] == ["land on the pad", "hover at 0.7", None]
    assert report["interpreter"] == f"chat:{chat.url}#small"
    assert [event["instruction"] for event in events(out, "instruction")] == ["hover at 0.7"]


GATE = 0.95
RUN = ("run", "--env", "road", "--clock", "lockstep", "--host", "inprocess", "--no-live", "--duration", "1")


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """Return a copy of the bundled driver whose checkpoint has a gate."""
    made = Path(shutil.copytree(ZOO / "driver", tmp_path / "driver"))
    learnt = TrainingMetadata.load(made)
    assert learnt is not None
    replace(learnt, gate=GATE, allow_null=False).write(made)
    return made


def fly(driver: Path, told: str, *more: str) -> dict[str, int]:
    out = driver.parent / "run"
    assert (
        call(
            *RUN, "--model", str(driver), "--instruct", told, "--out", str(out), "--set", "record.overwrite=true", *more
        )
        == 0
    )
    return report_in(out)


def test_run_uses_the_gate_of_its_checkpoint(driver: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = fly(driver, "make tea", "--hz", "2", "--duration", "8")  # slow enough for any machine
    said = capsys.readouterr()
    assert (said.out + said.err).count('"make tea" is not understood') == 1
    assert report["held"] > 0.5 * report["ticks"]
    report = fly(driver, "drive at 60", "--hz", "8")
    said = "".join(capsys.readouterr())
    assert "not understood" not in said and report["held"] < 0.1 * report["ticks"]
    assert "The model driver was trained at 16 Hz, but this run has 8 Hz" in said
    assert fly(driver, "make tea", "--set", "loop.min_confidence=0")["held"] == 0  # the option overrides the checkpoint


def test_null_of_a_gated_checkpoint_means_not_understood(driver: Path) -> None:
    learnt, agent = TrainingMetadata.load(driver), assembly.load_agent("driver")
    assert learnt is not None and not adapt(agent, str(driver)).allow_null
    replace(learnt, allow_null=True).write(driver)
    asked = adapt(agent, str(driver))
    assert asked.allow_null and asked.null_is_doubt
    assert not adapt(assembly.load_agent("lander"), str(driver)).allow_null  # null has no meaning for other tools
    own = adapt(replace(agent, allow_null=True), str(driver))
    assert own.allow_null and not own.null_is_doubt
