"""What a lander can be asked to do, and the plain rule that reads it off an instruction."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

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
# `land right now`, `right in the centre`; but `on the right now` is a side.
_EXACTLY = re.compile(r"(?<!the )(?<!to )\bright (?:now|away|here|below|between|(?:on|onto|in) the)\b")
_TOKEN = re.compile(r"[a-z]+|[-+]?\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class LanderGoal:
    """One task for the lander; `x` and `y` (observation units, the pad's centre is 0, 0) are read for `hover` only."""

    kind: LanderKind
    x: float = 0.0
    y: float = 0.0

    def text(self) -> str:
        """The canonical instruction, the one `recognise` and the training data share."""
        if self.kind == "hover":
            return f"hover at {_number(self.y)}" + (f" and x {_number(self.x)}" if self.x else "")
        if self.kind == "land":
            return "land on the pad"
        return f"land on the {self.kind} side of the pad"


def _number(value: float) -> str:
    """Two decimals at the most, one at the least: 0.7, -0.25, 0.0."""
    return f"{value:.2f}".removesuffix("0")


def recognise(text: str) -> LanderGoal | None:
    """The goal that an instruction plainly names, or None: a rule for the judge, never a way to control.

    A hover word, `x` or `y` with a number asks for a hover: the number after the word `x` is the place, the
    other the height; two bare numbers are x, then y. Else `left` or `right` (one of them; "not on the right" and
    "right now" do not count) names a side of the pad, else a landing word or `centre` the pad itself.
    """
    words = _TOKEN.findall(_EXACTLY.sub(" ", _EXCLUDED.sub(" ", text.lower())))
    numbers = [i for i, word in enumerate(words) if word[-1].isdigit()]
    seen = frozenset(words)
    if numbers and seen & (HOVER_WORDS | {"x", "y"}):
        return _hover(words, numbers)
    left, right = bool(seen & LEFT_WORDS), bool(seen & RIGHT_WORDS)
    if left != right:
        return LanderGoal("left") if left else LanderGoal("right")
    if not left and seen & LAND_WORDS and not numbers:
        return LanderGoal("land")
    return None


def _hover(words: list[str], numbers: list[int]) -> LanderGoal | None:
    if len(numbers) > 2:
        return None
    named_x = [i for i in numbers if i > 0 and words[i - 1] == "x"]
    named_y = [i for i in numbers if i > 0 and words[i - 1] == "y"]
    if len(numbers) == 1:
        return None if named_x else LanderGoal("hover", 0.0, float(words[numbers[0]]))
    if named_x:
        at_x = named_x[0]
        at_y = next(i for i in numbers if i != at_x)
    elif named_y:
        at_y = named_y[0]
        at_x = next(i for i in numbers if i != at_y)
    else:
        at_x, at_y = numbers
    return LanderGoal("hover", float(words[at_x]), float(words[at_y]))
