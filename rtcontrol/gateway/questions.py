"""The routes of `POST /v1/decisions` and `POST /v1/systemone`: one state, several typed questions, a probability for
every option; docs/decisions.md.

All questions of a request are answered together, by the model that decides for `/v1/chat/completions`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rtcontrol.gateway import body, decisions, openai_api, systemone
from rtcontrol.gateway.asked import Asked, answered
from rtcontrol.gateway.decide import Timed
from rtcontrol.gateway.metrics import Metrics
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.gateway.source import public_name
from rtcontrol.gateway.told import told
from rtcontrol.hosts import questions


def routes(
    decide: Callable[..., Awaitable[Timed]], known: Callable[[str], None], options: GatewayOptions, metrics: Metrics
) -> list[Route]:
    """Both; `decide` is asked without tools, `known` raises Refusal for a model that is not here."""
    model = public_name(options.model)

    async def ask(state: str, asked: list[Asked]) -> Timed:
        return await decide((), questions.told([one.question() for one in asked]), state)

    async def of_openai(request: Request) -> Response:
        wanted = await body.read(request, decisions.DecisionsRequest, options, 400)
        known(wanted.model)
        asked = wanted.asked()
        timed = await ask(wanted.state(), asked)
        return _response(timed, decisions.respond(wanted, model, answered(asked, timed), timed))

    async def of_system_one(request: Request) -> Response:
        wanted = await body.read(request, systemone.SystemOneRequest, options)
        asked = wanted.asked()
        timed = await ask(wanted.text(), asked)
        return _response(timed, systemone.respond(model, answered(asked, timed), timed))

    return [
        Route("/v1/decisions", told("decisions", of_openai, metrics), methods=["POST"]),
        Route("/v1/systemone", told("systemone", of_system_one, metrics), methods=["POST"]),
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
