"""`POST /v1/decisions` as the `openai` client libraries send and read it: predicates, choices and scores, in order."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StrictBool, StrictStr

from rtcontrol.gateway.access import Refusal
from rtcontrol.gateway.decide import Timed
from rtcontrol.models.questions import StateQuestion

MOST_QUESTIONS, MOST_OPTIONS, MOST_LEVELS = 400, 255, 10


def as_text(value: Any) -> str:
    """Return text as it is, everything else as compact JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True)
class TypedQuestion:
    """A question with the `value` of each option (of a score, its level's number) and the text that describes it."""

    kind: Literal["predicate", "choice", "score"]
    name: str | None
    instructions: str
    values: Sequence[str | bool | int]
    descriptions: Sequence[str]

    @classmethod
    def predicate(cls, name: str | None, instructions: str, criteria: Mapping[str, str] | None = None) -> TypedQuestion:
        """Make a question with the answers true and false; `criteria` may describe both."""
        described = [(criteria or {}).get(answer, "") for answer in ("true", "false")]
        return cls("predicate", name, instructions, (True, False), described)

    def question(self) -> StateQuestion:
        """Return what the model reads: the instructions, then a line for each option.

        If an option is a boolean, all are written as JSON, so that true and "true" differ.
        """
        plain = all(isinstance(value, str) for value in self.values)
        options = tuple(str(v) if plain else json.dumps(v, ensure_ascii=False) for v in self.values)
        described = zip(options, self.descriptions, strict=True)
        lines = [f"{option}: {words}" if words else option for option, words in described]
        return StateQuestion("\n".join([self.instructions, *lines]), options)


@dataclass(frozen=True)
class Answered:
    """The probability of each option of a question, in order."""

    asked: TypedQuestion
    probabilities: Sequence[float]

    @property
    def choice(self) -> str | bool | int:
        """The most probable option; the first of equals."""
        return self.asked.values[self.probabilities.index(max(self.probabilities))]

    @property
    def confidence(self) -> float:
        """0 where all options are equally probable, 1 where one is certain."""
        count = len(self.probabilities)
        return (count * max(self.probabilities) - 1) / (count - 1)

    @property
    def expected(self) -> float:
        """The expected level of a score."""
        return math.fsum(level * p for level, p in enumerate(self.probabilities))


def answered(asked: Sequence[TypedQuestion], timed: Timed) -> list[Answered]:
    """Pair each question with its probabilities."""
    assert timed.decision.call is not None
    rows = timed.decision.call.arguments["probabilities"]
    return [Answered(one, probabilities) for one, probabilities in zip(asked, rows, strict=True)]


class TextPart(BaseModel):
    type: Literal["input_text"]
    text: str


Content = str | list[TextPart]


class PredicateQuestion(BaseModel):
    type: Literal["predicate"]
    name: str | None = None
    instructions: Content


class ChoiceOption(BaseModel):
    value: StrictStr | StrictBool
    description: str | None = None


class ChoiceQuestion(PredicateQuestion):
    type: Literal["choice"]  # type: ignore[assignment]
    choices: Annotated[list[ChoiceOption], Field(min_length=2, max_length=MOST_OPTIONS)]


class ScoreLevel(BaseModel):
    label: str
    description: str | None = None


class ScoreQuestion(PredicateQuestion):
    type: Literal["score"]  # type: ignore[assignment]
    levels: Annotated[list[ScoreLevel], Field(min_length=2, max_length=MOST_LEVELS)]


AnyQuestion = Annotated[PredicateQuestion | ChoiceQuestion | ScoreQuestion, Field(discriminator="type")]


class DecisionsRequest(BaseModel):
    """`input` is the state as text. Caching options change nothing: the last input stays cached."""

    model: str
    input: str
    questions: Annotated[list[AnyQuestion], Field(min_length=1, max_length=MOST_QUESTIONS)]

    def typed_questions(self) -> list[TypedQuestion]:
        """Raises Refusal."""
        return [_asked(question, f"questions[{i}]") for i, question in enumerate(self.questions)]


def _asked(question: PredicateQuestion, where: str) -> TypedQuestion:
    given = question.instructions
    said = given if isinstance(given, str) else "\n".join(part.text for part in given)
    if isinstance(question, ScoreQuestion):
        labels = [f"{x.label}: {x.description}" if x.description else x.label for x in question.levels]
        return TypedQuestion("score", question.name, said, range(len(labels)), labels)
    if not isinstance(question, ChoiceQuestion):
        return TypedQuestion.predicate(question.name, said)
    values = [option.value for option in question.choices]
    if len({(type(value), value) for value in values}) < len(values):
        what = f"{where}.choices: a value is there twice."
        raise Refusal(400, "invalid", what, "Each choice must be unique.", f"{where}.choices")
    return TypedQuestion("choice", question.name, said, values, [one.description or "" for one in question.choices])


def respond(request: DecisionsRequest, model: str, found: Sequence[Answered], timed: Timed) -> dict[str, Any]:
    """Return the response's body: an answer for every question, never a refusal."""
    decision = timed.decision
    total = decision.tokens + decision.reused_tokens
    kept = 0 if decision.call is None else decision.call.arguments["kept"]
    usage = {
        "input_tokens": total,
        "input_tokens_details": {"cached_tokens": decision.reused_tokens, "cache_write_tokens": kept},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": total,
    }
    pairs = zip(found, request.questions, strict=True)
    return {"model": model, "answers": [_answer(one, question) for one, question in pairs], "usage": usage}


def _answer(one: Answered, question: PredicateQuestion) -> dict[str, Any]:
    told: dict[str, Any] = {"type": one.asked.kind, "name": one.asked.name}
    if one.asked.kind == "predicate":
        return {**told, "probability": one.probabilities[0]}
    pairs = zip(one.asked.values, one.probabilities, strict=True)
    rows: list[dict[str, Any]] = [{"value": value, "probability": share} for value, share in pairs]
    told |= {"confidence": one.confidence, "probabilities": rows}
    if isinstance(question, ScoreQuestion):
        labelled = [{**row, "label": level.label} for row, level in zip(rows, question.levels, strict=True)]
        return {**told, "score": one.expected, "probabilities": labelled}
    return {**told, "choice": one.choice}
