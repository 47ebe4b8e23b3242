"""`POST /v1/decisions` (OpenAI's shape) and `POST /v1/systemone` (System One's): typed questions about one state."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rtcontrol.gateway import body
from rtcontrol.gateway.access import Refusal
from rtcontrol.gateway.decide import Timed, public_name, timing
from rtcontrol.gateway.metrics import Metrics
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.hosts import deciders
from rtcontrol.models.call import Decision
from rtcontrol.models.questions import StateQuestion

MOST_QUESTIONS, MOST_OPTIONS, MOST_LEVELS = 400, 255, 10
MEDIA = ("images", "audio", "videos", "assets")
Json = str | dict[str, Any] | list[Any]


def as_text(value: Any) -> str:
    """Return text as it is, nothing for None, everything else as compact JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True)
class TypedQuestion:
    """A question with the `value` of each option (of a score, its level's number) and the text that describes it."""

    kind: Literal["predicate", "choice", "score"]
    name: str | None
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


class TextPart(BaseModel):
    type: Literal["input_text"]
    text: str


class PredicateQuestion(BaseModel):
    type: Literal["predicate"]
    name: str | None = None
    instructions: str | list[TextPart]

    def typed(self, where: str) -> TypedQuestion:
        return TypedQuestion("predicate", self.name, self.wording(), (True, False), ("", ""))

    def wording(self) -> str:
        given = self.instructions
        return given if isinstance(given, str) else "\n".join(part.text for part in given)


class ChoiceOption(BaseModel):
    value: StrictStr | StrictBool
    description: str | None = None


class ChoiceQuestion(PredicateQuestion):
    type: Literal["choice"]  # type: ignore[assignment]
    choices: Annotated[list[ChoiceOption], Field(min_length=2, max_length=MOST_OPTIONS)]

    def typed(self, where: str) -> TypedQuestion:
        """Raises Refusal."""
        values = [option.value for option in self.choices]
        if len({(type(value), value) for value in values}) < len(values):
            what = f"{where}.choices: a value is there twice."
            raise Refusal(400, "invalid", what, "Each choice must be unique.", f"{where}.choices")
        return TypedQuestion("choice", self.name, self.wording(), values, [x.description or "" for x in self.choices])


class ScoreLevel(BaseModel):
    label: str
    description: str | None = None


class ScoreQuestion(PredicateQuestion):
    type: Literal["score"]  # type: ignore[assignment]
    levels: Annotated[list[ScoreLevel], Field(min_length=2, max_length=MOST_LEVELS)]

    def typed(self, where: str) -> TypedQuestion:
        labels = [f"{x.label}: {x.description}" if x.description else x.label for x in self.levels]
        return TypedQuestion("score", self.name, self.wording(), range(len(labels)), labels)


AnyQuestion = Annotated[PredicateQuestion | ChoiceQuestion | ScoreQuestion, Field(discriminator="type")]


class DecisionsRequest(BaseModel):
    """`input` is the state as text. Caching options change nothing: the last input stays cached."""

    model: str
    input: str
    questions: Annotated[list[AnyQuestion], Field(min_length=1, max_length=MOST_QUESTIONS)]


class NamedQuestion(BaseModel):
    """`criteria` describe true and false of a `noul`, the options of a `choice`, and the levels of a `score`."""

    type: Literal["noul"]
    instructions: Json | None = None
    criteria: dict[Literal["true", "false"], Json | None] | None = None

    def typed(self, name: str) -> TypedQuestion:
        """Raises Refusal."""
        if self.instructions is None and not self.criteria:
            field = f"questions.{name[:80]}"
            raise Refusal(422, "invalid", f"{field}: neither instructions nor criteria.", "Give one of them.", field)
        described: Mapping[Any, Json | None] = self.criteria or {}
        words = [as_text(described.get(answer)) for answer in ("true", "false")]
        return TypedQuestion("predicate", name, as_text(self.instructions), (True, False), words)


class NamedChoice(NamedQuestion):
    type: Literal["choice"]  # type: ignore[assignment]
    criteria: Annotated[dict[str, Json | None], Field(min_length=2, max_length=MOST_OPTIONS)]  # type: ignore[assignment]

    def typed(self, name: str) -> TypedQuestion:
        words = [as_text(one) for one in self.criteria.values()]
        return TypedQuestion("choice", name, as_text(self.instructions), list(self.criteria), words)


class NamedScore(NamedQuestion):
    type: Literal["score"]  # type: ignore[assignment]
    criteria: Annotated[list[Json], Field(min_length=2, max_length=MOST_LEVELS)]  # type: ignore[assignment]

    def typed(self, name: str) -> TypedQuestion:
        levels = [as_text(level) for level in self.criteria]
        return TypedQuestion("score", name, as_text(self.instructions), range(len(levels)), levels)


class SystemOneRequest(BaseModel):
    """`model` may be any: clients send the one that they were trained with. Pictures and sound are refused."""

    model_config = ConfigDict(extra="allow")

    model: str = ""
    state: Json
    questions: Annotated[
        dict[str, Annotated[NamedQuestion | NamedChoice | NamedScore, Field(discriminator="type")]],
        Field(min_length=1, max_length=MOST_QUESTIONS),
    ]


def routes(
    decide: Callable[..., Awaitable[Timed]], known: Callable[[str], None], options: GatewayOptions, metrics: Metrics
) -> list[Route]:
    """Return both routes; `decide` gets no tools, `known` raises Refusal for a model that is not here."""
    model = public_name(options.model)

    async def ask(state: str, asked: list[TypedQuestion]) -> tuple[Timed, Mapping[str, Any]]:
        timed = await decide((), deciders.encode_questions([one.question() for one in asked]), state)
        assert timed.decision.call is not None
        return timed, timed.decision.call.arguments

    async def of_openai(request: Request) -> Response:
        wanted = await body.read(request, DecisionsRequest, options, 400)
        known(wanted.model)
        asked = [question.typed(f"questions[{i}]") for i, question in enumerate(wanted.questions)]
        timed, found = await ask(wanted.input, asked)
        told = zip(asked, found["probabilities"], wanted.questions, strict=True)
        answers = [_of_openai(*one) for one in told]
        return _response(model, answers, _usage(timed.decision, found["kept"]), timed)

    async def of_system_one(request: Request) -> Response:
        wanted = await body.read(request, SystemOneRequest, options)
        if given := [name for name in MEDIA if (wanted.model_extra or {}).get(name)]:
            raise Refusal(422, "unsupported", f"{given[0]} are given.", "This model reads text only.", given[0])
        asked = [question.typed(name) for name, question in wanted.questions.items()]
        timed, found = await ask(as_text(wanted.state), asked)
        cached = timed.decision.reused_tokens
        usage = {"input_tokens": timed.decision.tokens + cached, "output_tokens": 0, "cached_tokens": cached}
        answers = {one.name: _of_system_one(one, row) for one, row in zip(asked, found["probabilities"], strict=True)}
        return _response(model, answers, usage, timed)

    return [
        Route("/v1/decisions", body.error_boundary("decisions", of_openai, metrics), methods=["POST"]),
        Route("/v1/systemone", body.error_boundary("systemone", of_system_one, metrics), methods=["POST"]),
    ]


def _usage(decision: Decision, kept: int) -> dict[str, Any]:
    total = decision.tokens + decision.reused_tokens
    return {
        "input_tokens": total,
        "input_tokens_details": {"cached_tokens": decision.reused_tokens, "cache_write_tokens": kept},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": total,
    }


def _of_openai(asked: TypedQuestion, shares: Sequence[float], question: PredicateQuestion) -> dict[str, Any]:
    told: dict[str, Any] = {"type": asked.kind, "name": asked.name}
    if asked.kind == "predicate":
        return {**told, "probability": shares[0]}
    pairs = zip(asked.values, shares, strict=True)
    rows: list[dict[str, Any]] = [{"value": value, "probability": share} for value, share in pairs]
    if isinstance(question, ScoreQuestion):
        rows = [{**row, "label": level.label} for row, level in zip(rows, question.levels, strict=True)]
    return {**told, **asked.judged(shares), "probabilities": rows}


def _of_system_one(asked: TypedQuestion, shares: Sequence[float]) -> dict[str, Any]:
    if asked.kind == "predicate":
        return {"type": "noul", "noul": shares[0]}
    probabilities = {str(value): p for value, p in zip(asked.values, shares, strict=True)}
    told = {"type": asked.kind, **asked.judged(shares), "probabilities": probabilities}
    if asked.kind == "score":
        told["legend"] = {str(level): words for level, words in enumerate(asked.descriptions)}
    return told


def _response(model: str, answers: Any, usage: dict[str, Any], timed: Timed) -> Response:
    told = {"model": model, "answers": answers, "usage": usage, "rtcontrol": timing([timed])}
    return JSONResponse(told, headers=timed.headers())
