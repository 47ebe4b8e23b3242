"""`POST /v1/decisions` (OpenAI's shape) and `POST /v1/systemone` (System One's): typed questions about one state."""

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

from rtcontrol.gateway.decide import Timed, error_boundary, public_name, read
from rtcontrol.gateway.http_server import Refusal
from rtcontrol.gateway.metrics import Metrics
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.hosts import deciders
from rtcontrol.models.questions import StateQuestion

MOST_QUESTIONS, MOST_OPTIONS, MOST_LEVELS = 400, 255, 10
MEDIA = ("images", "audio", "videos", "assets")
Json = str | dict[str, Any] | list[Any]
Kind = Literal["predicate", "choice", "score"]


def as_text(value: Any) -> str:
    """Return text as it is, nothing for None, everything else as compact JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True)
class TypedQuestion:
    """A question with the `value` of each option (of a score, its level's number) and the text that describes it."""

    kind: Kind
    instructions: str
    values: Sequence[str | bool | int]
    descriptions: Sequence[str]

    def question(self) -> StateQuestion:
        """Return what the model reads: the instructions, then a line for each option.

        If an option is a boolean, all are written as JSON, so that true and "true" differ.
        """
        plain = all(isinstance(value, str) for value in self.values)
        options = tuple(str(v) if plain else json.dumps(v, ensure_ascii=False) for v in self.values)
        described = zip(options, self.descriptions, strict=True)
        lines = [f"{option}: {words}" if words else option for option, words in described]
        return StateQuestion("\n".join([self.instructions, *lines]), options)

    def judged(self, shares: Sequence[float]) -> dict[str, Any]:
        """Return the most probable option (the first of equals) or the expected level, and the confidence: 0 where all
        options are equally probable, 1 where one is certain. `shares` are the options' probabilities, in order."""
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


class Question(BaseModel):
    type: Kind
    name: str | None = None
    instructions: str | list[TextPart]
    choices: Annotated[list[ChoiceOption], Field(min_length=2, max_length=MOST_OPTIONS)] | None = None
    levels: Annotated[list[ScoreLevel], Field(min_length=2, max_length=MOST_LEVELS)] | None = None

    def typed(self, where: str) -> TypedQuestion:
        """Raises Refusal."""
        given = self.instructions
        words = given if isinstance(given, str) else "\n".join(part.text for part in given)
        if self.type == "predicate":
            return TypedQuestion("predicate", words, (True, False), ("", ""))
        if self.type == "score":
            levels = _needed(self.levels, f"{where}.levels")
            labels = [f"{x.label}: {x.description}" if x.description else x.label for x in levels]
            return TypedQuestion("score", words, range(len(labels)), labels)
        choices = _needed(self.choices, f"{where}.choices")
        values = [option.value for option in choices]
        if len({(type(value), value) for value in values}) < len(values):
            what = f"{where}.choices: a value is there twice."
            raise Refusal(400, "invalid", what, "Each choice must be unique.", f"{where}.choices")
        return TypedQuestion("choice", words, values, [option.description or "" for option in choices])

    def answer(self, typed: TypedQuestion, shares: Sequence[float]) -> dict[str, Any]:
        told: dict[str, Any] = {"type": self.type, "name": self.name}
        if self.type == "predicate":
            return {**told, "probability": shares[0]}
        rows = [{"value": v, "probability": p} for v, p in zip(typed.values, shares, strict=True)]
        if self.type == "score":
            rows = [{**row, "label": level.label} for row, level in zip(rows, self.levels or (), strict=True)]
        return {**told, **typed.judged(shares), "probabilities": rows}


class DecisionsRequest(BaseModel):
    """`input` is the state as text. Caching options change nothing: the last input stays cached. `model` may be any."""

    model: str
    input: str
    questions: Annotated[list[Question], Field(min_length=1, max_length=MOST_QUESTIONS)]


# -- System One's shape ------------------------------------------------------------------------------------------------


class NamedQuestion(BaseModel):
    """`criteria` describe true and false of a `noul`, the options of a `choice`, and the levels of a `score`."""

    type: Literal["noul", "choice", "score"]
    instructions: Json | None = None
    criteria: dict[str, Json | None] | list[Json] | None = None

    def typed(self, where: str) -> TypedQuestion:
        """Raises Refusal."""
        instructions, criteria = as_text(self.instructions), self.criteria
        if self.type == "noul":
            if self.instructions is None and not criteria:
                raise Refusal(422, "invalid", f"{where}: neither instructions nor criteria.", "Give one.", where)
            if criteria and not (isinstance(criteria, dict) and {*criteria} <= {"true", "false"}):
                raise _wrong(where, "criteria of a noul are those of true and false")
            described: Any = criteria or {}
            words = [as_text(described.get(answer)) for answer in ("true", "false")]
            return TypedQuestion("predicate", instructions, (True, False), words)
        if self.type == "choice":
            if not (isinstance(criteria, dict) and 2 <= len(criteria) <= MOST_OPTIONS):
                raise _wrong(where, f"criteria of a choice are 2 to {MOST_OPTIONS} options by name")
            return TypedQuestion("choice", instructions, list(criteria), [as_text(one) for one in criteria.values()])
        if not (isinstance(criteria, list) and 2 <= len(criteria) <= MOST_LEVELS):
            raise _wrong(where, f"criteria of a score are a list of 2 to {MOST_LEVELS} levels")
        return TypedQuestion("score", instructions, range(len(criteria)), [as_text(level) for level in criteria])

    def answer(self, typed: TypedQuestion, shares: Sequence[float]) -> dict[str, Any]:
        if self.type == "noul":
            return {"type": "noul", "noul": shares[0]}
        probabilities = {str(value): p for value, p in zip(typed.values, shares, strict=True)}
        told = {"type": self.type, **typed.judged(shares), "probabilities": probabilities}
        if self.type == "score":
            told["legend"] = {str(level): words for level, words in enumerate(typed.descriptions)}
        return told


class SystemOneRequest(BaseModel):
    """`model` may be any. Pictures and sound are refused."""

    model_config = ConfigDict(extra="allow")

    model: str = ""
    state: Json
    questions: Annotated[dict[str, NamedQuestion], Field(min_length=1, max_length=MOST_QUESTIONS)]


def _wrong(where: str, what: str) -> Refusal:
    return Refusal(422, "invalid", f"{where}: {what}.", "Correct this field.", f"{where}.criteria")


# -- both --------------------------------------------------------------------------------------------------------------


def routes(decide: Callable[..., Awaitable[Timed]], options: GatewayOptions, metrics: Metrics) -> list[Route]:
    """Return both routes; `decide` gets no tools."""
    model = public_name(options.model)

    async def answered(state: str, asked: Sequence[Question | NamedQuestion], at: Sequence[str]) -> tuple[Any, ...]:
        """Return the decision, how many tokens it keeps newly, and the answers."""
        typed = [question.typed(f"questions{where}") for question, where in zip(asked, at, strict=True)]
        timed = await decide((), deciders.encode_questions([one.question() for one in typed]), state)
        assert timed.decision.call is not None
        found = timed.decision.call.arguments
        rows = zip(asked, typed, found["probabilities"], strict=True)
        return timed, found["kept"], [question.answer(one, row) for question, one, row in rows]

    async def of_openai(request: Request) -> Response:
        wanted = await read(request, DecisionsRequest, options, 400)
        places = [f"[{i}]" for i, _ in enumerate(wanted.questions)]
        timed, kept, answers = await answered(wanted.input, wanted.questions, places)
        cached, total = timed.decision.reused_tokens, timed.decision.tokens + timed.decision.reused_tokens
        usage = {
            "input_tokens": total,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": kept},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": total,
        }
        return _response(model, answers, usage, timed)

    async def of_system_one(request: Request) -> Response:
        wanted = await read(request, SystemOneRequest, options)
        if given := [name for name in MEDIA if (wanted.model_extra or {}).get(name)]:
            raise Refusal(422, "unsupported", f"{given[0]} are given.", "This model reads text only.", given[0])
        names = [f".{name[:80]}" for name in wanted.questions]
        timed, _, answers = await answered(as_text(wanted.state), list(wanted.questions.values()), names)
        cached = timed.decision.reused_tokens
        usage = {"input_tokens": timed.decision.tokens + cached, "output_tokens": 0, "cached_tokens": cached}
        return _response(model, dict(zip(wanted.questions, answers, strict=True)), usage, timed)

    return [
        Route("/v1/decisions", error_boundary("decisions", of_openai, metrics), methods=["POST"]),
        Route("/v1/systemone", error_boundary("systemone", of_system_one, metrics), methods=["POST"]),
    ]


def _needed(given: list[Any] | None, where: str) -> list[Any]:
    if given is None:
        raise Refusal(400, "invalid", f"{where}: it is missing.", "Give it.", where)
    return given


def _response(model: str, answers: Any, usage: dict[str, Any], timed: Timed) -> Response:
    told = {"model": model, "answers": answers, "usage": usage, "rtcontrol": timed.timing()}
    return JSONResponse(told, headers=timed.headers())
