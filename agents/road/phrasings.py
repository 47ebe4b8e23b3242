"""Many ways to tell the driver what to do; `sentences_of` fills the mark of a goal's value."""

from __future__ import annotations

import itertools
import random
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any

from rtcontrol.agents.goal_tools import GoalKind
from rtcontrol.agents.phrasing import Grammar, Phrasings, split_words
from rtcontrol.agents.road.goals import DEFAULT_GAP, KINDS, VALUES, RoadGoal, RoadKind, recognise
from rtcontrol.agents.spoken import integer_in_words, spoken, written_in

WEIGHTS: dict[RoadKind, float] = {
    "drive": 0.14,
    "speed": 0.16,
    "lane": 0.2,
    "follow": 0.14,
    "turn": 0.16,
    "overtake": 0.1,
    "stop": 0.1,
}
# Of the kinds with a value: the tool's parameter.
VALUE_NAMES: dict[RoadKind, str] = {"speed": "kmh", "lane": "lane", "follow": "metres", "turn": "way"}
USUAL_GAP = RoadGoal("follow", DEFAULT_GAP)
_GOALS = {kind: tuple(RoadGoal(kind, value) for value in VALUES.get(kind, (None,))) for kind in KINDS}


class RoadPhrasings(Phrasings[RoadKind, RoadGoal]):
    def __init__(self) -> None:
        super().__init__("road", KINDS, recognise, seed="driver")
        self.value_words, self._sentences = cache(self._value_words), cache(self._all_sentences)

    def sample_goal(self, rng: random.Random) -> RoadGoal:
        """A random goal, its value uniform over those of its kind."""
        kind = rng.choices(tuple(WEIGHTS), tuple(WEIGHTS.values()))[0]
        return rng.choice(_GOALS[kind])

    def goals_of(self, kind: RoadKind) -> tuple[RoadGoal, ...]:
        return _GOALS[kind]

    def goal_kinds(self) -> tuple[GoalKind, ...]:
        return tuple(map(_goal_kind, KINDS))

    def pattern_goals(self, pattern: str, kind: RoadKind) -> tuple[RoadGoal, ...]:
        """The goals that a pattern of a kind can ask for: all values of it, or the one that it means unsaid."""
        return (USUAL_GAP,) if kind == "follow" and "{" not in pattern else _GOALS[kind]

    def sentences_of(self, pattern: str, goal: RoadGoal) -> Iterator[str]:
        """Every sentence that a pattern becomes for a goal; with repeats."""
        yield from self.value_words(goal).expand(pattern)

    def training_sentences(self, kind: RoadKind) -> Mapping[str, RoadGoal]:
        """Every sentence that training can draw for a kind, with its goal; as training_patterns writes them."""
        return self._sentences(kind)

    def spoken_patterns(self, goal: RoadGoal, kept: bool | None = None) -> tuple[str, ...]:
        partner = goal.value == "right"
        if goal.kind == "turn":
            table = "turn_straight" if goal.value == "straight" else "turn_side"
            return spoken("road", table, partner=partner, kept=kept)
        if goal.kind == "lane":
            side = () if goal.value == "middle" else ("lane_side",)
            return spoken("road", "lane", *side, f"lane_{goal.value}", partner=partner, kept=kept)
        return spoken("road", goal.kind, *(("follow_usual",) if goal == USUAL_GAP else ()), kept=kept)

    def written(self, rng: random.Random, pattern: str, goal: RoadGoal) -> str:
        """In figures or in words as its mark says, or with its lane."""
        if goal.kind == "lane":
            return self.value_words(goal).fill(rng, pattern)
        value = goal.value
        marks = {"V": str(value), "Vw": integer_in_words(rng, value)} if isinstance(value, int) else {}
        return written_in(pattern, marks)

    def _drawn(self, rng: random.Random, goal: RoadGoal) -> str:
        usual = self.tables["train_usual_gap"] if goal == USUAL_GAP else ()
        template = rng.choice(self.tables["train"][goal.kind] + usual)
        return self.value_words(goal).fill(rng, self.grammar.fill(rng, template))

    def _seen(self, kind: RoadKind) -> tuple[tuple[str, RoadGoal], ...]:
        return self._draw(f"driver {kind}", self.grammar, "eval", kind, self.training_sentences(kind))

    def _unseen(self, kind: RoadKind) -> tuple[tuple[str, RoadGoal], ...]:
        return self._draw(f"driver unseen {kind}", Grammar(self.tables["unseen_slots"]), "unseen", kind, ())

    def _values(self) -> Iterable[str]:
        ways = (way for goal in self.named_goals() for way in self.value_words(goal).slots.values())
        return (word for way in itertools.chain(*ways) for word in split_words(way))

    def _templates(self, split: str, kind: RoadKind) -> tuple[str, ...]:
        """A `follow` pattern without a mark for its value is drawn for USUAL_GAP only."""
        usual = self.tables["train_usual_gap"] if (split, kind) == ("train", "follow") else ()
        templates: tuple[str, ...] = self.tables[split][kind] + usual
        return templates

    def _all_sentences(self, kind: RoadKind) -> Mapping[str, RoadGoal]:
        patterns = set(self.training_patterns(kind))
        goals = {pattern: self.pattern_goals(pattern, kind) for pattern in patterns}
        return {text: goal for one in patterns for goal in goals[one] for text in self.sentences_of(one, goal)}

    def _value_words(self, goal: RoadGoal) -> Grammar:
        if goal.value is None:
            return Grammar({})
        listed = self.tables["values"].get(goal.kind)
        return Grammar({"V": (str(goal.value),)} if listed is None else listed[str(goal.value)])

    def _draw(
        self, seed: str, grammar: Grammar, split: str, kind: RoadKind, known: Container[str]
    ) -> tuple[tuple[str, RoadGoal], ...]:
        """Spread evenly over templates and values."""
        rng, templates = random.Random(seed), self.templates(split, kind)
        drawn: dict[str, RoadGoal] = {}
        for index, template in enumerate(itertools.cycle(templates)):
            pattern = grammar.fill(rng, template)
            goals = self.pattern_goals(pattern, kind)
            goal = goals[(index + index // len(templates)) % len(goals)]  # each template meets each value
            text = self.value_words(goal).fill(rng, pattern)
            if text not in known:
                drawn.setdefault(text, goal)
            if len(drawn) == self.per_goal:
                break
        return tuple(drawn.items())


def _goal_kind(kind: RoadKind) -> GoalKind:
    goals, make = _GOALS[kind], partial(_goal, kind=kind)
    if (name := VALUE_NAMES.get(kind)) is None:
        return GoalKind(kind, kind, goals[0].text(), make)
    listed = [goal.value for goal in goals]
    schema = {"type": "string" if isinstance(listed[0], str) else "integer", "enum": listed}
    told = "; ".join(goal.text() for goal in (goals if kind == "turn" else goals[:1]))
    return GoalKind(kind, kind, told, make, lambda goal: {name: goal.value}, {name: schema})


def _goal(values: Mapping[str, Any], kind: RoadKind) -> RoadGoal:
    return RoadGoal(kind, next(iter(values.values()), None))


PHRASINGS = RoadPhrasings()
