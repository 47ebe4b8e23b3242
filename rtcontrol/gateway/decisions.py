"""`POST /v1/decisions` as the `openai` client libraries send and read it: predicates, choices and scores, in order."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, StrictBool, StrictStr, Tag

from rtcontrol.gateway.access import Refusal
from rtcontrol.gateway.decide import Timed
from rtcontrol.models.conversation import Turn, Unpaired, results_of
from rtcontrol.models.questions import StateQuestion

_json = json.JSONEncoder(ensure_ascii=False).encode
MOST_QUESTIONS, MOST_OPTIONS, MOST_LEVELS = 400, 255, 10


def as_text(value: Any) -> str:
    """Text as it is, everything else as compact JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True)
class TypedQuestion:
    """A question: of each option the `value` that it stands for (of a score, its level's number) and what describes
    it."""

    kind: Literal["predicate", "choice", "score"]
    name: str | None
    instructions: str
    values: Sequence[str | bool | int]
    descriptions: Sequence[str]

    @classmethod
    def predicate(cls, name: str | None, instructions: str, criteria: Mapping[str, str] | None = None) -> TypedQuestion:
        """Whether something is so; `criteria` may describe `true` and `false`."""
        described = [(criteria or {}).get(answer, "") for answer in ("true", "false")]
        return cls("predicate", name, instructions, (True, False), described)

    @classmethod
    def score(cls, name: str | None, instructions: str, levels: Sequence[str]) -> TypedQuestion:
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

    asked: TypedQuestion
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


def answered(asked: Sequence[TypedQuestion], timed: Timed) -> list[Answered]:
    assert timed.decision.call is not None
    found = timed.decision.call.arguments["probabilities"]
    return [Answered(one, probabilities) for one, probabilities in zip(asked, found, strict=True)]


def text_only(what: str, param: str | None = None) -> Refusal:
    return Refusal(400, "unsupported", f"{what}.", "This model reads text only.", param)


class DecisionPart(BaseModel):
    """Of a content: `input_text`, `output_text`, `input_json`, `refusal`; pictures are refused."""

    type: str
    text: str | None = None
    refusal: str | None = None
    data: dict[str, Any] | list[dict[str, Any]] | None = None


Content = str | list[DecisionPart]


class DecisionMessage(BaseModel):
    type: Literal["message"] = "message"
    role: Literal["user", "developer", "system", "assistant"]
    content: Content


class DecisionCall(BaseModel):
    """A function's, with `arguments`, or a custom tool's, with `input`."""

    type: Literal["function_call", "custom_tool_call"]
    name: str
    call_id: str
    arguments: str | None = None
    input: str | None = None


class DecisionCallOutput(BaseModel):
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: Content


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


def _item(value: Any) -> str:
    kind = value.get("type", "message") if isinstance(value, dict) else "message"
    return "call" if kind in ("function_call", "custom_tool_call") else "output" if kind != "message" else kind


Item = Annotated[
    Annotated[DecisionMessage, Tag("message")]
    | Annotated[DecisionCall, Tag("call")]
    | Annotated[DecisionCallOutput, Tag("output")],
    Discriminator(_item),
]
AnyQuestion = Annotated[PredicateQuestion | ChoiceQuestion | ScoreQuestion, Field(discriminator="type")]


class DecisionsRequest(BaseModel):
    """Caching options are taken, and change nothing: the last input stays cached."""

    model: str
    input: str | list[Item]
    questions: Annotated[list[AnyQuestion], Field(min_length=1, max_length=MOST_QUESTIONS)]

    def state(self) -> str:
        """The input as text: who said what where several did. Raises Refusal."""
        if isinstance(self.input, str):
            return self.input
        names = self._names()
        lines = []
        roles = {item.role if isinstance(item, DecisionMessage) else "" for item in self.input}
        for i, item in enumerate(self.input):
            where = f"input[{i}]"
            if isinstance(item, DecisionMessage):
                said = _text(item.content, f"{where}.content")
                lines.append(said if roles == {"user"} else f"{item.role}: {said}")
            elif isinstance(item, DecisionCall):
                given = item.arguments if item.type == "function_call" else item.input
                if given is None:
                    field = "arguments" if item.type == "function_call" else "input"
                    raise Refusal(400, "invalid", f"{where}.{field} is missing.", "Give it.", f"{where}.{field}")
                lines.append(f"{item.name}({given})")
            else:
                lines.append(f"{names[i]} -> {_text(item.output, f'{where}.output')}")
        return "\n".join(lines)

    def _names(self) -> dict[int, str]:
        """Of each output whose it is. Raises Refusal."""
        said = []
        for item in self.input:
            if isinstance(item, DecisionCall | DecisionCallOutput):
                # An output is that of a call of its kind.
                own = f"{item.type.removesuffix('_output')} {item.call_id}" if item.call_id else None
                calls = [(own, item.name)] if isinstance(item, DecisionCall) else []
                said.append(Turn(calls, None if calls else (own, None)))
            else:
                said.append(Turn(user=isinstance(item, DecisionMessage) and item.role == "user"))
        try:
            return {output: said[call].calls[0][1] for (call, _), output in results_of(said).items()}
        except Unpaired as error:
            place, item = f"input[{error.index}].call_id", self.input[error.index]
            kind = "" if isinstance(item, str) else item.type.removesuffix("_output")
            what = f"{place} is that of no {kind} before it that still waits for its output."
            raise Refusal(400, "invalid", what, "Put its call before it.", place) from None

    def typed_questions(self) -> list[TypedQuestion]:
        """Raises Refusal."""
        return [_asked(question, f"questions[{i}]") for i, question in enumerate(self.questions)]


def _asked(question: PredicateQuestion, where: str) -> TypedQuestion:
    said = _text(question.instructions, f"{where}.instructions")
    if isinstance(question, ScoreQuestion):
        labels = [f"{x.label}: {x.description}" if x.description else x.label for x in question.levels]
        return TypedQuestion.score(question.name, said, labels)
    if not isinstance(question, ChoiceQuestion):
        return TypedQuestion.predicate(question.name, said)
    values = [option.value for option in question.choices]
    for i, value in enumerate(values):
        if any(value == other and type(value) is type(other) for other in values[:i]):
            what = f"{where}.choices: {value!r} is there twice."
            raise Refusal(400, "invalid", what, "Each choice must be unique.", f"{where}.choices")
    return TypedQuestion(
        "choice", question.name, said, values, [option.description or "" for option in question.choices]
    )


def _text(content: Content, where: str) -> str:
    if isinstance(content, str):
        return content
    found = []
    for i, part in enumerate(content):
        said = {"input_text": part.text, "output_text": part.text, "input_json": part.data, "refusal": part.refusal}
        if part.type not in said:
            raise text_only(f"{where}[{i}] is of type {part.type[:40]!r}", f"{where}[{i}].type")
        if said[part.type] is None:
            raise Refusal(400, "invalid", f"{where}[{i}] has nothing to read.", "Fill its field.", f"{where}[{i}]")
        found.append(as_text(said[part.type]))
    return "\n".join(found)


def respond(request: DecisionsRequest, model: str, found: Sequence[Answered], timed: Timed) -> dict[str, Any]:
    """Never a refusal: every question has its answer."""
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
    kind, p = one.asked.kind, one.probabilities
    told: dict[str, Any] = {"type": kind, "name": one.asked.name}
    if kind == "predicate":
        return {**told, "probability": p[0]}
    told["confidence"] = one.confidence
    if isinstance(question, ScoreQuestion):
        levels = enumerate(zip(question.levels, p, strict=True))
        rows = [{"value": i, "label": level.label, "probability": share} for i, (level, share) in levels]
        return {**told, "score": one.expected, "probabilities": rows}
    values = zip(one.asked.values, p, strict=True)
    return {
        **told,
        "choice": one.choice,
        "probabilities": [{"value": value, "probability": share} for value, share in values],
    }
