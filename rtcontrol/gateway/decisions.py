"""Serve `POST /v1/decisions` (OpenAI's format) and `POST /v1/systemone` (System One's format): questions about a state.

The answer to a question is a probability (predicate: true or false), an option (choice), or a level (score).
"""

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

from rtcontrol.gateway.bodies import read_body
from rtcontrol.gateway.decide import TimedDecision, public_name
from rtcontrol.gateway.gate import Refusal
from rtcontrol.gateway.metrics import Metrics
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.hosts import deciders
from rtcontrol.models.questions import StateQuestion

MAX_QUESTIONS, MAX_OPTIONS, MAX_LEVELS = 400, 255, 10
MEDIA = ("images", "audio", "videos", "assets")
Json = str | dict[str, Any] | list[Any]
Kind = Literal["predicate", "choice", "score"]


def as_text(value: Any) -> str:
    """Return a string unchanged, an empty string for None, and any other value as compact JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True)
class TypedQuestion:
    """A question in a common form, into which the questions of both formats are converted."""

    kind: Kind
    instructions: str
    values: Sequence[str | bool | int]  # the options (of a score: the numbers of its levels)
    descriptions: Sequence[str]  # a text about each option, which may be empty

    def to_state_question(self) -> StateQuestion:
        """Return the question for the model: the instructions, followed by a line for each option.

        If an option is not a string, write all options as JSON, which distinguishes true from "true".
        """
        plain = all(isinstance(value, str) for value in self.values)
        options = tuple(str(v) if plain else json.dumps(v, ensure_ascii=False) for v in self.values)
        described = zip(options, self.descriptions, strict=True)
        lines = [f"{option}: {words}" if words else option for option, words in described]
        return StateQuestion("\n".join([self.instructions, *lines]), options)

    def summarize(self, probabilities: Sequence[float]) -> dict[str, Any]:
        """Return the fields with the most probable option (or the expected level of a score) and the confidence. The
        confidence is 0 if all options have the same probability, and 1 if an option has probability 1."""
        count, highest = len(probabilities), max(probabilities)
        confidence = {"confidence": (count * highest - 1) / (count - 1)}
        if self.kind == "score":
            return {"score": math.fsum(level * p for level, p in enumerate(probabilities)), **confidence}
        return {"choice": self.values[probabilities.index(highest)], **confidence}


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
    choices: Annotated[list[ChoiceOption], Field(min_length=2, max_length=MAX_OPTIONS)] | None = None
    levels: Annotated[list[ScoreLevel], Field(min_length=2, max_length=MAX_LEVELS)] | None = None

    def to_typed(self, field: str) -> TypedQuestion:
        """Return the question in the common form. Raises Refusal."""
        parts = self.instructions
        words = parts if isinstance(parts, str) else "\n".join(part.text for part in parts)
        if self.type == "predicate":
            return TypedQuestion("predicate", words, (True, False), ("", ""))
        field = f"{field}.{'levels' if self.type == 'score' else 'choices'}"
        texts = [level.text() for level in self.levels or ()]
        values: Sequence[str | bool | int] = range(len(texts))
        if self.type == "choice":
            texts = [option.description or "" for option in self.choices or ()]
            values = [option.value for option in self.choices or ()]
        if not values or len({(type(value), value) for value in values}) < len(values):
            problem = f"{field} is missing, or has the same value twice."
            raise Refusal(400, "invalid", problem, "Send different values.", field)
        return TypedQuestion(self.type, words, values, texts)

    def build_answer(self, typed: TypedQuestion, probabilities: Sequence[float]) -> dict[str, Any]:
        answer: dict[str, Any] = {"type": self.type, "name": self.name}
        if self.type == "predicate":
            return {**answer, "probability": probabilities[0]}
        rows: list[dict[str, Any]] = [
            {"value": v, "probability": p} for v, p in zip(typed.values, probabilities, strict=True)
        ]
        for row, level in zip(rows, self.levels or () if self.type == "score" else (), strict=False):
            row["label"] = level.label
        return {**answer, **typed.summarize(probabilities), "probabilities": rows}


class DecisionsRequest(BaseModel):
    """A request in OpenAI's format. `input`: the state as text. `model` and OpenAI's caching options are ignored."""

    model: str
    input: str
    questions: Annotated[list[DecisionQuestion], Field(min_length=1, max_length=MAX_QUESTIONS)]


class NamedQuestion(BaseModel):
    """A question in System One's format. The type `noul` is a predicate. `criteria`: descriptions of true and false, of
    the options, or of the levels."""

    type: Literal["noul", "choice", "score"]
    instructions: Json | None = None
    criteria: dict[str, Json | None] | list[Json] | None = None

    def to_typed(self, field: str) -> TypedQuestion:
        """Return the question in the common form. Raises Refusal."""
        instructions, criteria = as_text(self.instructions), self.criteria
        if self.type == "noul":
            if self.instructions is None and not criteria:
                problem = f"{field} has neither instructions nor criteria."
                raise Refusal(422, "invalid", problem, "Send at least one of them.", field)
            if criteria and not (isinstance(criteria, dict) and {*criteria} <= {"true", "false"}):
                raise _criteria_error(field, "the criteria of a noul must have the keys true and false")
            described: Any = criteria or {}
            words = [as_text(described.get(answer)) for answer in ("true", "false")]
            return TypedQuestion("predicate", instructions, (True, False), words)
        if self.type == "choice":
            if not (isinstance(criteria, dict) and 2 <= len(criteria) <= MAX_OPTIONS):
                raise _criteria_error(field, f"the criteria of a choice must be a map of 2 to {MAX_OPTIONS} options")
            return TypedQuestion("choice", instructions, list(criteria), [as_text(text) for text in criteria.values()])
        if not (isinstance(criteria, list) and 2 <= len(criteria) <= MAX_LEVELS):
            raise _criteria_error(field, f"the criteria of a score must be a list of 2 to {MAX_LEVELS} levels")
        return TypedQuestion("score", instructions, range(len(criteria)), [as_text(level) for level in criteria])

    def build_answer(self, typed: TypedQuestion, probabilities: Sequence[float]) -> dict[str, Any]:
        if self.type == "noul":
            return {"type": "noul", "noul": probabilities[0]}
        by_value = {str(value): p for value, p in zip(typed.values, probabilities, strict=True)}
        answer = {"type": self.type, **typed.summarize(probabilities), "probabilities": by_value}
        if self.type == "score":
            answer["legend"] = {str(level): words for level, words in enumerate(typed.descriptions)}
        return answer


class SystemOneRequest(BaseModel):
    """A request in System One's format. `model` is ignored. Requests with images, audio or videos are refused."""

    model_config = ConfigDict(extra="allow")

    model: str = ""
    state: Json
    questions: Annotated[dict[str, NamedQuestion], Field(min_length=1, max_length=MAX_QUESTIONS)]


def _criteria_error(field: str, rule: str) -> Refusal:
    return Refusal(422, "invalid", f"{field}: {rule}.", "Correct this field.", f"{field}.criteria")


def routes(decide: Callable[..., Awaitable[TimedDecision]], options: GatewayOptions, metrics: Metrics) -> list[Route]:
    """Return the routes of both formats. `decide`: the method `GatewayApp._decide`, which is called without tools."""
    model = public_name(options.model)

    async def decide_answers(
        state: str, questions: Sequence[DecisionQuestion | NamedQuestion], places: Sequence[str]
    ) -> Any:
        """Decide all questions. Return the decision, the number of newly cached prompt tokens, and the answers."""
        typed = [question.to_typed(f"questions{place}") for question, place in zip(questions, places, strict=True)]
        timed = await decide((), deciders.encode_questions([question.to_state_question() for question in typed]), state)
        assert timed.decision.call is not None
        probabilities = timed.decision.call.arguments
        rows = zip(questions, typed, probabilities["probabilities"], strict=True)
        return timed, probabilities["kept"], [question.build_answer(typed, row) for question, typed, row in rows]

    async def handle_openai(request: Request) -> Response:
        body = await read_body(request, DecisionsRequest, options, 400)
        places = [f"[{i}]" for i, _ in enumerate(body.questions)]
        timed, kept, answers = await decide_answers(body.input, body.questions, places)
        cached, total = timed.decision.reused_tokens, timed.decision.tokens + timed.decision.reused_tokens
        usage = {
            "input_tokens": total,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": kept},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": total,
        }
        return response(answers, usage, timed)

    async def handle_system_one(request: Request) -> Response:
        body = await read_body(request, SystemOneRequest, options)
        if media := [name for name in MEDIA if (body.model_extra or {}).get(name)]:
            hint = "Leave it out: the model reads only text."
            raise Refusal(422, "unsupported", f"The request has {media[0]}.", hint, media[0])
        places = [f".{name[:80]}" for name in body.questions]
        timed, _, answers = await decide_answers(as_text(body.state), list(body.questions.values()), places)
        cached = timed.decision.reused_tokens
        usage = {"input_tokens": timed.decision.tokens + cached, "output_tokens": 0, "cached_tokens": cached}
        return response(dict(zip(body.questions, answers, strict=True)), usage, timed)

    def response(answers: Any, usage: dict[str, Any], timed: TimedDecision) -> Response:
        return JSONResponse({"model": model, "answers": answers, "usage": usage, "rtcontrol": timed.timing()})

    return [
        Route("/v1/decisions", metrics.count_responses("decisions", handle_openai), methods=["POST"]),
        Route("/v1/systemone", metrics.count_responses("systemone", handle_system_one), methods=["POST"]),
    ]
