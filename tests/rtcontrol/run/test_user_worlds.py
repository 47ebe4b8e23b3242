"""A world, an agent, goals and an expert of the user's own: flown, served, checked; what is wrong with them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from commands import call, refused

from rtcontrol.envs.evaluate import cases, evaluate, summary
from rtcontrol.run import assembly
from rtcontrol.run.run import UNSAFE
from rtcontrol.run.skills import UserSkill, skill_of
from rtcontrol.run.world_check import WorldCheck, check
from tests.rtcontrol.run.yard import agent_file, world_file

COMMON = ("--clock", "lockstep", "--no-live", "--episodes", "2")
GOALS = """
goals:
  go to the {thing}: [&at "at the {thing}"]
placeholders:
  thing: [red box, blue box, barrel]
"""


def fly(tmp_path: Path, world: str, agent: str, *more: str, out: str = "out", status: int = 0) -> dict[str, Any]:
    run = ("run", "--env", world, "--agent", agent, "--model", "expert", *COMMON, "--out", str(tmp_path / out))
    assert call(*run, *more) == status
    report = json.loads((tmp_path / out / "report.json").read_text())
    assert isinstance(report, dict)
    return report


def test_the_expert_of_ones_own_flies_and_is_judged_and_decides_its_record_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world, agent = world_file(tmp_path), agent_file(tmp_path)
    made = fly(tmp_path, world, agent, "--instruct", "find the blue box.")
    assert [e["success"] for e in made["outcome"]["episodes"]] == [True, True]
    assert made["host"] == "inprocess" and not made["misses"]
    again = ("replay", str(tmp_path / "out"), "--agent", agent, "--model", "expert", "--json", str(tmp_path / "r.json"))
    assert "the agent's file with `goals` and `expert`: --agent FILE.py" in refused(capsys, *again[:2], *again[4:6])
    assert call(*again) == 0
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["agreed"] == found["compared"] > 10 and not found["errors"]


def test_a_new_game_has_its_goal_in_every_episode_and_where_the_words_name_none(tmp_path: Path) -> None:
    assert call("new", str(tmp_path / "rover")) == 0
    world, agent = (str(tmp_path / "rover" / f"rover{end}") for end in (".py", "_agent.py"))
    waited = fly(tmp_path, world, agent, "--instruct", "wait")["outcome"]["episodes"]
    assert [e["success"] for e in waited] == [True, True] and min(e["seconds"] for e in waited) > 3
    sing = ("--model", "random", "--host", "inprocess", "--instruct", "sing me a song", "--episodes", "1")
    unknown = fly(tmp_path, world, agent, *sing, out="unknown")
    assert [e["success"] for e in unknown["outcome"]["episodes"]] == [None]


def test_goals_of_a_file_take_the_place_of_the_agents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    goals = tmp_path / "goals.yaml"
    goals.write_text(GOALS)
    world, agent = world_file(tmp_path), agent_file(tmp_path)
    fly(tmp_path, world, agent, "--goals", str(goals), "--instruct", "at the barrel")
    named = agent_file(tmp_path, ('goals = {"go', 'goals = "goals.yaml"\nunused = {"go'), name="named.py")
    fly(tmp_path, world, named, "--instruct", "at the red box", out="named")
    capsys.readouterr()
    run = ("run", "--env", world, "--model", "expert", "--agent", agent, "--goals")
    assert "does not know what 'find the barrel' asks for" in refused(
        capsys, *run, str(goals), "--instruct", "find the barrel"
    )
    for text, says in (
        ("goals: [", "goals.yaml:1 cannot be read"),
        ("aims: {}", "unknown tables (aims)"),
        ("goals:\n  go: []\n  'go to {x}': []", 'goals.yaml:3: "go to {x}": nothing is listed for {x}'),
        ("placeholders: {x: [a]}", "no table of goals"),
    ):
        goals.write_text(text)
        assert says in refused(capsys, *run, str(goals))
    assert "no such file" in refused(capsys, *run, str(tmp_path / "none.yaml"))
    assert "the agent lander has its own" in refused(capsys, "run", "--env", "lander", "--goals", str(goals))


@pytest.mark.parametrize(
    ("world", "agent", "says"),
    [
        ((), (("goals = {", "unused = {"),), "its expert has no goals"),
        ((), (("def expert", "def unused"),), "is known here"),
        ((), (("x, y = data", "x, y = nothing, data"),), "NameError: name 'nothing' is not defined, yard_agent.py:16"),
        ((), (("x, y = data", "return Call('drive', {'way': 'up'})\n    x, y = data"),), "yard_agent.py:15: told"),
        ((), (("x, y = data", "return 3\n    x, y = data"),), "no call: return Call("),
        ((), (("tools = [", "unused = ["),), "no tools to make one of"),
        ((), (('Call("drive", {"way": "stop"})', '{"way": "stop"}'),), "its `fallback` is no call"),
        ((("self.step_s = 0.05", "pass"),), (), "has no step_s"),
        ((("self.step_s = 0.05", "self.step_s = 0"),), (), "step_s = 0"),
        ((("def judge_by", "def told"),), (), "has no instruct (or judge_by)"),
        ((("def outcome", "def ended"),), (), "has no outcome"),
        ((("return {name: [x", "return [[x"), ("items()}", "items()]")), (), "yard.py:24: Yard.observe() gave list"),
        ((("rng = random.Random", "rng = randomness.Random"),), (), "yard.py:12"),
        ((('goal["thing"]', 'goal["place"]'),), (), "KeyError: 'place', yard.py:9"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_own_files_is_told_before_anything_runs(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    world: tuple[tuple[str, str], ...],
    agent: tuple[tuple[str, str], ...],
    says: str,
) -> None:
    files = ("--env", world_file(tmp_path, *world), "--agent", agent_file(tmp_path, *agent))
    said = refused(capsys, "run", *files, "--model", "expert", *COMMON, "--out", str(tmp_path / "out"))
    assert says in said and not (tmp_path / "out").exists(), said


@pytest.mark.parametrize(
    ("change", "says", "status"),
    [
        (("return True", "return 1"), "outcome() gave 1. Return None while", 1),
        # No step can be made with the safe call.
        (("self.ticks += 1", "self.ticks += 1\n        assert self.ticks < 30, 'worn'"), "worn (yard.py:21)", UNSAFE),
        (("self.ticks += 1", "self.ticks += 1; self.ticks < 30 or exit()"), "SystemExit: None (yard.py:20)", UNSAFE),
    ],
)
def test_a_world_that_fails_in_flight_ends_the_run_as_the_users_and_keeps_the_record(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    change: tuple[str, str],
    says: str,
    status: int,
) -> None:
    monkeypatch.setattr("rtcontrol.loop.loop.LEAVE_S", 0.5)
    made = fly(tmp_path, world_file(tmp_path, change), agent_file(tmp_path), status=status)
    said = capsys.readouterr()
    assert made["ended_by"] == "error" and made["ticks"] > 0
    assert says in said.err and "Internal error" not in said.err and "Traceback" not in said.err


def test_an_expert_that_fails_in_flight_costs_its_ticks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    late = ("x, y = data", "assert data['barrel'][0] == DATA, 'tired'\n    x, y = data")
    first = skill_of(world_file(tmp_path), agent_file(tmp_path)).make()
    first.reset(0)
    agent = agent_file(tmp_path, late, ("DATA", str(first.observe()["barrel"][0])), name="tired.py")
    made = fly(tmp_path, world_file(tmp_path), agent, "--duration", "2", "--instruct", "find the red box", status=8)
    assert made["misses_by_cause"]["decide"] > 5 and made["ended_by"] == "duration"
    said = capsys.readouterr().err
    assert said.count("AssertionError: tired, tired.py:") == 2  # when it began, and in the last line
    last = said.splitlines()[-1]
    assert last.startswith(f"ERRORS: {made['misses_by_cause']['decide']} of {made['ticks']} ticks ended in one")
    good = agent_file(tmp_path)
    fly(tmp_path, world_file(tmp_path), good, "--duration", "2", "--instruct", "find the red box", out="good")
    replayed = ("replay", str(tmp_path / "good"), "--agent", agent, "--model", "expert", "--diff")
    assert call(*replayed) == 8
    again = capsys.readouterr()
    assert again.err.splitlines()[-1].startswith("ERRORS: ")


def test_an_observation_that_cannot_be_worded_and_an_illegal_call_end_with_a_status_and_the_users_own_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = skill_of(world_file(tmp_path), agent_file(tmp_path)).make()
    first.reset(0)
    begins = f"if data['barrel'][0] != {first.observe()['barrel'][0]}:\n        "
    illegal = ("x, y = data", f'{begins}return Call("drive", {{"way": "up"}})\n    x, y = data')
    agent = agent_file(tmp_path, illegal, name="wrong.py")
    line = next(n for n, text in enumerate(Path(agent).read_text().splitlines(), 1) if "def expert" in text)
    told = ("--duration", "2", "--instruct", "find the red box")
    made = fly(tmp_path, world_file(tmp_path), agent, *told, status=8)
    assert made["errors"][0]["error"].startswith(f"ExpertError: wrong.py:{line}: told")
    assert f"wrong.py:{line}: " in capsys.readouterr().err.splitlines()[-1]
    unworded = ("def observe(data):\n", f"def observe(data):\n    {begins}raise KeyError('x')\n")
    blind = agent_file(tmp_path, unworded, name="blind.py")
    made = fly(tmp_path, world_file(tmp_path), blind, *told, out="blind", status=8)
    assert made["misses_by_subcause"]["no_observation.unreadable"] > 5
    assert "blind.py:" in capsys.readouterr().err.splitlines()[-1]


def test_a_skill_of_ones_own_is_scored_beside_its_floors(tmp_path: Path) -> None:
    skill = skill_of(world_file(tmp_path), agent_file(tmp_path))
    assert isinstance(skill, UserSkill)
    told, rng = [case for goal in skill.goals for case in cases(goal, range(4))], random.Random(0)
    assert summary(evaluate(skill, skill.expert_policy, told))["successes"] == 12
    assert summary(evaluate(skill, lambda seen: [skill.still] * len(seen), told))["successes"] == 0
    assert summary(evaluate(skill, lambda seen: [skill.any_call(rng) for _ in seen], told))["successes"] < 6
    other = [case for i in range(4) for case in cases(skill.recognise("find the barrel"), [i], "visit red box")]
    assert summary(evaluate(skill, skill.expert_policy, other))["successes"] < 4
    assert {goal.text() for goal in skill.goals} == {
        f"go to the {thing}" for thing in ("red box", "blue box", "barrel")
    }
    [(said, meant), *_] = skill.phrasings["unseen"](skill.kinds[0])
    assert said != meant.text() and skill.recognise(said) == meant


TUG = '''
"""A tug between two barges: world and agent in one file."""
import random
import numpy
from rtcontrol import Call

class Tug:
    step_s = 0.1
    def judge_by(self, goal): self.goal = goal
    def reset(self, seed):
        rng = random.Random(seed)
        self.x, self.v, self.left_s = 0.0, 0, 20.0
        self.barges = {"north": rng.uniform(3, 8), "south": rng.uniform(-8, -3)}
    def pull(self, way, hard): self.v = {"up": 1, "down": -1, "none": 0}[way] * (1 + hard)
    def horn(self): pass
    def step(self):
        self.x += self.v * self.step_s
        self.left_s -= self.step_s
    def observe(self):
        return {name: y - self.x for name, y in self.barges.items()}
    def outcome(self):
        return True if abs(self.observe()[self.goal["barge"]]) < 0.5 else False if self.left_s <= 0 else None

WAY = {"way": {"enum": ["up", "down", "none"]}, "hard": {"type": "boolean"}}
tools = [{"name": "pull", "parameters": {"properties": WAY, "required": [*WAY]}}, {"name": "horn"}]
fallback = Call("pull", {"way": "none", "hard": False})
goals = {"go to the {barge} barge": ["head for {barge}"], "push the {barge} barge": ["shove {barge}"]}
placeholders = {"barge": ["north", "south"]}

def observe(data):
    return " ".join(f"{name} {round(y)}" for name, y in data.items())

def expert(data, goal):
    far = data[goal["barge"]]
    return Call("pull", {"way": "up" if far > 0 else "down", "hard": abs(far) > 2})
'''


def checked(folder: Path, *changes: tuple[str, str], name: str = "tug.py", steps: int = 200) -> WorldCheck:
    (folder / name).write_text(changed(*changes))
    return check(str(folder / name), steps=steps, seed=0)


def changed(*changes: tuple[str, str]) -> str:
    text = TUG
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def test_a_file_that_is_world_and_agent_is_checked_and_flown_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tug.py").write_text(TUG)
    assert call("check", str(tmp_path / "tug.py")) == 0
    said = capsys.readouterr().out
    assert "its expert played 12 of 12 episodes to their end (12 succeeded)" in said
    assert said.endswith("tug.py: nothing found wrong\n") and "200 random calls, in which " in said
    assert assembly.agent(assembly.default_agent(str(tmp_path / "tug.py"))).name == "tug"


FAR = '    far = data[goal["barge"]]\n'
ANCHOR = '    if {when}: return Call("anchor")\n'


@pytest.mark.parametrize(
    "when", ["goal['barge'] == 'south' and 'push' in goal.kind", "abs(far) < 1"], ids=["one goal", "near the end"]
)
def test_an_expert_that_is_wrong_for_one_goal_or_only_later_is_found_once(tmp_path: Path, when: str) -> None:
    (wrong,) = checked(tmp_path, (FAR, FAR + ANCHOR.format(when=when)), steps=1000).wrong
    assert "unknown tool 'anchor'; the tools are pull, horn" in str(wrong)
    assert f"tug.py:{TUG[: TUG.index(FAR)].count(chr(10))}: told" in str(wrong)


SIGNATURES = {
    "reset": (("def reset(self, seed)", "def reset(self)"), "Tug.reset() takes nothing, and is given (seed)."),
    "step": (("def step(self)", "def step(self, dt)"), "Tug.step() takes (dt), and is given nothing."),
    "judge_by": (
        ("self, goal): self.goal = goal", "self): pass"),
        "judge_by() takes nothing, and is given (goal).",
    ),
    "async": (("    def step(self)", "    async def step(self)"), "Tug.step() is async, and nobody awaits it."),
    "tool": (("    def horn", "    async def horn"), "the environment's function is async, and nobody awaits it."),
    "expert": (("def expert(data, goal)", "def expert(data)"), "expert() takes (data), and is given (data, goal)."),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_function_that_does_not_take_what_it_is_given_is_told_by_its_own_line(tmp_path: Path, name: str) -> None:
    change, told = SIGNATURES[name]
    (wrong,) = checked(tmp_path, change).wrong
    begins = change[1].strip()[:16]
    line = next(n for n, text in enumerate(changed(change).splitlines(), 1) if begins in text)
    assert told in str(wrong) and f"tug.py:{line}: " in str(wrong), wrong
    assert "rtcontrol" not in str(wrong).replace(str(tmp_path), "") and "Write " in wrong.remedy


def test_an_episode_that_does_not_end_is_told(tmp_path: Path) -> None:
    (one,) = checked(tmp_path, (" else False if self.left_s <= 0 else None", " and 0 else None")).wrong
    assert "the expert's episode of seed 0 has not ended after 300 s" in str(one)
    assert "fit and score need each episode to end" in str(one)


WORDS = 'f"{name} {round(y)}" for name, y in data.items()'
SEEN = "return {name: y - self.x for name, y in self.barges.items()}"


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ("float('nan')", "nan as wind"),
        ("[1.0, float('inf')]", "inf as wind[1]"),
        ("numpy.float32('nan') if self.left_s < 15 else 1.0", "nan as wind"),
    ],
)
def test_what_is_no_number_is_told_as_the_worlds(tmp_path: Path, value: str, place: str) -> None:
    seen = (SEEN, f"{SEEN} | {{'wind': {value}}}")
    reads = (WORDS, '"" for _ in [round(float(numpy.sum(list(flat(data)))))]')
    part = "flat(y) if isinstance(y, (dict, list, tuple, numpy.ndarray)) else [y]"
    of = "x.values() if isinstance(x, dict) else numpy.ravel(x)"
    flat = ("def expert(", f"def flat(x):\n    for y in {of}: yield from {part}\n\ndef expert(")
    (wrong,) = checked(tmp_path, seen, reads, flat).wrong
    assert f"what observe() gave holds {place}, and the agent tug cannot read it" in str(wrong), wrong
    assert "Give a finite number there" in wrong.remedy
    plain = checked(tmp_path, seen, ("def observe(data)", "def unused(data)"), name="plain.py").wrong
    assert f"what observe() gave holds {place}." in str(plain[0])
