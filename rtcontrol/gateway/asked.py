"""What both decision APIs share: how a question is worded for the model, and what follows from its answer."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rtcontrol.gateway.access import Refusal
from rtcontrol.gateway.decide import Timed
from rtcontrol.models.questions import StateQuestion

_json = json.JSONEncoder(ensure_ascii=False).encode
MOST_QUESTIONS, MOST_OPTIONS, MOST_LEVELS = 400, 255, 10


def as_text(value: Any) -> str:
    """Text as it is, everything else as compact JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True)
class Asked:
    """A question: of each option the `value` that it stands for (of a score, its level's number) and what describes
    it."""

    kind: Literal["predicate", "choice", "score"]
    name: str | None
    instructions: str
    values: Sequence[str | bool | int]
    descriptions: Sequence[str]

    @classmethod
    def predicate(cls, name: str | None, instructions: str, criteria: Mapping[str, str] | None = None) -> Asked:
        """Whether something is so; `criteria` may describe `true` and `false`."""
        described = [(criteria or {}).get(answer, "") for answer in ("true", "false")]
        return cls("predicate", name, instructions, (True, False), described)

    @classmethod
    def score(cls, name: str | None, instructions: str, levels: Sequence[str]) -> Asked:
        """How much; the lowest level first."""
        return cls("score", name, instructions, range(len(levels)), levels)

    def question(self) -> StateQuestion:
        """As the model reads it: the instructions, then a line for each option. Where a boolean is among the options
        all are written as JSON, so that true and "true" differ."""
        plain = all(isinstance(value, str) for value in self.values)
        options = tuple(str(v) if plain else _json(v) for v in self.values)
        described = zip(options, self.descriptions, strict=True)
        lines = [f"{option}: {words}" if words else option for option, words in described]
        return StateQuestion("\n".join([self.instructions, *lines]), options)


@dataclass(frozen=True)
class Answered:
    """The probability of each option of a question, in order."""

    asked: Asked
    probabilities: Sequence[float]

    @property
    def choice(self) -> str | bool | int:
        """The most probable option; of equals the first."""
        return self.asked.values[self.probabilities.index(max(self.probabilities))]

    @property
    def confidence(self) -> float:
        """0 where all options are equally probable, 1 where one is certain."""
        count = len(self.probabilities)
        return (count * max(self.probabilities) - 1) / (count - 1)

    @property
    def expected(self) -> float:
        """Of a score: the level to be expected."""
        return math.fsum(level * p for level, p in enumerate(self.probabilities))


def answered(asked: Sequence[Asked], timed: Timed) -> list[Answered]:
    assert timed.decision.call is not None
    found = timed.decision.call.arguments["probabilities"]
    return [Answered(one, probabilities) for one, probabilities in zip(asked, found, strict=True)]


def text_only(what: str, param: str | None = None) -> Refusal:
    return Refusal(400, "unsupported", f"{what}.", "This model reads text only.", param)
