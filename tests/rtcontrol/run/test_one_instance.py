"""A run has one instance of its world: on one thread, closed once on every way out, stepped with the safe call.

What went wrong elsewhere: a motor that burnt since nobody disconnected it (huggingface/lerobot issue 2621), a port that
an instance kept (Unity-Technologies/ml-agents issue 1505), an arm that went on with what was sent last
(ros-controls/ros_controllers pull request 407), a half-made arm that stayed energized (strands-labs/robots pull request
3778), contexts that another thread cannot use (moderngl/moderngl issue 623)."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from commands import call, spawn, wait_for_ticks

from rtcontrol.envs.evaluate import cases, evaluate
from rtcontrol.models.errors import UserError
from rtcontrol.run.run import INTERNAL, MISSED, UNSAFE
from rtcontrol.run.skills import UserSkill, skill_of
from rtcontrol.telemetry.record_reader import read_record
from rtcontrol.training.world_rows import WorldRows
from tests.rtcontrol.run.plant import plant, told

KINDS = pytest.mark.parametrize("kind", ["gym", "own"])
CLOCKS = pytest.mark.parametrize("clock", ["wall", "lockstep"])


@pytest.fixture(autouse=True)
def _short_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rtcontrol.loop.loop.LEAVE_S", 0.3)
    monkeypatch.syspath_prepend(str(tmp_path))


def flown(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The attempts of the safe call on the way out, and the record's last line."""
    lines = list(read_record(folder / "out" / "record.mcap"))
    return [line for line in lines if "safe" in line and line["why"] == "exit"], lines[-1]


@KINDS
@CLOCKS
@pytest.mark.parametrize(
    ("fails", "options", "status"),
    [
        ("", ("--duration", "0.6"), 0),
        ("", ("--duration", "20", "--on-miss", "stop"), MISSED),
        ("make", ("--duration", "5"), 2),
        ("reset", ("--duration", "5"), 2),
        ("step", ("--duration", "5"), UNSAFE),
        ("close", ("--duration", "0.3"), INTERNAL),
        ("", ("--duration", "5", "--confirm", "nothing"), 2),
        ("", ("--duration", "5", "--model", "runs/none"), 2),
    ],
)
def test_a_world_is_made_once_on_one_thread_and_closed_on_every_way_out(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    clock: str,
    fails: str,
    options: tuple[str, ...],
    status: int,
) -> None:
    agent = "\ndef observe(data):\n    return str(list(data.values())[0] / (list(data.values())[0] < 6))\n"
    run = plant(tmp_path, kind, fails, agent=agent if status == MISSED else "")
    assert call("run", *run, "--clock", clock, "--out", str(tmp_path / "out"), *options) == status
    did, said = told(tmp_path), capsys.readouterr().err
    assert "Traceback" not in said and "Internal error" not in said
    assert did[-1:] == ["closed"] or (kind == "own" and "runs/none" in options and not did)
    steps = [what for what in did if what.startswith("step-")]
    if status in (0, MISSED, INTERNAL):
        # It was driven forward, and the last that it was stepped with is the safe call.
        assert "step-forward" in steps and steps[-1] == "step-stop"
        attempts, last = flown(tmp_path)
        assert [a["in_force"] for a in attempts] == [True] and last["safe_in_force"] is True
    if status == UNSAFE:
        attempts, last = flown(tmp_path)
        assert len(attempts) > 1 and not any(a["in_force"] for a in attempts) and last["safe_in_force"] is False
        assert all("no answer to step" in a["error"] for a in attempts) and steps[-1] == "step-forward"
        assert "THE SAFE CALL IS NOT IN FORCE" in said and "no answer to step" in said
    if fails in ("make", "reset", "close"):
        assert f"no answer to {fails}" in said
    assert ("may hold on to what it uses" in said) is (fails == "close")


@KINDS
@CLOCKS
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_world_with_a_step_of_the_safe_call_and_its_close(
    tmp_path: Path, kind: str, clock: str, number: signal.Signals
) -> None:
    run = plant(tmp_path, kind)
    out = ("--clock", clock, "--out", str(tmp_path / "out"))
    slow = ("--hz", "20") if clock == "wall" else ()
    process = spawn("run", *run, *out, *slow, "--duration", "6000", PYTHONPATH=str(tmp_path))
    wait_for_ticks(tmp_path / "out", 8)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    did = told(tmp_path)
    steps = [what for what in did if what.startswith("step-")]
    assert "step-forward" in steps and steps[-1] == "step-stop" and did[-1] == "closed"
    attempts, last = flown(tmp_path)
    assert [a["in_force"] for a in attempts] == [True] and last["safe_in_force"] is True


@KINDS
@CLOCKS
def test_a_world_whose_last_episode_ended_takes_no_safe_call_and_that_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, clock: str
) -> None:
    run = plant(tmp_path, kind, last=6)
    assert call("run", *run, "--clock", clock, "--episodes", "2", "--out", str(tmp_path / "out")) == 0
    did = told(tmp_path)
    assert [what for what in did if what.startswith("step-")][-1] == "step-forward"
    attempts, last = flown(tmp_path)
    assert [(a["in_force"], a["world"]) for a in attempts] == [(False, "over")] and last["safe_in_force"] is False
    assert "The safe call did not act: the world's last episode had ended" in capsys.readouterr().err
    # The preview's, and one of each episode: none on the way out, which would move a robot.
    assert did.count("reset") == 3


MODULE = """
import os
from typing import Literal
from rtcontrol import Call
from rtcontrol.agents import Fallback, tool

LOG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "log")
SPEED = [0]

class World:
    step_s = 0.05
    def reset(self, seed): self.n = 0
    def step(self):
        self.n += 1
        with open(LOG, "a") as file:
            file.write(f"{SPEED[0]}\\n")
    def observe(self): return {"n": self.n}
    def outcome(self): return None
    def instruct(self, text): pass

@tool
def drive(speed: Literal[1, 2]):
    "Drive."
    SPEED[0] = speed

@tool
def stop():
    "Stop."
    SPEED[0] = 0

tools, instruction, fallback = [drive, stop], "go", Fallback(Call("stop"))
"""


@CLOCKS
def test_a_safe_call_of_a_function_that_sets_what_the_world_steps_by_is_stepped(tmp_path: Path, clock: str) -> None:
    file = tmp_path / "by_functions.py"
    file.write_text(MODULE)
    out = ("--env", str(file), "--agent", str(file), "--model", "random", "--out", str(tmp_path / "out"))
    assert call("run", *out, "--host", "inprocess", "--no-live", "--clock", clock, "--duration", "1") == 0
    speeds = (tmp_path / "log").read_text().split()
    assert {"1", "2"} & set(speeds) and speeds[-1] == "0"
    attempts, last = flown(tmp_path)
    assert [a["in_force"] for a in attempts] == [True] and last["safe_in_force"] is True


def test_a_close_that_is_a_tool_is_not_called_at_the_end(tmp_path: Path) -> None:
    run = plant(tmp_path, "own")
    for name in ("drive.py", Path(run[1]).name):
        file = tmp_path / name
        file.write_text(
            file.read_text().replace('"act"', '"close"').replace("def act(self, action)", "def unused(self)")
        )
    world = Path(run[1])
    text = world.read_text().replace("    def close(self):", "    def close(self, action):")
    world.write_text(text.replace('        say("closed")', '        say(f"grip-{action}"); self.action = action'))
    assert call("run", *run, "--clock", "lockstep", "--duration", "0.5", "--out", str(tmp_path / "out")) == 0
    did = [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()]
    assert did[-2:] == ["grip-stop", "step-stop"] and "grip-forward" in did


@KINDS
def test_each_world_that_is_scored_or_learnt_from_is_closed(tmp_path: Path, kind: str) -> None:
    run = plant(tmp_path, kind, last=12)
    skill = skill_of(run[1], run[3])
    assert isinstance(skill, UserSkill)

    def open_and_made() -> tuple[int, int]:
        did = [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()]
        return did.count("made") - did.count("closed"), did.count("made")

    # For a Gymnasium world's names, and to look it over.
    assert open_and_made() == (0, 1 if kind == "own" else 2)
    evaluate(skill, skill.expert_policy, cases(skill.goals[0], range(6)), parallel=3)
    assert open_and_made()[0] == 0

    def stopped(situations: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(skill, stopped, cases(skill.goals[0], range(6)), parallel=3)
    assert open_and_made()[0] == 0
    import random

    rows = WorldRows(skill, 20.0).rows(random.Random(0))
    next(rows)
    assert open_and_made()[0] == 64
    skill.close()
    assert open_and_made()[0] == 0
    rows.close()  # type: ignore[attr-defined]
    assert open_and_made()[0] == 0


def test_a_world_that_cannot_be_closed_is_told_where_it_was_scored(tmp_path: Path) -> None:
    run = plant(tmp_path, "own", "close")
    with pytest.raises(UserError, match=r"close\(\) raised TimeoutError: no answer to close"):
        skill_of(run[1], run[3])
    assert json.dumps(told(tmp_path)[-1]) == '"closed"'
