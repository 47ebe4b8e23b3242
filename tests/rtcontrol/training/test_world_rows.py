"""Controllers that are fitted in a user's world, errors of that world, and the gate for meaningless sentences."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rtcontrol
from rtcontrol.agents.phrasing import normalised
from rtcontrol.envs.lander.skill import SKILL as LANDER
from rtcontrol.envs.paddle.skill import SKILL as PADDLE
from rtcontrol.envs.road.skill import SKILL as ROAD
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.data.row import Row
from rtcontrol.models.errors import UserError
from rtcontrol.run.skills import UserSkill, skill_of
from rtcontrol.score.score import MOST, PHRASING_SEED
from rtcontrol.training import world_rows
from rtcontrol.training.gate import (
    HELD,
    SPARED,
    WORLDS,
    Nonsense,
    function_confidence,
    gate_from_confidences,
    with_nonsense,
)
from rtcontrol.training.world_rows import WorldCurriculum, WorldRows, world_data
from tests.rtcontrol.commands import call
from tests.rtcontrol.run.yard import agent_file, world_file

STILL = Call("drive", {"way": "stop"})


@pytest.fixture(autouse=True)
def few_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_rows, "WORLDS", 8)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the amount of samples and held-out rows of a fit."""
    for name, value in (("SAMPLE", 512), ("HELD_ROWS", 64), ("HELD_WORLDS", 4)):
        monkeypatch.setattr(world_rows, name, value)


def yard(folder: Path, *changes: tuple[str, str]) -> UserSkill:
    skill = skill_of(world_file(folder), agent_file(folder, *changes))
    assert isinstance(skill, UserSkill)
    return skill


def test_each_row_has_the_experts_call(tmp_path: Path) -> None:
    skill = yard(tmp_path)
    told = set()
    for row in itertools.islice(WorldRows(skill, 16.0).rows(random.Random(0)), 800):
        if row.meant:
            told.add(row.instruction)
            goal = skill.recognise(row.meant)
            x, y = skill.parse_observation(row.observation)[goal["thing"]]  # type: ignore[misc]
            right = ("east" if x > 0 else "west") if abs(x) > abs(y) else "north" if y > 0 else "south" if y else "stop"
            assert row.call == Call("drive", {"way": right}) and row.history == () and row.quotes
    assert not any(said.startswith("at ") for said in told)  # the fifth way
    assert {"go to the barrel", "find the red box", "visit blue box"} <= told


def test_some_rows_have_meaningless_instructions(small: None, tmp_path: Path) -> None:
    skill = yard(tmp_path)
    rows = list(itertools.islice(WorldRows(skill, 16.0).rows(random.Random(0)), 2_000))
    unheard = [row for row in rows if row.meant == ""]
    assert 0.04 < len(unheard) / len(rows) < 0.12 and not any(row.call for row in unheard)
    held = set(world_data(skill, 16.0, 0).nonsense)
    assert len(held) > 100 and held.isdisjoint(row.instruction for row in rows)
    for said in {*held, *(row.instruction for row in unheard)}:
        assert skill.recognise(said) is None
    assert not any(word in said.lower().split() for said in held for word in ("red", "blue", "box", "barrel", "visit"))


def test_held_out_seeds_are_never_trained_on(small: None, tmp_path: Path) -> None:
    skill = yard(tmp_path)
    data = world_data(skill, 16.0, 0)
    assert len(data.held) == world_rows.HELD_ROWS and data.count is None
    assert data.notes == ()
    seeds: list[int] = []
    for held in (False, True):
        world = WorldCurriculum(skill, random.Random(0), 16.0, held)
        world._world.reset = seeds.append  # type: ignore[method-assign]
        world._start_episode()
    # Those of `rtcontrol score` are below all of them.
    assert PHRASING_SEED + MOST < world_rows.TRAINED <= seeds[0] < world_rows.HELD <= seeds[1]


def test_learner_plays_and_the_expert_labels(tmp_path: Path) -> None:
    skill = yard(tmp_path, ("fallback", "history = 2\nfallback"))
    stream = WorldRows(skill, 16.0)
    asked: list[Row] = []

    def answers(rows: list[Row]) -> list[Call]:
        asked.extend(rows)
        return [STILL] * len(rows)

    done = [0.0]
    run = SimpleNamespace(share_done=lambda: done[0])
    stream.start(SimpleNamespace(answers=answers, key=repr), run)  # type: ignore[arg-type]
    rows = stream.rows(random.Random(0))
    list(itertools.islice(rows, 1_000))
    assert not asked
    done[0] = 0.5
    after = list(itertools.islice(rows, 3_000))
    still = sum(row.history == (STILL.text(), STILL.text()) for row in after)
    assert 0.1 < still / len(after) < 0.6 and len(asked) > 500
    assert sum(row.call == STILL for row in after) / len(after) < 0.1


def test_fitted_model_knows_its_world(small: None, fast_clock: None, tmp_path: Path) -> None:
    world, agent, out = world_file(tmp_path), agent_file(tmp_path), tmp_path / "made"
    arguments = ("fit", "--env", world, "--agent", agent, "--out", str(out), "--minutes", "0.02", "--set", "fit.hz=8")
    assert call(*arguments, "--json", str(tmp_path / "made.json")) == 0
    told = json.loads((tmp_path / "made.json").read_text())
    assert told["held_out"]["count"] == 64
    learnt = TrainingMetadata.load(out)
    assert learnt is not None and learnt.rate_hz == 8.0 and learnt.instruction == "go to the red box"
    assert learnt.allow_null and learnt.gate is not None and 0.0 <= learnt.gate <= 1.0
    card = (out / "README.md").read_text()
    assert "The model holds meaningless instructions, by a confidence gate of " in card
    decided = rtcontrol.load(str(out)).session().decide("red box 3 0 blue box -2 5 barrel 1 1", "find the barrel")
    assert decided.call is not None and decided.call.name == "drive"


def test_failing_world_keeps_the_training(small: None, fast_clock: None, tmp_path: Path) -> None:
    # It fails in the learner's worlds, some time after the first look.
    tired = ("self.ticks += 1", "self.ticks += 1\n        assert not (TIRED and random.random() < 0.01), 'tired'")
    world = world_file(tmp_path, tired, ("import random", "import random\nTIRED = False"))
    given: dict[str, Any] = {"env": world, "agent": agent_file(tmp_path), "out": tmp_path / "made", "minutes": 1}

    state = skill_of(world, given["agent"]).make()._world._world.step.__globals__  # type: ignore[attr-defined]

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


def test_ambiguous_observations_are_noted(small: None, tmp_path: Path) -> None:
    (*_, note) = world_data(yard(tmp_path, ("{data[name][0]}", "{data[name][0] // 9}")), 16.0, 0).notes
    assert 'instruction "' in note and "make the observations of different states different" in note


SKILLS = {"lander": LANDER, "paddle": PADDLE, "road": ROAD}
of_each = pytest.mark.parametrize("name", SKILLS)


@of_each
def test_nonsense_names_no_goal(name: str) -> None:
    rng, skill, draw = random.Random(0), SKILLS[name], Nonsense(name, SKILLS[name].recognise)
    module: Any = WORLDS[name]
    meant = {normalised(module.spoken_sentence(rng, module.sample_goal(rng))) for _ in range(3000)}
    drawn = [draw(rng) for _ in range(800)]
    assert len(set(drawn)) > 600
    assert meant.isdisjoint(map(normalised, drawn))
    listed = draw.held_out
    assert len(set(listed)) >= 100 and set(map(normalised, listed)).isdisjoint(map(normalised, drawn))
    # A slip or a courtesy may look like a word that the rule knows; what was drawn did not.
    assert sum(skill.recognise(text) is not None for text in drawn) < 0.05 * len(drawn)


def test_share_of_rows_gets_nonsense_and_keeps_observation() -> None:
    rows = [Row(f"say {i // 4}", f"x {i}", Call("move", {"velocity": 1})) for i in range(1000)]
    draw = Nonsense("paddle", PADDLE.recognise)
    mixed = with_nonsense(rows, draw, 0.1, random.Random(0))
    changed = [(a, b) for a, b in zip(rows, mixed, strict=True) if a != b]
    assert len(changed) == 100
    assert all(b.call is None and b.observation == a.observation and b.instruction != a.instruction for a, b in changed)
    assert len({b.instruction for _, b in changed}) >= 20
    assert with_nonsense(rows, draw, 0.1, random.Random(0)) == mixed


shares = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=300)


@given(shares, shares)
def test_gate_holds_at_most_the_spared_share(nonsense: list[float], known: list[float]) -> None:
    gate = gate_from_confidences(nonsense, known)
    assert sum(value < gate for value in known) <= SPARED * len(known)
    held = sum(value < gate for value in nonsense)
    # It holds enough of the nonsense, or the next higher one would hold too much of what is understood.
    assert held >= HELD * len(nonsense) or sum(value <= gate for value in known) > SPARED * len(known)


def test_gate_lies_between_separated_confidences() -> None:
    assert 0.3 < gate_from_confidences([0.1, 0.2, 0.3, *[0.0] * 97, 0.9], [0.8, *[0.99] * 99]) < 0.99
    assert function_confidence(Decision(None, {"function": 0.9}, 1, 1, 0)) == 0.0
    assert function_confidence(Decision(Call("move", {}), {"function": 0.7, "arg1": 0.2}, 1, 1, 0)) == 0.7
