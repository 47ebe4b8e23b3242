"""`POST /v1/decisions` (OpenAI's format) and `POST /v1/systemone` (System One's): typed questions about a state."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rtcontrol.gateway.bodies import read
from rtcontrol.gateway.decide import Timed, public_name
from rtcontrol.gateway.gate import Refusal
from rtcontrol.gateway.metrics import Metrics
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.hosts import deciders
from rtcontrol.models.questions import StateQuestion

MOST_QUESTIONS, MOST_OPTIONS, MOST_LEVELS = 400, 255, 10
MEDIA = ("images", "audio", "videos", "assets")
Json = str | dict[str, Any] | list[Any]
Kind = Literal["predicate", "choice", "score"]


def as_text(value: Any) -> str:
    """Return text unchanged, an empty string for None, and other values as compact JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True)
class TypedQuestion:
    """A question with the value and the description of each option; the values of a score are its level numbers."""

    kind: Kind
    instructions: str
    values: Sequence[str | bool | int]
    descriptions: Sequence[str]

    def question(self) -> StateQuestion:
        """Return the question for the model: the instructions, then a line for each option.

        If an option is a boolean, all are written as JSON, so that true and "true" differ.
        """
        plain = all(isinstance(value, str) for value in self.values)
        options = tuple(str(v) if plain else json.dumps(v, ensure_ascii=False) for v in self.values)
        described = zip(options, self.descriptions, strict=True)
        lines = [f"{option}: {words}" if words else option for option, words in described]
        return StateQuestion("\n".join([self.instructions, *lines]), options)

    def judged(self, shares: Sequence[float]) -> dict[str, Any]:
        """Return the most probable option (the first of equals) or the expected level, and the confidence: 0 if all
        options are equally probable, 1 if one is certain. `shares` are the options' probabilities, in order."""
        count, most = len(shares), max(shares)
        confidence = {"confidence": (count * most - 1) / (count - 1)}
        if self.kind == "score":
            return {"score": math.fsum(level * p for level, p in enumerate(shares)), **confidence}
        return {"choice": self.values[shares.index(most)], **confidence}


# -- OpenAI's shape ----------------------------------------------------------------------------------------------------


class TextPart(BaseModel):
    type: Literal["input_text"]
    text: str


class ChoiceOption(BaseModel):
    value: StrictStr | StrictBool
    description: str | None = None


class ScoreLevel(BaseModel):
    label: str
    description: str | None = None

    def text(self) -> str:
        return f"{self.label}: {self.description}" if self.description else self.label


class DecisionQuestion(BaseModel):
    type: Kind
    name: str | None = None
    instructions: str | list[TextPart]
    choices: Annotated[list[ChoiceOption], Field(min_length=2, max_length=MOST_OPTIONS)] | None = None
    levels: Annotated[list[ScoreLevel], Field(min_length=2, max_length=MOST_LEVELS)] | None = None

    def typed(self, where: str) -> TypedQuestion:
        """Return the question in the common form. Raises Refusal."""
        parts = self.instructions
        words = parts if isinstance(parts, str) else "\n".join(part.text for part in parts)
        if self.type == "predicate":
            return TypedQuestion("predicate", words, (True, False), ("", ""))
        field = f"{where}.{'levels' if self.type == 'score' else 'choices'}"
        texts = [level.text() for level in self.levels or ()]
        values: Sequence[str | bool | int] = range(len(texts))
        if self.type == "choice":
            texts = [option.description or "" for option in self.choices or ()]
            values = [option.value for option in self.choices or ()]
        if not values or len({(type(value), value) for value in values}) < len(values):
            raise Refusal(400, "invalid", f"{field} is missing, or has a value twice.", "Correct it.", field)
        return TypedQuestion(self.type, words, values, texts)

    def answer(self, typed: TypedQuestion, shares: Sequence[float]) -> dict[str, Any]:
        answer: dict[str, Any] = {"type": self.type, "name": self.name}
        if self.type == "predicate":
            return {**answer, "probability": shares[0]}
        rows: list[dict[str, Any]] = [{"value": v, "probability": p} for v, p in zip(typed.values, shares, strict=True)]
        for row, level in zip(rows, self.levels or () if self.type == "score" else (), strict=False):
            row["label"] = level.label
        return {**answer, **typed.judged(shares), "probabilities": rows}


class DecisionsRequest(BaseModel):
    """A request in OpenAI's format; `input` is the state as text. `model` and caching options have no effect."""

    model: str
    input: str
    questions: Annotated[list[DecisionQuestion], Field(min_length=1, max_length=MOST_QUESTIONS)]


# -- System One's shape ------------------------------------------------------------------------------------------------


class NamedQuestion(BaseModel):
    """A question; `criteria` describe true and false of a `noul`, a `choice`'s options, or a `score`'s levels."""

    type: Literal["noul", "choice", "score"]
    instructions: Json | None = None
    criteria: dict[str, Json | None] | list[Json] | None = None

    def typed(self, where: str) -> TypedQuestion:
        """Return the question in the common form. Raises Refusal."""
        instructions, criteria = as_text(self.instructions), self.criteria
        if self.type == "noul":
            if self.instructions is None and not criteria:
                raise Refusal(422, "invalid", f"{where}: neither instructions nor criteria.", "Give one.", where)
            if criteria and not (isinstance(criteria, dict) and {*criteria} <= {"true", "false"}):
                raise _wrong(where, "the criteria of a noul must be for true and false")
            described: Any = criteria or {}
            words = [as_text(described.get(answer)) for answer in ("true", "false")]
            return TypedQuestion("predicate", instructions, (True, False), words)
        if self.type == "choice":
            if not (isinstance(criteria, dict) and 2 <= len(criteria) <= MOST_OPTIONS):
                raise _wrong(where, f"criteria of a choice are 2 to {MOST_OPTIONS} options by name")
            return TypedQuestion("choice", instructions, list(criteria), [as_text(text) for text in criteria.values()])
        if not (isinstance(criteria, list) and 2 <= len(criteria) <= MOST_LEVELS):
            raise _wrong(where, f"criteria of a score are a list of 2 to {MOST_LEVELS} levels")
        return TypedQuestion("score", instructions, range(len(criteria)), [as_text(level) for level in criteria])

    def answer(self, typed: TypedQuestion, shares: Sequence[float]) -> dict[str, Any]:
        if self.type == "noul":
            return {"type": "noul", "noul": shares[0]}
        probabilities = {str(value): p for value, p in zip(typed.values, shares, strict=True)}
        answer = {"type": self.type, **typed.judged(shares), "probabilities": probabilities}
        if self.type == "score":
            answer["legend"] = {str(level): words for level, words in enumerate(typed.descriptions)}
        return answer


class SystemOneRequest(BaseModel):
    """A request in System One's format. `model` has no effect; pictures and sound are refused."""

    model_config = ConfigDict(extra="allow")

    model: str = ""
    state: Json
    questions: Annotated[dict[str, NamedQuestion], Field(min_length=1, max_length=MOST_QUESTIONS)]


def _wrong(where: str, rule: str) -> Refusal:
    return Refusal(422, "invalid", f"{where}: {rule}.", "Correct this field.", f"{where}.criteria")


# -- both --------------------------------------------------------------------------------------------------------------


def routes(decide: Callable[..., Awaitable[Timed]], options: GatewayOptions, metrics: Metrics) -> list[Route]:
    """Return the routes of both formats. `decide` is called without tools."""
    model = public_name(options.model)

    async def answered(state: str, questions: Sequence[DecisionQuestion | NamedQuestion], places: Sequence[str]) -> Any:
        """Return the decision, the number of newly cached tokens, and the answers."""
        typed = [question.typed(f"questions{place}") for question, place in zip(questions, places, strict=True)]
        timed = await decide((), deciders.encode_questions([question.question() for question in typed]), state)
        assert timed.decision.call is not None
        shares = timed.decision.call.arguments
        rows = zip(questions, typed, shares["probabilities"], strict=True)
        return timed, shares["kept"], [question.answer(typed, row) for question, typed, row in rows]

    async def of_openai(request: Request) -> Response:
        body = await read(request, DecisionsRequest, options, 400)
        places = [f"[{i}]" for i, _ in enumerate(body.questions)]
        timed, kept, answers = await answered(body.input, body.questions, places)
        cached, total = timed.decision.reused_tokens, timed.decision.tokens + timed.decision.reused_tokens
        usage = {
            "input_tokens": total,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": kept},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": total,
        }
        return response(answers, usage, timed)

    async def of_system_one(request: Request) -> Response:
        body = await read(request, SystemOneRequest, options)
        if media := [name for name in MEDIA if (body.model_extra or {}).get(name)]:
            raise Refusal(422, "unsupported", f"The request has {media[0]}.", "This model reads text only.", media[0])
        places = [f".{name[:80]}" for name in body.questions]
        timed, _, answers = await answered(as_text(body.state), list(body.questions.values()), places)
        cached = timed.decision.reused_tokens
        usage = {"input_tokens": timed.decision.tokens + cached, "output_tokens": 0, "cached_tokens": cached}
        return response(dict(zip(body.questions, answers, strict=True)), usage, timed)

    def response(answers: Any, usage: dict[str, Any], timed: Timed) -> Response:
        return JSONResponse({"model": model, "answers": answers, "usage": usage, "rtcontrol": timed.timing()})

    return [
        Route("/v1/decisions", metrics.counted("decisions", of_openai), methods=["POST"]),
        Route("/v1/systemone", metrics.counted("systemone", of_system_one), methods=["POST"]),
    ]
