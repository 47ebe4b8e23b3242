"""A controller is fitted in a world of one's own, played there, and what failed is told."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rtcontrol
from rtcontrol.cli.app import main
from rtcontrol.evaluation.phrasings import MOST
from rtcontrol.evaluation.score_plan import PHRASING_SEED
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.rows import Row
from rtcontrol.run.skills import UserSkill, skill_of
from rtcontrol.training import world_rows
from rtcontrol.training.world_rows import WorldLesson, WorldRows, lessons_of
from tests.rtcontrol.run.yard import agent_file, world_file

STILL = Call("drive", {"way": "stop"})


@pytest.fixture(autouse=True)
def few_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_rows, "WORLDS", 8)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less of everything that a fit looks at beside its training."""
    for name, value in (("SAMPLE", 512), ("HELD_ROWS", 64), ("HELD_WORLDS", 4)):
        monkeypatch.setattr(world_rows, name, value)


def yard(folder: Path, *changes: tuple[str, str]) -> UserSkill:
    skill = skill_of(world_file(folder), agent_file(folder, *changes))
    assert isinstance(skill, UserSkill)
    return skill


def test_each_row_is_what_the_expert_calls_for_what_is_seen_and_told(tmp_path: Path) -> None:
    skill = yard(tmp_path)
    told = set()
    for row in itertools.islice(WorldRows(skill, 16.0).rows(random.Random(0)), 800):
        if row.meant:
            told.add(row.instruction)
            goal = skill.recognise(row.meant)
            x, y = skill.read_back(row.observation)[goal["thing"]]  # type: ignore[misc]
            right = ("east" if x > 0 else "west") if abs(x) > abs(y) else "north" if y > 0 else "south" if y else "stop"
            assert row.call == Call("drive", {"way": right}) and row.history == () and row.quotes
    assert not any(said.startswith("at ") for said in told)  # the fifth way
    assert {"go to the barrel", "find the red box", "visit blue box"} <= told


def test_some_rows_are_told_nothing_that_this_world_knows(small: None, tmp_path: Path) -> None:
    skill = yard(tmp_path)
    rows = list(itertools.islice(WorldRows(skill, 16.0).rows(random.Random(0)), 2_000))
    unheard = [row for row in rows if row.meant == ""]
    assert 0.04 < len(unheard) / len(rows) < 0.12 and not any(row.call for row in unheard)
    held = set(lessons_of(skill, 16.0, 0).unheard)
    assert len(held) > 100 and held.isdisjoint(row.instruction for row in rows)
    for said in {*held, *(row.instruction for row in unheard)}:
        assert skill.recognise(said) is None
    assert not any(word in said.lower().split() for said in held for word in ("red", "blue", "box", "barrel", "visit"))


def test_the_same_worlds_go_on_from_the_first_row_to_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_rows, "WORLDS", 4)
    skill, made = yard(tmp_path), []
    make = skill.make
    object.__setattr__(skill, "make", lambda: made.append(1) or make())
    rows = list(itertools.islice(WorldRows(skill, 16.0).rows(random.Random(0)), 2_000))
    assert len(made) == 4 and len({row.observation for row in rows}) > 400


def test_held_out_rows_are_of_seeds_that_are_never_trained_on(small: None, tmp_path: Path) -> None:
    skill = yard(tmp_path)
    lessons = lessons_of(skill, 16.0, 0)
    assert len(lessons.held) == world_rows.HELD_ROWS and lessons.count is None
    assert lessons.notes == ()
    seeds: list[int] = []
    for held in (False, True):
        lesson = WorldLesson(skill, random.Random(0), 16.0, held)
        lesson._world.reset = seeds.append  # type: ignore[method-assign]
        lesson._begin()
    # Those of `rtcontrol score` are below all of them.
    assert PHRASING_SEED + MOST < world_rows.TRAINED <= seeds[0] < world_rows.HELD <= seeds[1]


def test_the_learner_flies_where_it_is_let_and_the_expert_still_labels(tmp_path: Path) -> None:
    skill = yard(tmp_path, ("fallback", "history = 2\nfallback"))
    stream = WorldRows(skill, 16.0)
    asked: list[Row] = []

    def answers(rows: list[Row]) -> list[Call]:
        asked.extend(rows)
        return [STILL] * len(rows)

    run = SimpleNamespace(seconds=0.0, ends=100.0)
    stream.begin(SimpleNamespace(answers=answers, key=repr), run)  # type: ignore[arg-type]
    rows = stream.rows(random.Random(0))
    list(itertools.islice(rows, 1_000))
    assert not asked
    run.seconds = 50.0
    after = list(itertools.islice(rows, 3_000))
    still = sum(row.history == (STILL.text(), STILL.text()) for row in after)
    assert 0.1 < still / len(after) < 0.6 and len(asked) > 500
    assert sum(row.call == STILL for row in after) / len(after) < 0.1


def test_what_is_fitted_is_a_model_of_its_world(
    small: None, fast_clock: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world, agent, out = world_file(tmp_path), agent_file(tmp_path), tmp_path / "made"
    arguments = ("fit", "--env", world, "--agent", agent, "--out", str(out), "--minutes", "0.02", "--hz", "8")
    monkeypatch.setattr("sys.argv", ["rtcontrol", *arguments, "--json", str(tmp_path / "made.json")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0, capsys.readouterr().err
    told = json.loads((tmp_path / "made.json").read_text())
    assert told["held_out"]["count"] == 64
    learnt = TrainingMetadata.of(out)
    assert learnt is not None and learnt.rate_hz == 8.0 and learnt.instruction == "go to the red box"
    assert learnt.allow_null and learnt.gate is not None and 0.0 <= learnt.gate <= 1.0
    card = (out / "README.md").read_text()
    assert "What means nothing here it leaves undone, at a gate of " in card
    decided = rtcontrol.load(str(out)).session().decide("red box 3 0 blue box -2 5 barrel 1 1", "find the barrel")
    assert decided.call is not None and decided.call.name == "drive"


def test_a_world_that_fails_while_it_is_learnt_keeps_what_was_done(
    small: None, fast_clock: None, tmp_path: Path
) -> None:
    # It fails in the learner's worlds, some time after the first look.
    tired = ("self.ticks += 1", "self.ticks += 1\n        assert not (TIRED and random.random() < 0.01), 'tired'")
    world = world_file(tmp_path, tired, ("import random", "import random\nTIRED = False"))
    given: dict[str, Any] = {"env": world, "agent": agent_file(tmp_path), "out": tmp_path / "made", "minutes": 1}

    state = skill_of(world, given["agent"]).make()._world._made.step.__globals__  # type: ignore[attr-defined]

    def tire(line: dict[str, Any]) -> None:
        state["TIRED"] = True

    with pytest.raises(UserError, match=r"The world .*yard.py: step\(\) raised AssertionError: tired, .*yard.py:\d+"):
        rtcontrol.fit(**given, tell=tire)
    assert (tmp_path / "made" / "training" / "state.pt").is_file() and not (tmp_path / "made" / "config.json").exists()
    # What was learnt of another expert is not gone on with.
    state["TIRED"] = False
    agent_file(tmp_path, ("abs(x) > abs(y)", "abs(x) >= abs(y)"))
    with pytest.raises(UserError, match=r"another configuration.*files.*yard_agent\.py"):
        rtcontrol.fit(**given)


@pytest.mark.parametrize(
    ("world", "agent", "says"),
    [
        ((), (("def expert", "def unused"),), "has goals and no expert"),
        ((), (("x, y = data", "return 3\n    x, y = data"),), "the expert gave 3, no call"),
    ],
)
def test_what_cannot_be_learnt_is_told_before_anything_is(
    tmp_path: Path, world: tuple[tuple[str, str], ...], agent: tuple[tuple[str, str], ...], says: str
) -> None:
    files = {"env": world_file(tmp_path, *world), "agent": agent_file(tmp_path, *agent)}
    with pytest.raises(UserError) as raised:
        rtcontrol.fit(**files, out=tmp_path / "made", minutes=1)  # type: ignore[arg-type]
    assert says in str(raised.value) and not (tmp_path / "made").exists()


def test_situations_that_read_alike_and_ask_for_other_calls_are_told(small: None, tmp_path: Path) -> None:
    (*_, note) = lessons_of(yard(tmp_path, ("{data[name][0]}", "{data[name][0] // 9}")), 16.0, 0).notes
    assert 'told "' in note and "tell the states apart in the observation" in note


def test_rows_and_worlds_exclude_each_other(tmp_path: Path) -> None:
    for given in ({}, {"rows": [], "env": "a.py"}, {"rows": [], "agent": "a.py"}, {"env": "lander"}):
        with pytest.raises(UserError):
            rtcontrol.fit(**given, out=tmp_path / "made")  # type: ignore[arg-type]
    assert not (tmp_path / "made").exists()


def test_the_same_situation_is_also_told_other_goals(tmp_path: Path) -> None:
    lesson = WorldLesson(skill := yard(tmp_path), random.Random(1), 16.0)
    seen = lesson.moment()
    rows = [lesson.otherwise(seen) for _ in range(30)]
    assert {row.observation for row in rows} == {seen.row.observation} and len({row.instruction for row in rows}) > 5
    for row in rows:
        assert row.meant is not None
        assert [row.call] == skill.expert_policy([(row.meant, row.observation)])


def test_what_an_episode_asks_for_once_is_not_lost_among_what_it_asks_for_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The yard's `stop` ends its episode: one tick of a hundred asks for it.
    monkeypatch.setattr(world_rows, "WORLDS", 64)
    monkeypatch.setattr(world_rows, "HELD_WORLDS", 4)
    skill, counted = yard(tmp_path), []
    for share in (0.0, world_rows.REHEARSED):
        monkeypatch.setattr(world_rows, "REHEARSED", share)
        rows = list(itertools.islice(WorldRows(skill, 16.0).rows(random.Random(0)), 4_000))
        counted.append(sum(row.call == STILL for row in rows if row.meant))
    assert counted[1] > 3 * counted[0]
    held = [row.call for seed in range(2) for row in world_rows._held_out(skill, 16.0, seed)]
    assert held.count(STILL) >= 2  # of some ten in 100,000 ticks


def test_what_the_learner_gets_wrong_in_its_own_flights_is_rehearsed(tmp_path: Path) -> None:
    stream = WorldRows(yard(tmp_path), 16.0)
    kept: list[tuple[str, ...]] = []
    rehearsal = SimpleNamespace(add=lambda moment, *more: kept.append((moment.row.call.arguments["way"], *more)))
    lessons = [WorldLesson(stream._skill, random.Random(i), 16.0) for i in range(64)]
    moments = [lesson.moment() for lesson in lessons]
    for lesson in lessons:
        lesson.flown = True
    east = Call("drive", {"way": "east"})
    stream.begin(SimpleNamespace(answers=lambda rows: [east] * len(rows), key=repr), SimpleNamespace())  # type: ignore[arg-type]
    stream._calls(lessons, moments, rehearsal, random.Random(0))  # type: ignore[arg-type]
    assert len(kept) > 10
    assert all(entry[1:] == ("missed",) and entry[0] != "east" for entry in kept)


@pytest.mark.parametrize("hz", [1.0, 200.0])
def test_what_is_held_out_is_of_whole_episodes_at_any_rate(tmp_path: Path, hz: float) -> None:
    # Things that come into sight late, at 400 ticks of 0.05 s: 12 s on.
    late = (
        "for name, (x, y) in self.things",
        "for name, (x, y) in (self.things if self.ticks > 240 else dict.fromkeys(self.things, (99, 99))).items()",
    )
    world = world_file(tmp_path, ("for name, (x, y) in self.things.items()", late[1]))
    skill = skill_of(world, agent_file(tmp_path))
    assert isinstance(skill, UserSkill)
    rows = world_rows._held_out(skill, hz, 0)
    assert len(rows) == world_rows.HELD_ROWS
    assert sum("99" not in row.observation for row in rows) > 20
