"""What a paddle can be asked to do, the plain rule that reads it off an instruction, and many ways to say it."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from rtcontrol.agents.goal_tools import GoalKind
from rtcontrol.agents.phrasing import Phrasings, bare, spoken

PaddleKind = Literal["return", "miss", "up", "down", "top", "bottom", "mirror"]
KINDS: tuple[PaddleKind, ...] = get_args(PaddleKind)

CANONICAL: dict[PaddleKind, str] = {
    "return": "return every ball",
    "miss": "miss every ball on purpose",
    "up": "aim high",
    "down": "aim low",
    "top": "stay at the top",
    "bottom": "stay at the bottom",
    "mirror": "do what I do",
}
# fmt: off
HIGH_WORDS = frozenset({"up", "upward", "upwards", "high", "higher", "highest", "top", "topmost", "upper", "above",
                        "ceiling", "uppermost", "skyward"})
LOW_WORDS = frozenset({"down", "downward", "downwards", "low", "lower", "lowest", "bottom", "below", "floor",
                       "lowermost"})
SHOT_WORDS = frozenset({"aim", "aiming", "send", "sending", "hit", "hitting", "shoot", "shot", "shots", "knock", "push",
                        "play", "return", "returning", "ball", "balls", "it", "lob", "strike", "target", "part",
                        "bounce", "deflect"})
MISS_WORDS = frozenset({"miss", "missing", "lose", "losing", "dodge", "avoid", "badly"})
RETURN_WORDS = frozenset({"return", "returning", "win", "winning", "beat", "block", "stop", "catch", "save", "reach",
                          "defend", "guard", "well", "good", "score", "play", "hit", "back", "against"})
_MIRROR = re.compile(
    r"\b(mirror|copy|copying|imitate|mimic|same|like me|like mine|(what|as|where|when) (i|me|mine|my)\b"
    r"|(follow|with|level with) (me|my|mine|the other paddle)|where mine|every move|the way i)\b"
)
# What is asked for is the contrary of what a negated word says.
_NOT_MISS = re.compile(r"\b(do not|don't|never|without|not|stop)( ever)? (miss|missing|lose|losing|dodge|let)\b")
_NOT_RETURN = re.compile(
    r"\b(do not|don't|never|stop|not)( ever)? "
    r"(return|returning|hit|hitting|touch|touching|block|stop|catch|save|reach|win)\b"
    r"|\b(let|allow) (me|it|(the |each |every |all |all the )?balls?)\b|\bi (want|should|have|would like) to win\b"
    r"|\bi (should|must|will) (win|score)\b|\bout of the way\b"
)
_EXCLUDED = re.compile(
    r"\b(do not|don't|not|never) (at |to |in |on |aim |go |stay )?(the )?"
    r"(up|down|high|higher|low|lower|top|bottom|upwards?|downwards?)\b"
)
_WORD = re.compile(r"[a-z']+")
# fmt: on


@dataclass(frozen=True, slots=True)
class PaddleGoal:
    """One task for the paddle.

    return: let no ball pass. miss: touch none. up, down: send the balls up or down the screen. top, bottom: stay at
    that end of the field whatever the ball does. mirror: be as high as the other paddle is.
    """

    kind: PaddleKind

    def text(self) -> str:
        """The canonical instruction, the one `recognise` and the training data share."""
        return CANONICAL[self.kind]


def recognise(text: str) -> PaddleGoal | None:
    """The goal that an instruction plainly names, or None: a rule for the judge, never a way to control.

    Words of copying ask to mirror. Else one of high and low (not both; "not low" does not count): a shot, when the
    ball or a stroke is named, else a place to stay. Else missing or returning, "do not" turning one into the other.
    """
    plain = " ".join(_WORD.findall(text.lower()))
    if _MIRROR.search(plain):
        return PaddleGoal("mirror")
    seen = frozenset(_EXCLUDED.sub(" ", plain).split())
    high, low = bool(seen & HIGH_WORDS), bool(seen & LOW_WORDS)
    if high and low:
        return None
    if high or low:
        if seen & SHOT_WORDS:
            return PaddleGoal("up" if high else "down")
        return PaddleGoal("top" if high else "bottom")
    if _NOT_MISS.search(plain):
        return PaddleGoal("return")
    if _NOT_RETURN.search(plain) or seen & MISS_WORDS:
        return PaddleGoal("miss")
    return PaddleGoal("return") if seen & RETURN_WORDS else None


WEIGHTS: dict[PaddleKind, float] = {
    "return": 0.15,
    "miss": 0.3,
    "up": 0.17,
    "down": 0.17,
    "top": 0.05,
    "bottom": 0.05,
    "mirror": 0.11,
}
MIRRORED = ("down", "bottom")
TOOLS: dict[PaddleKind, str] = {
    "return": "return_balls",
    "miss": "miss_balls",
    "up": "aim_high",
    "down": "aim_low",
    "top": "stay_at_top",
    "bottom": "stay_at_bottom",
    "mirror": "mirror",
}
_DIRECTION = re.compile(r"<\w+>")
_FAMILY: dict[PaddleKind, str] = {"up": "aim", "down": "aim", "top": "place", "bottom": "place"}


class PaddlePhrasings(Phrasings[PaddleKind, PaddleGoal]):
    def __init__(self) -> None:
        super().__init__("paddle", KINDS, recognise)

    def sample_goal(self, rng: random.Random) -> PaddleGoal:
        """A random goal; those that hang on the ball, which are harder, come up more often."""
        return PaddleGoal(rng.choices(tuple(WEIGHTS), tuple(WEIGHTS.values()))[0])

    def goals_of(self, kind: PaddleKind) -> tuple[PaddleGoal, ...]:
        return (PaddleGoal(kind),)

    def goal_kinds(self) -> tuple[GoalKind, ...]:
        return tuple(GoalKind(kind, TOOLS[kind], CANONICAL[kind], partial(_goal, kind=kind)) for kind in KINDS)

    def spoken_patterns(self, goal: PaddleGoal, kept: bool | None = None) -> tuple[str, ...]:
        if family := _FAMILY.get(goal.kind):
            return spoken("paddle", family, goal.kind, partner=goal.kind in MIRRORED, kept=kept)
        return spoken("paddle", goal.kind, kept=kept)

    def _drawn(self, rng: random.Random, goal: PaddleGoal) -> str:
        return self.grammar.fill(rng, rng.choice(self.templates(goal.kind)))

    def _held_out(self, kind: PaddleKind) -> tuple[tuple[str, PaddleGoal], ...]:
        """Spread over the tables."""
        goal = PaddleGoal(kind)
        patterns = [text for text in self.spoken_patterns(goal, kept=True) if bare(text) not in self._trained]
        return tuple((text, goal) for text in patterns[:: max(1, len(patterns) // self.per_goal)][: self.per_goal])

    def _templates(self, kind: PaddleKind) -> tuple[str, ...]:
        templates = self.tables["train"][_FAMILY.get(kind, kind)]
        return tuple(self._directed(template, kind in MIRRORED) for template in templates)

    def _directed(self, template: str, mirrored: bool) -> str:
        """`<up>` becomes the slot `{up}`, `<top>` the word top; the other way round for the other direction."""
        swap = {a: b for pair in self.tables["pairs"] for a, b in (pair, pair[::-1])} if mirrored else {}

        def word(match: re.Match[str]) -> str:
            name = swap.get(match[0], match[0])
            return str(self.tables["words"].get(name, "{" + name.strip("<>") + "}"))

        return _DIRECTION.sub(word, template)


def _goal(values: Mapping[str, Any], kind: PaddleKind) -> PaddleGoal:
    return PaddleGoal(kind)


PHRASINGS = PaddlePhrasings()
