"""Meaningless sentences in training, and the gate that holds them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.agents.phrasing import normalised
from rtcontrol.envs.lander.skill import SKILL as LANDER
from rtcontrol.envs.paddle.skill import SKILL as PADDLE
from rtcontrol.envs.road.skill import SKILL as ROAD
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.data.row import Row
from rtcontrol.training.gate import HELD, SPARED, WORLDS, Nonsense, function_confidence, gate_between, with_nonsense

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
    gate = gate_between(nonsense, known)
    assert sum(value < gate for value in known) <= SPARED * len(known)
    held = sum(value < gate for value in nonsense)
    # It holds enough of the nonsense, or the next higher one would hold too much of what is understood.
    assert held >= HELD * len(nonsense) or sum(value <= gate for value in known) > SPARED * len(known)


def test_gate_lies_between_separated_confidences() -> None:
    assert 0.3 < gate_between([0.1, 0.2, 0.3, *[0.0] * 97, 0.9], [0.8, *[0.99] * 99]) < 0.99
    assert function_confidence(Decision(None, {"function": 0.9}, 1, 1, 0)) == 0.0
    assert function_confidence(Decision(Call("move", {}), {"function": 0.7, "arg1": 0.2}, 1, 1, 0)) == 0.7
