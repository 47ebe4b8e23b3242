"""Tests of a user's world, agent, goals and expert: run, served and checked, with errors in each."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import call, refused, report_in, settings

from rtcontrol.models.errors import UserError
from rtcontrol.run.skills import check_world, skill_of
from rtcontrol.run.user_files import load_module
from tests.rtcontrol.run.yard import AGENT, WORLD, agent_file, world_file

COMMON = ("--clock", "lockstep", "--no-live", "--episodes", "2")
GOALS = """
goals:
  go to the {thing}: [&at "at the {thing}"]
placeholders:
  thing: [red box, blue box, barrel]
"""


def run_of(tmp_path: Path, world: str, agent: str, *more: str) -> tuple[str, ...]:
    out = str(tmp_path / "out")
    return ("run", "--env", world, "--agent", agent, "--model", "expert", *COMMON, "--out", out, *more)


def fly(tmp_path: Path, world: str, agent: str, *more: str, status: int = 0) -> dict[str, Any]:
    assert call(*run_of(tmp_path, world, agent, *more)) == status
    return report_in(tmp_path / "out")


def test_user_expert_runs_and_replays_its_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world, agent = world_file(tmp_path, name="json.py"), agent_file(tmp_path)  # it hides no module of this name
    made = fly(tmp_path, world, agent, "--instruct", "find the blue box.")
    assert sys.modules["json"] is json
    assert [e["success"] for e in made["outcome"]["episodes"]] == [True, True]
    assert made["host"] == "inprocess"
    again = ("replay", str(tmp_path / "out"), "--set", f"replay.agent={agent}", "--model", "expert")
    assert "an agent's file with `goals` and `expert`: --agent FILE.py" in refused(capsys, *again[:2], *again[4:6])
    assert call(*again, "--json", str(tmp_path / "r.json")) == 0
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["agreed"] == found["compared"] > 10 and not found["errors"]


def test_agent_uses_the_goals_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    goals = tmp_path / "goals.yaml"
    goals.write_text(GOALS)
    world = world_file(tmp_path)
    agent = agent_file(tmp_path, ('goals = {"go', 'goals = "goals.yaml"\nunused = {"go'))
    fly(tmp_path, world, agent, "--instruct", "at the red box")
    capsys.readouterr()
    run = run_of(tmp_path, world, agent, *settings("record.overwrite=true"))
    assert "does not know 'find the barrel'" in refused(capsys, *run, "--instruct", "find the barrel")
    for text, says in (
        ("goals: [", "goals.yaml, which cannot be read"),
        ("goals: {go: []}\naims: {}", "unknown tables"),
        ("goals:\n  go: []\n  'go to {x}': []", 'goals.yaml: "go to {x}": there are no values for {x}'),
        ("placeholders: {x: [a]}", "no table `goals`"),
    ):
        goals.write_text(text)
        assert says in refused(capsys, *run)
    goals.unlink()
    assert "No such file" in refused(capsys, *run)


@pytest.mark.parametrize(
    ("world", "agent", "says"),
    [
        ((), (("goals = {", "unused = {"),), "has an expert, but no goals"),
        ((), (("def expert", "def unused"),), "has no scripted expert"),
        ((), (("x, y = data", "x, y = nothing, data"),), "NameError: name 'nothing' is not defined, yard_agent.py:16"),
        ((), (("x, y = data", "return Call('drive', {'way': 'up'})\n    x, y = data"),), "agent.py:15: for the goal"),
        ((), (("x, y = data", "return 3\n    x, y = data"),), "not a call: return Call("),
        ((), (('Call("drive", {"way": "stop"})', '{"way": "stop"}'),), "its `fallback` is not a call"),
        ((("self.step_s = 0.05", "self.step_s = 0"),), (), "step_s = 0"),
        ((("def judge_by", "def told"),), (), "has no instruct (or judge_by)"),
        ((("import random", "import nothing_of_this_name"),), (), "nothing_of_this_name"),
        ((("class Yard:", "class Yard"),), (), "SyntaxError"),
        ((), (("tools = [", "unused = ["),), "has no tools"),
        ((("def outcome", "def ended"),), (), "has no outcome"),
        ((("return {name: [x", "return [[x"), ("items()}", "items()]")), (), "Yard.observe() returned list"),
        ((('goal["thing"]', 'goal["place"]'),), (), "KeyError: 'place', yard.py:9"),
    ],
)  # fmt: skip
def test_wrong_user_files_are_refused_before_the_run(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    world: tuple[tuple[str, str], ...],
    agent: tuple[tuple[str, str], ...],
    says: str,
) -> None:
    said = refused(capsys, *run_of(tmp_path, world_file(tmp_path, *world), agent_file(tmp_path, *agent)))
    assert says in said and not (tmp_path / "out").exists(), said


DECIDE, TEXT = "decide", "no_observation"


@pytest.mark.parametrize(
    ("change", "error", "cause"),
    [
        (("x, y = data", "assert FIRST, 'tired'\n    x, y = data"), "AssertionError: tired", DECIDE),
        (("x, y = data", 'if not FIRST: return Call("drive", {"way": "up"})\n    x, y = data'), "for the goal", DECIDE),
        (('    return " ".join(', '    FIRST or exit()\n    return " ".join('), "SystemExit: None", TEXT),
    ],
)
def test_failing_user_code_ends_with_status_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], error: str, cause: str
) -> None:
    first = skill_of(world_file(tmp_path), agent_file(tmp_path)).make()
    first.reset(0)
    agent = agent_file(
        tmp_path, change, ("FIRST", f"data['barrel'][0] == {first.observe()['barrel'][0]}"), name="bad.py"
    )
    how = ("--duration", "2", "--instruct", "find the red box")
    made = fly(tmp_path, world_file(tmp_path), agent, *how, status=8)
    assert made["misses_by_cause"][cause] > 5 and made["ended_by"] == "duration"
    said = capsys.readouterr().err
    last = said.splitlines()[-1]
    assert last.startswith(f"ERRORS: {made['misses_by_cause'][cause]} of {made['ticks']} ticks ended in an error")
    assert error in said and "bad.py:" in last


BOTH = WORLD + AGENT  # in one file


def changed(*changes: tuple[str, str]) -> str:
    text = BOTH
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def wrong(folder: Path, *changes: tuple[str, str], steps: int = 200) -> UserError:
    """Return the error of `rtcontrol check` for the file with these changes."""
    (folder / "both.py").write_text(changed(*changes))
    with pytest.raises(UserError) as told:
        check_world(str(folder / "both.py"), steps=steps, seed=0)
    return told.value


PLACE = '    x, y = data[goal["thing"]]\n'


@pytest.mark.parametrize("when", ["goal['thing'] == 'barrel'", "abs(x) + abs(y) < 2"], ids=["one goal", "near the end"])
def test_expert_wrong_for_one_goal_is_reported(tmp_path: Path, when: str) -> None:
    wrong_call = f'{PLACE}    if {when}: return Call("anchor")\n'
    told = str(wrong(tmp_path, (PLACE, wrong_call), steps=1000))
    assert "unknown tool 'anchor'; the tools are drive" in told
    assert f"both.py:{BOTH[: BOTH.index(PLACE)].count(chr(10))}: for the goal" in told


SIGNATURES = [
    ("def reset(self, seed)", "def reset(self)", "Yard.reset() takes no arguments, but gets (seed)."),
    ("def step(self)", "def step(self, dt)", "Yard.step() takes (dt), but gets no arguments."),
    ("def step(self)", "async def step(self)", "Yard.step() is async, but is never awaited."),
    ("def drive(self", "async def drive(self", "the environment's function is async, but is never awaited."),
    ("def expert(data, goal)", "def expert(data)", "expert() takes (data), but gets (data, goal)."),
]


@pytest.mark.parametrize(("old", "new", "says"), SIGNATURES)
def test_wrong_signature_is_reported_by_its_line(tmp_path: Path, old: str, new: str, says: str) -> None:
    told = wrong(tmp_path, (old, new))
    line = next(n for n, text in enumerate(changed((old, new)).splitlines(), 1) if new in text)
    assert says in str(told) and f"both.py:{line}: " in str(told), told
    assert "rtcontrol" not in str(told).replace(str(tmp_path), "") and "Write " in told.remedy


def test_tool_that_returns_unfinished_work_is_reported(tmp_path: Path) -> None:
    later = "return self._later()\n\n    async def _later(self):\n        "
    report = str(wrong(tmp_path, ("self.way = {", f"{later}self.way = {{")))
    assert "drive() returned a coroutine, so its work has not finished." in report and "both.py:" in report


def test_file_is_imported_by_its_own_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lone_yard.py").write_text("import numpy.linalg\nimport zmq\nfrom lone_cast import cast\n")
    (tmp_path / "lone_cast.py").write_text("def cast(): ...\n")
    (tmp_path / "zmq.py").write_text("raise SystemExit\n")
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy/__init__.py").write_text("raise SystemExit\n")
    assert load_module(str(tmp_path / "lone_yard.py"), "--env").__name__ == "lone_yard"
    warning = "lone_yard.py imports the installed module {0}, not {0}{1} in its folder. To import {0}{1}, rename it.\n"
    hidden = (warning.format(*name) for name in (("numpy", "/"), ("zmq", ".py")))
    assert capsys.readouterr().err == "".join(hidden)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/lone_yard.py").write_text("")
    assert load_module(str(tmp_path / "other/lone_yard.py"), "--env").__name__.startswith("rtcontrol_user_lone_yard_")


def test_world_with_random_reset_is_reported(tmp_path: Path) -> None:
    told = wrong(tmp_path, ("rng = random.Random(seed)", "rng = random"))
    assert "two resets with the seed 0 differ" in str(told)


def test_endless_episode_is_reported(tmp_path: Path) -> None:
    told = wrong(tmp_path, ("self.at == self.things", "None == self.things"), ("> 400", "> 40000"))
    assert "returned None for 300 s (6000 steps, seed 0): the episode does not end" in str(told)


def test_replay_with_a_failing_expert_has_a_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fly(tmp_path, world_file(tmp_path), agent_file(tmp_path), "--duration", "2", "--instruct", "find the red box")
    tired = agent_file(
        tmp_path, ("x, y = data", "assert data['barrel'][0] == 99, 'tired'\n    x, y = data"), name="tired.py"
    )
    again = ("--model", "expert", "--set", f"replay.agent={tired}", "--set", "replay.diff=true")
    assert call("replay", str(tmp_path / "out"), *again) == 8
    assert capsys.readouterr().err.splitlines()[-1].startswith("ERRORS: ")
