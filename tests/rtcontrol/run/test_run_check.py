"""What a newcomer's own world and agent have wrong is found by the check, and blamed on the line that has it."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import call

import rtcontrol
from rtcontrol.envs.user_world import UserWorld
from rtcontrol.models.errors import UserError
from rtcontrol.run import assembly
from rtcontrol.run.world_check import WorldCheck, check

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
    assert "asked about 4 of 4 goals from 3 seeds, and flew 12 of 12 episodes to their end (12 succeeded)" in said
    assert said.endswith("tug.py: nothing found wrong\n") and "200 random calls, in which " in said
    assert assembly.agent(assembly.default_agent(str(tmp_path / "tug.py"))).name == "tug"


FAR = '    far = data[goal["barge"]]\n'
ANCHOR = '    if {when}: return Call("anchor")\n'


@pytest.mark.parametrize(
    "when",
    ["goal['barge'] == 'south' and 'push' in goal.kind", "abs(far) < 1", "far > 7.4", "abs(far) > 8.2"],
    ids=["one goal", "near the end", "another seed", "only where random calls lead"],
)
def test_an_expert_that_is_wrong_for_one_goal_or_only_later_is_found_once(tmp_path: Path, when: str) -> None:
    (wrong,) = checked(tmp_path, (FAR, FAR + ANCHOR.format(when=when)), steps=1000).wrong
    assert "unknown tool 'anchor'; the tools are pull, horn" in str(wrong)
    assert f"tug.py:{TUG[: TUG.index(FAR)].count(chr(10)) + 2}: told" in str(wrong)


def test_a_mistake_in_the_goals_is_told_alone(tmp_path: Path) -> None:
    """Not beside an outcome() that fails as nobody could tell it a goal."""
    found = checked(tmp_path, ("shove {barge}", "shove {boat}"))
    assert ["nothing is listed for {boat}" in str(wrong) for wrong in found.wrong] == [True]
    assert "not played, as nobody can tell it a goal: correct its agent first" in found.note


def test_a_world_that_goes_by_a_goal_is_not_blamed_where_no_agent_tells_one(tmp_path: Path) -> None:
    (tmp_path / "world.py").write_text(TUG[: TUG.index("WAY = ")])
    found = check(str(tmp_path / "world.py"), steps=50, seed=0)
    assert found.wrong == [] and "give its agent, --agent FILE.py" in found.note


SIGNATURES = {
    "reset": (("def reset(self, seed)", "def reset(self)"), "Tug.reset() takes nothing, and is given (seed)."),
    "keywords": (
        ("def reset(self, seed)", "def reset(self, *, seed=None)"),
        "Tug.reset() takes (*, seed=None), and is given (seed).",
    ),
    "step": (("def step(self)", "def step(self, dt)"), "Tug.step() takes (dt), and is given nothing."),
    "seen": (("def observe(self)", "def observe()"), "Tug.observe() takes nothing, and is given (self)."),
    "outcome": (("def outcome(self)", "def outcome(self, goal)"), "Tug.outcome() takes (goal), and is given nothing."),
    "judge_by": (
        ("self, goal): self.goal = goal", "self): pass"),
        "judge_by() takes nothing, and is given (goal).",
    ),
    "close": (("    def horn", "    def close(self, port): pass\n    def horn"), "takes (port), and is given nothing."),
    "made": (
        ("    step_s", "    def __init__(self, port, baud=9600): pass\n    step_s"),
        "(port, baud=9600), and is given nothing",
    ),
    "async": (("    def step(self)", "    async def step(self)"), "Tug.step() is async, and nobody awaits it."),
    "yields": (("self.left_s -= self.step_s", "yield"), "Tug.step() has a yield, and nobody goes through it."),
    "tool": (("    def horn", "    async def horn"), "the environment's function is async, and nobody awaits it."),
    "expert": (("def expert(data, goal)", "def expert(data)"), "expert() takes (data), and is given (data, goal)."),
    "worded": (("def observe(data)", "def observe(data, goal)"), "observe() takes (data, goal), and is given (data)."),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_function_that_does_not_take_what_it_is_given_is_told_by_its_own_line(tmp_path: Path, name: str) -> None:
    change, told = SIGNATURES[name]
    (wrong,) = checked(tmp_path, change).wrong
    begins = "def step(" if name == "yields" else change[1].strip()[:16]
    line = next(n for n, text in enumerate(changed(change).splitlines(), 1) if begins in text)
    assert told in str(wrong) and f"tug.py:{line}: " in str(wrong), wrong
    assert "rtcontrol" not in str(wrong).replace(str(tmp_path), "") and "Write " in wrong.remedy


def test_signatures_are_looked_at_wherever_a_world_or_an_agent_is_made() -> None:
    class Bare:
        step_s, instruct = 0.1, print

        def reset(self) -> None: ...
        def step(self, dt: float) -> None: ...
        def observe(self) -> dict[str, int]: ...  # type: ignore[empty-body]
        def outcome(self) -> None: ...

    with pytest.raises(UserError, match=r"reset\(\) takes nothing.*step\(\) takes \(dt: "):
        UserWorld(Bare(), "bare")
    agent = assembly.agent("paddle")
    with pytest.raises(UserError, match=r"test_run_check\.py:\d+: .*<lambda>\(\) takes nothing, and is given \(data\)"):
        rtcontrol.agents.Agent(agent.name, "", agent.tools, lambda: "", "play", agent.fallback, "")  # type: ignore[misc]


ENDLESS = (" else False if self.left_s <= 0 else None", " else None")


def test_an_episode_that_only_success_ends_is_told(tmp_path: Path) -> None:
    (wrong,) = checked(tmp_path, ENDLESS).wrong
    assert 'an episode of pull(way="none", hard=false) alone has not ended after 300 s of its own time' in str(wrong)
    one, two = checked(tmp_path, (ENDLESS[0], " and 0 else None"), name="never.py").wrong
    assert "flown by the expert, the episode of seed 0 has not ended after 300 s" in str(one)
    assert "fit and score need each episode to end" in str(one) and "alone has not ended" in str(two)


def test_what_may_be_meant_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An endless world without an expert, and turns of 50 s."""
    text = changed(ENDLESS, ("step_s = 0.1", "step_s = 50"), ("def expert(", "def unused("))
    (tmp_path / "turns.py").write_text(text)
    assert call("check", str(tmp_path / "turns.py")) == 0
    out = capsys.readouterr().out
    assert "warning: The world " in out and "step_s = 50, the seconds of one step()" in out and "--hz 0.02" in out
    assert "has not ended after 300 s" in out and out.endswith("nothing found wrong\n")
    with pytest.warns(UserWarning, match="step_s = 50"):
        assert rtcontrol.check_world(str(tmp_path / "turns.py"), steps=5) == []


WORDS = 'f"{name} {round(y)}" for name, y in data.items()'
SEEN = "return {name: y - self.x for name, y in self.barges.items()}"


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ("float('nan')", "nan as wind"),
        ("[1.0, float('inf')]", "inf as wind[1]"),
        ("{'from': (0, float('-inf'))}", "-inf as wind.from[1]"),
        ("numpy.array([[1, 2], [3, numpy.nan]], numpy.float32)", "nan as wind[1, 1]"),
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
    words = (WORDS, '"far" for _ in data')
    read = checked(tmp_path, seen, words, name="read.py")
    assert read.wrong == [] and f"holds {place}, which the agent read reads" in read.may[0]
    plain = checked(tmp_path, seen, ("def observe(data)", "def unused(data)"), name="plain.py").wrong
    if "numpy.array" not in value:  # which the words of an agent without an observe leave out
        assert f"what observe() gave holds {place}." in str(plain[0])
