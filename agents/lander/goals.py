"""The goals of the lander agent, keyword rules that recognise them in an instruction, and phrasings of the goals."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rtcontrol.agents.goal_tools import GoalKind
from rtcontrol.agents.phrasing import Phrasings, fill_marks, hundredths_in_words
from rtcontrol.models.numbers import with_plain_numbers

LanderKind = Literal["land", "left", "right", "hover"]

LEFT_WORDS = frozenset({"left", "leftmost", "leftward", "leftwards", "west", "western", "port"})
RIGHT_WORDS = frozenset({"right", "rightmost", "rightward", "rightwards", "east", "eastern", "starboard"})
# fmt: off
HOVER_WORDS = frozenset({
    "hover", "hovering", "hold", "holding", "float", "floating", "hang", "hanging", "stay", "staying", "remain",
    "keep", "keeping", "wait", "waiting", "height", "altitude", "station", "aloft", "airborne", "high", "above",
})
LAND_WORDS = frozenset({
    "land", "landing", "touch", "touchdown", "down", "descend", "settle", "park", "pad", "platform", "zone", "ground",
    "perch", "alight", "centre", "center", "middle",
})
# fmt: on
_EXCLUDED = re.compile(r"\bnot (?:on |to )?(?:the )?(?:left|right)\b")
# In `land right now` and `right in the centre` the word `right` is not a side, but in `on the right now` it is.
_EXACTLY = re.compile(r"(?<!the )(?<!to )\bright (?:now|away|here|below|between|(?:on|onto|in) the)\b")
_TOKEN = re.compile(r"[a-z]+|-?\d+(?:\.\d+)?")
UNITS = ("unit",)


@dataclass(frozen=True, slots=True)
class LanderGoal:
    """A goal of the lander. Only `hover` uses `x` and `y`, in observation units (the centre of the pad is 0, 0)."""

    kind: LanderKind
    x: float = 0.0
    y: float = 0.0

    def text(self) -> str:
        """Return the canonical instruction, shared by `recognise` and the training data."""
        if self.kind == "hover":
            return f"hover at {_number(self.y)}" + (f" and x {_number(self.x)}" if self.x else "")
        if self.kind == "land":
            return "land on the pad"
        return f"land on the {self.kind} side of the pad"


def _number(value: float) -> str:
    """Return a number with one or two decimals: 0.7, -0.25, 0.0."""
    return f"{value:.2f}".removesuffix("0")


def recognise(text: str) -> LanderGoal | None:
    """Return the goal that keywords in an instruction name, or None. For evaluation only, never for control.

    A number together with a word for hovering, or with `x` or `y`, means `hover`. The number after `x` is the position,
    and the other number is the height; without `x` and `y`, the first of two numbers is the position. Otherwise, words
    for only one of left and right mean this side of the pad (except after "not"), and words for landing mean `land`.
    """
    if (plain := with_plain_numbers(text.lower(), UNITS)) is None:
        return None
    words = _TOKEN.findall(_EXACTLY.sub(" ", _EXCLUDED.sub(" ", plain)))
    numbers = [i for i, word in enumerate(words) if word[-1].isdigit()]
    unique_words = frozenset(words)
    if numbers and unique_words & (HOVER_WORDS | {"x", "y"}):
        return _hover_goal(words, numbers)
    left, right = bool(unique_words & LEFT_WORDS), bool(unique_words & RIGHT_WORDS)
    if left != right:
        return LanderGoal("left") if left else LanderGoal("right")
    if not left and unique_words & LAND_WORDS and not numbers:
        return LanderGoal("land")
    return None


def _hover_goal(words: list[str], numbers: list[int]) -> LanderGoal | None:
    if len(numbers) > 2:
        return None
    named_x = [i for i in numbers if i > 0 and words[i - 1] == "x"]
    named_y = [i for i in numbers if i > 0 and words[i - 1] == "y"]
    if len(numbers) == 1:
        return None if named_x else _hover_goal_at(0.0, float(words[numbers[0]]))
    if named_x:
        at_x = named_x[0]
        at_y = next(i for i in numbers if i != at_x)
    elif named_y:
        at_y = named_y[0]
        at_x = next(i for i in numbers if i != at_y)
    else:
        at_x, at_y = numbers
    return _hover_goal_at(float(words[at_x]), float(words[at_y]))


def _hover_goal_at(x: float, y: float) -> LanderGoal | None:
    legal = abs(x) <= X_HUNDREDTHS[-1] / 100 and Y_HUNDREDTHS[0] / 100 <= y <= Y_HUNDREDTHS[-1] / 100
    return LanderGoal("hover", x, y) if legal else None


KINDS: tuple[LanderKind, ...] = ("land", "left", "right", "hover")
DEFAULT_WEIGHTS: Mapping[LanderKind, float] = {"land": 0.25, "left": 0.15, "right": 0.15, "hover": 0.45}
X_HUNDREDTHS = range(-50, 51)
Y_HUNDREDTHS = range(40, 111)
HOVER_PLACES = ((0, 70), (-20, 70), (30, 80), (0, 90), (-35, 60), (15, 100), (0, 55), (40, 75))


def _schema(hundredths: range, about: str) -> dict[str, Any]:
    ends = {"minimum": hundredths[0] / 100, "maximum": hundredths[-1] / 100, "multipleOf": 0.01}
    return {"type": "number", "description": about, **ends}


NAMES: dict[LanderKind, str] = {"land": "land", "left": "land_left", "right": "land_right"}
GOAL_KINDS = (
    *(GoalKind(kind, name, LanderGoal(kind).text(), goals=(LanderGoal(kind),)) for kind, name in NAMES.items()),
    GoalKind(
        "hover",
        "hover",
        f"{LanderGoal('hover', 0, 0.7).text()}; {LanderGoal('hover', -0.3, 0.8).text()}",
        lambda values: LanderGoal("hover", float(values.get("x", 0)), float(values["y"])),
        lambda goal: {"y": goal.y} | ({"x": goal.x} if goal.x else {}),
        {"y": _schema(Y_HUNDREDTHS, "height"), "x": _schema(X_HUNDREDTHS, "to the right; left is negative")},
        optional=("x",),
        goals=tuple(LanderGoal("hover", x / 100, y / 100) for x, y in HOVER_PLACES),
    ),
)


class LanderPhrasings(Phrasings[LanderKind, LanderGoal]):
    per_kind = 120
    canonical_share = 0.15

    def sample_goal(self, rng: random.Random, weights: Mapping[LanderKind, float] = DEFAULT_WEIGHTS) -> LanderGoal:
        """Return a random goal. For `hover`, x is from -0.5 to 0.5 (often 0) and y from 0.4 to 1.1."""
        kind = rng.choices(tuple(weights), tuple(weights.values()))[0]
        if kind != "hover":
            return LanderGoal(kind)
        x = 0 if rng.random() < 0.4 else _random_coordinate(rng, X_HUNDREDTHS)
        return LanderGoal("hover", x / 100, _random_coordinate(rng, Y_HUNDREDTHS) / 100)

    def named_goals(self) -> Iterator[LanderGoal]:
        return (LanderGoal(kind) for kind in KINDS if kind != "hover")

    def spoken_tables(self, goal: LanderGoal) -> tuple[Sequence[str], bool]:
        if goal.kind == "land":
            return ("land",), False
        if goal.kind == "hover":
            return ("place", "aside") if goal.x else ("height",), False
        return ("side", goal.kind), goal.kind == "right"

    def with_values(self, rng: random.Random, pattern: str, goal: LanderGoal) -> str:
        x, y = round(goal.x * 100), round(goal.y * 100)
        marks = {"X": _in_digits(rng, goal.x), "Y": _in_digits(rng, goal.y), "A": _in_digits(rng, abs(goal.x))}
        in_words = {"Xw": hundredths_in_words(rng, x), "Yw": hundredths_in_words(rng, y)}
        return fill_marks(pattern, marks | in_words | {"S": "left" if x < 0 else "right"})

    def _sample_sentence(self, rng: random.Random, goal: LanderGoal) -> str:
        if goal.kind != "hover":
            return super()._sample_sentence(rng, goal)
        with_x = round(goal.x * 100) != 0 or rng.random() < 0.2
        template = rng.choice(self.tables["train"]["place" if with_x else "height"])
        return self.grammar.fill(rng, template).format(X=_in_digits(rng, goal.x), Y=_in_digits(rng, goal.y))

    def _words_of_values(self) -> Iterable[str]:
        return itertools.chain(*map(_spellings, itertools.chain(X_HUNDREDTHS, Y_HUNDREDTHS)))

    def _templates(self, kind: LanderKind) -> tuple[str, ...]:
        templates: dict[str, tuple[str, ...]] = self.tables["train"]
        if kind == "hover":
            return templates["height"] + templates["place"]
        if kind == "land":
            return templates["land"]
        other = "right" if kind == "left" else "left"
        return tuple(template.replace("{D}", kind).replace("{O}", other) for template in templates["side"])


def _random_coordinate(rng: random.Random, hundredths: range) -> int:
    value = rng.choice(hundredths)
    return value // 10 * 10 if rng.random() < 0.4 else value


def _spellings(hundredths: int) -> tuple[str, ...]:
    """Return the decimal notations of a number in hundredths: for 70, 0.7 and 0.70; for 100, 1.0, 1 and 1.00."""
    two = f"{hundredths / 100:.2f}" if hundredths else "0.00"
    if hundredths % 10:
        return (two,)
    return (two[:-1], two) if hundredths % 100 else (two[:-1], two[:-3], two)


def _in_digits(rng: random.Random, value: float) -> str:
    spellings = _spellings(round(value * 100))
    return spellings[0] if rng.random() < 0.7 else rng.choice(spellings)


PHRASINGS = LanderPhrasings("lander", GOAL_KINDS, recognise)
