"""The user's own functions while they are called: those that do not return are named."""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path

import pytest

import rtcontrol.run.user_code
from rtcontrol.cli.app import main
from rtcontrol.run.user_code import load_module, watched
from rtcontrol.training.teacher import Situations
from tests.models.small import build_checkpoint
from tests.rtcontrol.run.yard import agent_file, world_file

QUICK_S, LONG_S = 0.1, 0.5
SLEEP = f"(__import__('time').sleep({LONG_S}), 1 / 0)"
TEACHER = f"""
import time

tools = [{{"name": "go"}}, {{"name": "stop"}}]

def situations(rng):
    return str(rng.random())

def asleep():
    time.sleep({LONG_S})

def teacher(instruction, observation):
    asleep()
    raise RuntimeError("tired")
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rtcontrol.run.user_code, "watched", partial(watched, after_s=QUICK_S))


def test_code_that_rtcontrol_does_not_call_is_not_told_of() -> None:
    told: list[str] = []
    with watched(told.append, QUICK_S):
        time.sleep(LONG_S)  # a test, which calls rtcontrol
    assert told == []


def test_a_generator_that_yields_is_no_call_that_does_not_return(tmp_path: Path) -> None:
    drawn = "import time\ndef drawn(n):\n    for i in range(n):\n        time.sleep(0.005)\n        yield str(i)\n"
    (tmp_path / "drawn.py").write_text(drawn)
    module = load_module(str(tmp_path / "drawn.py"), "--env")
    told: list[str] = []
    with watched(told.append, QUICK_S):
        assert len([*Situations(module.drawn(int(LONG_S / 0.005)), "go").draw(random.Random(0))]) == LONG_S / 0.005
    assert told == []


def test_many_short_calls_are_no_long_one(tmp_path: Path) -> None:
    told: list[str] = []
    with watched(told.append, QUICK_S):
        ends = time.monotonic() + LONG_S
        while time.monotonic() < ends:
            name = tmp_path / f"brief_{time.monotonic_ns()}.py"
            name.write_text("import time\ntime.sleep(0.01)\n")
            load_module(str(name), "--env")
    assert told == []


def test_a_teacher_that_does_not_return_is_told_by_line_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("slow_rules.py").write_text(TEACHER)
    command = ["rtcontrol", "fit", "--teacher", "slow_rules.py", "--goal", "go", "--out", "made"]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert ended.value.code == 2 and "tired" in shown.err
    assert shown.out.count("slow_rules.py:13: teacher() has not returned for 0.1 s.") == 1


@pytest.mark.parametrize("tick", [1, 30])  # while it is looked over, and while it is flown
def test_a_world_that_does_not_return_is_told_of_where_it_is_scored(
    tick: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Path(world_file(tmp_path))
    world.write_text(world.read_text().replace("self.ticks += 1", f"self.ticks += 1; self.ticks < {tick} or {SLEEP}"))
    model = str(build_checkpoint(tmp_path / "model"))
    command = ["score", "--model", model, "--env", str(world), "--agent", str(agent_file(tmp_path)), "--seeds", "1"]
    monkeypatch.setattr("sys.argv", ["rtcontrol", *command])
    with pytest.raises(SystemExit):
        main()
    assert "step() has not returned for 0.1 s." in capsys.readouterr().err
