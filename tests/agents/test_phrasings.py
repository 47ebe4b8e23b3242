"""Tests of the sentences for training and evaluation: the lists are disjoint, and the plain rule agrees with them."""

from __future__ import annotations

import random
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.agents.lander import goals as lander_goal
from rtcontrol.agents.lander.goals import PHRASINGS as LANDER
from rtcontrol.agents.lander.goals import LanderGoal
from rtcontrol.agents.paddle import goals as paddle_goal
from rtcontrol.agents.paddle.goals import PHRASINGS as PADDLE
from rtcontrol.agents.paddle.goals import PaddleGoal
from rtcontrol.agents.phrasing import nonsense, normalised, split_words
from rtcontrol.agents.road import goals as driver_goal
from rtcontrol.agents.road.goals import PHRASINGS as DRIVER
from rtcontrol.agents.road.goals import RoadGoal

RULES: dict[str, Any] = {
    "lander": lander_goal.recognise, "paddle": paddle_goal.recognise, "road": driver_goal.recognise,
}  # fmt: skip
PHRASINGS: dict[str, Any] = {"lander": LANDER, "paddle": PADDLE, "road": DRIVER}
KINDS = {"lander": LANDER.kinds, "paddle": paddle_goal.KINDS, "road": driver_goal.KINDS}
CASES = [(name, kind) for name, kinds in KINDS.items() for kind in kinds]
GOALS: dict[str, list[Any]] = {
    "lander": [*map(LanderGoal, ("land", "left", "right")), *(LanderGoal("hover", x, 0.65) for x in (0.0, -0.25, 0.3))],
    "paddle": [PaddleGoal(kind) for kind in paddle_goal.KINDS],
    "road": [RoadGoal(k, value) for k in driver_goal.KINDS for value in driver_goal.VALUES.get(k, (None,))],
}
MISREAD = tomllib.loads((Path(__file__).parent / "misread.toml").read_text("utf-8"))
of_each = pytest.mark.parametrize("name", GOALS)


@cache
def patterns(name: str, kind: str) -> frozenset[str]:
    return frozenset(PHRASINGS[name].training_patterns(kind))


@cache
def trained(name: str, kind: str) -> frozenset[str]:
    """Return all training sentences of a kind; for the lander, patterns instead of sentences with numbers."""
    return frozenset(DRIVER.training_sentences(kind)) if name == "road" else patterns(name, kind)


@cache
def vocabulary(name: str) -> frozenset[str]:
    return frozenset(PHRASINGS[name].vocabulary())


@pytest.mark.parametrize(("name", "kind"), [case for case in CASES if case[0] != "lander"])
def test_rule_recognises_every_training_pattern_as_its_goal(name: str, kind: str) -> None:
    for index, pattern in enumerate(sorted(patterns(name, kind))):
        goals: Any = DRIVER.pattern_goals(pattern, kind) if name == "road" else [PaddleGoal(kind)]
        # A number's place is the same for all numbers: they take turns. Left is not right: both are asked.
        in_turn = name == "road" and isinstance(goals[0].value, int)
        for goal in goals[index % len(goals) :][:1] if in_turn else goals:
            for text in DRIVER.sentences_of(pattern, goal) if name == "road" else [pattern]:
                assert RULES[name](text) == goal, text
    for other in KINDS[name]:
        assert other == kind or trained(name, kind).isdisjoint(trained(name, other))


@of_each
def test_training_samples_match_rule_and_vocabulary(name: str) -> None:
    rng, phrasings = random.Random(0), PHRASINGS[name]
    known, goals = vocabulary(name), set()
    for _ in range(3000):
        goal = phrasings.sample_goal(rng)
        text = phrasings.training_instruction(rng, goal)
        goals.add(goal)
        assert RULES[name](text) == goal, text
        assert known.issuperset(split_words(text)), text
        if text != goal.text() and not (name == "lander" and goal.kind == "hover"):
            first = text[0].lower() + text[1:]  # names of the lander's world may be capital letters
            typed = first.rstrip(".!").replace("I ", "i ") if name == "lander" else text.rstrip(".!").lower()
            assert typed in trained(name, goal.kind), text
    if name == "road":
        every = set(GOALS["road"])
        assert goals == every and all(DRIVER.training_sentences(goal.kind)[goal.text()] == goal for goal in every)


READ: dict[RoadGoal | None, str] = {
    RoadGoal("speed", 20): "brake to 20",
    RoadGoal("speed", 30): "slow down to 30",
    RoadGoal("speed", 50): "go 50 km/h; Drive at 50, please.; drive at fifty; drive at ５０",
    RoadGoal("speed", 60): "do not go faster than 60",
    RoadGoal("lane", "left"): "take the left lane; move over to the left; take the left lane, not the right one; "
    "take the left lane at the next junction",
    RoadGoal("lane", "middle"): "leave the right lane and take the middle one",
    RoadGoal("lane", "right"): "move over to the right lane",
    RoadGoal("follow", 15): "follow the car in front at 15 metres; follow at 15m",
    RoadGoal("follow", 20): "follow the car ahead; do not overtake, stay behind the car ahead",
    RoadGoal("follow", 30): "keep 30 m behind the car ahead",
    RoadGoal("turn", "left"): "turn left right now; turn left at the junction ahead; go to the left at the crossing; "
    "take the next left",
    RoadGoal("turn", "right"): "turn right at the next crossing; turn right now",
    RoadGoal("turn", "straight"): "go straight on at the junction",
    RoadGoal("overtake"): "overtake slow cars; do not stay behind slow cars; pass the car ahead on the left",
    RoadGoal("stop"): "stop; halt now; stop right now; stop in your lane; stop at the next junction; do not drive on; "
    "pull over to the right",
    RoadGoal("drive"): "do not stop, drive on; follow the road; go at the limit",
    None: "take the left or the right lane; turn left or right at the junction; take the second left; stop overtaking; "
    "let the others pass; you do not have to stop; make tea; 50; drive at 48; drive at 30 mph; drive at 5 m/s; "
    "drive at -20; drive at 1.000; drive at 30.5; drive at 30 or 50; drive at minus 30; drive at fifty five; "
    "drive at 30-40; drive at 1e2",
}


@pytest.mark.parametrize(
    ("name", "text", "goal"),
    [
        *(("road", text, goal) for goal in READ for text in READ[goal].split("; ")),
        ("paddle", "Let me win!", PaddleGoal("miss")),
        ("paddle", "don't let me win", PaddleGoal("return")),
        ("paddle", "Please send every ball to the top of the screen.", PaddleGoal("up")),
        ("paddle", "aim low, not high", PaddleGoal("down")),
        ("paddle", "do not miss", PaddleGoal("return")),
        ("paddle", "make tea", None),
        ("paddle", "up and down", None),
        ("lander", "land right now", LanderGoal("land")),
        ("lander", "Right now, touch down right in the centre.", LanderGoal("land")),
        ("lander", "right now land on the right", LanderGoal("right")),
        ("lander", "settle on the right now", LanderGoal("right")),
        *(("lander", f"hover at {y}", LanderGoal("hover", 0.0, 0.7)) for y in ("0,7", ".7", "+0.7", "0.70 units")),
        *(("lander", f"hover at {y}", None) for y in ("0,7 m", "7", "-0.7", "0.7 or 0.8 or 0.9", "1/2", "50 %")),
        ("lander", "hover at 0,7 and x \u22120.2", LanderGoal("hover", -0.2, 0.7)),
    ],
)
def test_plain_instructions_are_recognised(name: str, text: str, goal: Any) -> None:
    assert RULES[name](text) == goal


def texts_of(name: str, goal: Any) -> dict[str, str]:
    """Return each pattern for a goal, with a sentence made from that pattern."""
    rng, module = random.Random(0), PHRASINGS[name]
    return {pattern: module.with_values(rng, pattern, goal) for pattern in module.spoken_patterns(goal)}


@cache
def meanings(name: str) -> dict[str, set[Any]]:
    goals_of: dict[str, set[Any]] = {}
    for goal in GOALS[name]:
        for text in texts_of(name, goal).values():
            goals_of.setdefault(normalised(text), set()).add(goal)
    return goals_of


@of_each
def test_no_spoken_sentence_names_two_goals(name: str) -> None:
    assert {text: goals for text, goals in meanings(name).items() if len(goals) > 1} == {}


@of_each
def test_sentences_misread_by_rule_are_listed(name: str) -> None:
    """The table has the true goal. misread.toml lists the sentences that the rule reads as another goal; a person has
    checked for each of these that the table is right."""
    misread = set()
    for goal in GOALS[name]:
        for pattern, text in texts_of(name, goal).items():
            if RULES[name](text) not in (goal, None):
                misread.add(pattern)
    assert misread == set(MISREAD[name].splitlines())


def test_nonsense_names_no_goal_of_any_world() -> None:
    texts = Counter(map(normalised, nonsense()))
    assert len(texts) >= 900
    for name in GOALS:
        assert set(texts) & set(meanings(name)) == set()
        # The rule may see a word that it knows ("play chess"), but seldom.
        assert sum(RULES[name](text) is not None for text in texts) < 0.06 * len(texts)


@of_each
def test_training_uses_no_evaluation_or_held_out_sentence(name: str) -> None:
    rng, module = random.Random(1), PHRASINGS[name]
    listed = {normalised(text) for kind in module.kinds for text, _ in module.held_out_words(kind)}
    for goal in GOALS[name]:
        kept, shown = (
            set(module.spoken_patterns(goal, held_out=True)),
            set(module.spoken_patterns(goal, held_out=False)),
        )
        assert kept.isdisjoint(shown)
        assert kept | shown == set(module.spoken_patterns(goal))
        assert 0.05 * len(shown) < len(kept) < 0.2 * len(shown)
        assert listed.isdisjoint(normalised(module.spoken_instruction(rng, goal)) for _ in range(60))


@of_each
def test_judge_uses_table_first_and_rule_otherwise(name: str) -> None:
    module = PHRASINGS[name]
    for goal in GOALS[name]:
        assert module.goal_of(goal.text()) == goal
        for pattern in module.spoken_patterns(goal):
            if "{" not in pattern:
                assert module.goal_of(f"{pattern[0].upper()}{pattern[1:]} ") == goal, pattern
    assert not any(module.goal_of(text) is not None and RULES[name](text) is None for text in nonsense())
