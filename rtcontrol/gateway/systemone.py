"""`POST /v1/systemone`: the System One shape of decision APIs (`noul`, `choice`, `score`), by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rtcontrol.gateway import body, decisions, openai_api
from rtcontrol.gateway.access import Refusal
from rtcontrol.gateway.decide import Timed
from rtcontrol.gateway.decisions import Answered, TypedQuestion, answered, as_text
from rtcontrol.gateway.metrics import Metrics
from rtcontrol.gateway.openai_api import error_boundary
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.gateway.source import public_name
from rtcontrol.hosts import deciders

Json = str | dict[str, Any] | list[Any]
MEDIA = ("images", "audio", "videos", "assets")


class NoulQuestion(BaseModel):
    type: Literal["noul"]
    instructions: Json | None = None
    criteria: dict[Literal["true", "false"], Json | None] | None = None


class NamedChoice(BaseModel):
    type: Literal["choice"]
    instructions: Json | None = None
    criteria: Annotated[dict[str, Json | None], Field(min_length=2, max_length=decisions.MOST_OPTIONS)]


class NamedScore(BaseModel):
    type: Literal["score"]
    instructions: Json | None = None
    criteria: Annotated[list[Json], Field(min_length=2, max_length=decisions.MOST_LEVELS)]


NamedQuestion = Annotated[NoulQuestion | NamedChoice | NamedScore, Field(discriminator="type")]


class SystemOneRequest(BaseModel):
    """`model` may be any: clients send the one that they were trained with. Pictures and sound are refused."""

    model_config = ConfigDict(extra="allow")

    model: str = ""
    state: Json
    questions: Annotated[dict[str, NamedQuestion], Field(min_length=1, max_length=decisions.MOST_QUESTIONS)]

    def text(self) -> str:
        """The state. Raises Refusal."""
        given = [name for name in MEDIA if (self.model_extra or {}).get(name)]
        if given:
            raise Refusal(422, "unsupported", f"{given[0]} are given.", "This model reads text only.", given[0])
        return as_text(self.state)

    def typed_questions(self) -> list[TypedQuestion]:
        """Raises Refusal."""
        return [_asked(name, question) for name, question in self.questions.items()]


def _asked(name: str, question: NoulQuestion | NamedChoice | NamedScore) -> TypedQuestion:
    said = "" if question.instructions is None else as_text(question.instructions)
    if isinstance(question, NamedScore):
        levels = [as_text(level) for level in question.criteria]
        return TypedQuestion("score", name, said, range(len(levels)), levels)
    described = {option: "" if words is None else as_text(words) for option, words in (question.criteria or {}).items()}
    if isinstance(question, NamedChoice):
        return TypedQuestion("choice", name, said, list(described), list(described.values()))
    if not said and not described:
        field = f"questions.{name[:80]}"
        raise Refusal(422, "invalid", f"{field}: neither instructions nor criteria.", "Give one of them.", field)
    return TypedQuestion.predicate(name, said, {str(answer): words for answer, words in described.items()})


def respond(model: str, found: Sequence[Answered], timed: Timed) -> dict[str, Any]:
    used = timed.decision.tokens + timed.decision.reused_tokens
    return {
        "model": model,
        "answers": {one.asked.name: _answer(one) for one in found},
        "usage": {"input_tokens": used, "output_tokens": 0, "cached_tokens": timed.decision.reused_tokens},
    }


def _answer(one: Answered) -> Mapping[str, Any]:
    shares = {str(value): p for value, p in zip(one.asked.values, one.probabilities, strict=True)}
    if one.asked.kind == "predicate":
        return {"type": "noul", "noul": one.probabilities[0]}
    if one.asked.kind == "choice":
        return {"type": "choice", "choice": one.choice, "probabilities": shares, "confidence": one.confidence}
    legend = {str(level): words for level, words in enumerate(one.asked.descriptions)}
    told = {"type": "score", "score": one.expected, "legend": legend}
    return {**told, "probabilities": shares, "confidence": one.confidence}


def routes(
    decide: Callable[..., Awaitable[Timed]], known: Callable[[str], None], options: GatewayOptions, metrics: Metrics
) -> list[Route]:
    """Both; `decide` is asked without tools, `known` raises Refusal for a model that is not here."""
    model = public_name(options.model)

    async def ask(state: str, asked: list[TypedQuestion]) -> Timed:
        return await decide((), deciders.encode_questions([one.question() for one in asked]), state)

    async def of_openai(request: Request) -> Response:
        wanted = await body.read(request, decisions.DecisionsRequest, options, 400)
        known(wanted.model)
        asked = wanted.typed_questions()
        timed = await ask(wanted.input, asked)
        return _response(timed, decisions.respond(wanted, model, answered(asked, timed), timed))

    async def of_system_one(request: Request) -> Response:
        wanted = await body.read(request, SystemOneRequest, options)
        asked = wanted.typed_questions()
        timed = await ask(wanted.text(), asked)
        return _response(timed, respond(model, answered(asked, timed), timed))

    return [
        Route("/v1/decisions", error_boundary("decisions", of_openai, metrics), methods=["POST"]),
        Route("/v1/systemone", error_boundary("systemone", of_system_one, metrics), methods=["POST"]),
    ]


def _response(timed: Timed, answer: dict[str, Any]) -> Response:
    extra = {
        "latency_ms": round(timed.latency_ms, 3),
        "decide_ms": round(timed.decide_ms, 3),
        "forward_passes": timed.decision.forward_passes,
        "trained": timed.trained,
        **({"warning": timed.warning} if timed.warning else {}),
    }
    return JSONResponse({**answer, "rtcontrol": extra}, headers=openai_api.warning(timed.warning))
