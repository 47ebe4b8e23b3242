"""The goals of the paddle agent, keyword rules that recognise them in an instruction, and phrasings of the goals."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from rtcontrol.agents.goal_tools import GoalKind
from rtcontrol.agents.phrasing import Phrasings, normalised

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
# A negated verb means the opposite goal: "do not miss" means return, and "do not hit" means miss.
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
    """A goal of the paddle.

    `kind` is one of: return (let no ball pass), miss (touch no ball), up or down (send the balls up or down the
    screen), top or bottom (stay at that end of the field and ignore the ball), mirror (copy the other paddle's height).
    """

    kind: PaddleKind

    def text(self) -> str:
        """Return the canonical instruction, shared by `recognise` and the training data."""
        return CANONICAL[self.kind]


def recognise(text: str) -> PaddleGoal | None:
    """Return the goal that keywords in an instruction name, or None. For evaluation only, never for control.

    Words for copying mean `mirror`. Otherwise, words for only one of high and low (not negated) mean `up` or `down` if
    the text has a word for ball or shot, else `top` or `bottom`. Otherwise `miss` or `return`; negation swaps them.
    """
    plain = " ".join(_WORD.findall(text.lower()))
    if _MIRROR.search(plain):
        return PaddleGoal("mirror")
    words = frozenset(_EXCLUDED.sub(" ", plain).split())
    high, low = bool(words & HIGH_WORDS), bool(words & LOW_WORDS)
    if high and low:
        return None
    if high or low:
        if words & SHOT_WORDS:
            return PaddleGoal("up" if high else "down")
        return PaddleGoal("top" if high else "bottom")
    if _NOT_MISS.search(plain):
        return PaddleGoal("return")
    if _NOT_RETURN.search(plain) or words & MISS_WORDS:
        return PaddleGoal("miss")
    return PaddleGoal("return") if words & RETURN_WORDS else None


# By kind of goal: (its goal tool, its share in training). Goals that depend on the ball are harder, so more frequent.
TOOLS: dict[PaddleKind, tuple[str, float]] = {
    "return": ("return_balls", 0.15),
    "miss": ("miss_balls", 0.3),
    "up": ("aim_high", 0.17),
    "down": ("aim_low", 0.17),
    "top": ("stay_at_top", 0.05),
    "bottom": ("stay_at_bottom", 0.05),
    "mirror": ("mirror", 0.11),
}
GOAL_KINDS = tuple(
    GoalKind(kind, tool, CANONICAL[kind], goals=(PaddleGoal(kind),), weight=weight)
    for kind, (tool, weight) in TOOLS.items()
)
MIRRORED = ("down", "bottom")
_DIRECTION = re.compile(r"<\w+>")
_FAMILY: dict[PaddleKind, str] = {"up": "aim", "down": "aim", "top": "place", "bottom": "place"}


class PaddlePhrasings(Phrasings[PaddleKind, PaddleGoal]):
    def spoken_tables(self, goal: PaddleGoal) -> tuple[Sequence[str], bool]:
        family = _FAMILY.get(goal.kind)
        return (family, goal.kind) if family else (goal.kind,), goal.kind in MIRRORED

    def _list_held_out(self, kind: PaddleKind) -> tuple[tuple[str, PaddleGoal], ...]:
        """Return held-out sentences, taken evenly from all tables."""
        goal, trained = PaddleGoal(kind), self._training_sentences
        patterns = [text for text in self.spoken_patterns(goal, held_out=True) if normalised(text) not in trained]
        return tuple((text, goal) for text in patterns[:: max(1, len(patterns) // self.per_kind)][: self.per_kind])

    def _templates(self, kind: PaddleKind) -> tuple[str, ...]:
        templates = self.tables["train"][_FAMILY.get(kind, kind)]
        return tuple(self._with_direction(template, kind in MIRRORED) for template in templates)

    def _with_direction(self, template: str, mirrored: bool) -> str:
        """Replace direction marks such as `<up>` by a slot or a word; if `mirrored`, for the opposite direction."""
        swap = {a: b for pair in self.tables["pairs"] for a, b in (pair, pair[::-1])} if mirrored else {}

        def word(match: re.Match[str]) -> str:
            name = swap.get(match[0], match[0])
            return str(self.tables["words"].get(name, "{" + name.strip("<>") + "}"))

        return _DIRECTION.sub(word, template)


PHRASINGS = PaddlePhrasings("paddle", GOAL_KINDS, recognise)
