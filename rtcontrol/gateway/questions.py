"""The routes of `POST /v1/decisions` and `POST /v1/systemone`: one state, several typed questions, a probability for
every option; docs/decisions.md.

All questions of a request are answered together, by the model that decides for `/v1/chat/completions`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from rtcontrol.gateway import body, decisions, openai_api, systemone
from rtcontrol.gateway.access import Refusal
from rtcontrol.gateway.asked import Asked, answered
from rtcontrol.gateway.decide import Timed, Unavailable
from rtcontrol.gateway.metrics import Metrics
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.gateway.source import public_name
from rtcontrol.hosts.questions import told
from rtcontrol.models.errors import UserError


def add(
    app: FastAPI,
    decide: Callable[..., Awaitable[Timed]],
    known: Callable[[str], None],
    options: GatewayOptions,
    metrics: Metrics,
) -> None:
    """Both routes; `decide` is asked without tools, `known` raises Refusal for a model that is not here."""
    model = public_name(options.model)

    async def ask(state: str, asked: list[Asked]) -> Timed:
        return await decide((), told([one.question() for one in asked]), state)

    async def of_openai(request: Request) -> tuple[Timed, dict[str, Any]]:
        wanted = await body.read(request, decisions.DecisionsRequest, options, 400)
        known(wanted.model)
        asked = wanted.asked()
        timed = await ask(wanted.state(), asked)
        return timed, decisions.respond(wanted, model, answered(asked, timed), timed)

    async def of_system_one(request: Request) -> tuple[Timed, dict[str, Any]]:
        wanted = await body.read(request, systemone.SystemOneRequest, options)
        asked = wanted.asked()
        timed = await ask(wanted.text(), asked)
        return timed, systemone.respond(model, answered(asked, timed), timed)

    async def respond(
        route: str, made: Callable[[Request], Awaitable[tuple[Timed, dict[str, Any]]]], request: Request
    ) -> Response:
        try:
            timed, answer = await made(request)
            extra = {
                "latency_ms": round(timed.latency_ms, 3),
                "decide_ms": round(timed.decide_ms, 3),
                "forward_passes": timed.decision.forward_passes,
                "trained": timed.trained,
                **({"warning": timed.warning} if timed.warning else {}),
            }
            response = JSONResponse({**answer, "rtcontrol": extra}, headers=openai_api.warning(timed.warning))
        except Refusal as error:
            metrics.refused.labels(error.code).inc()
            response = _error(error.status, error.code, f"{error.what} {error.remedy}", error.param)
        except UserError as error:
            response = _error(400, "invalid_request", str(error))
        except Unavailable as error:
            response = _error(503, "unavailable", f"The decoder cannot answer: {error}. Try again.")
        metrics.requests.labels(route, response.status_code).inc()
        return response

    @app.post("/v1/decisions")
    async def ask_decisions(request: Request) -> Response:
        return await respond("decisions", of_openai, request)

    @app.post("/v1/systemone")
    async def ask_system_one(request: Request) -> Response:
        return await respond("systemone", of_system_one, request)


def _error(status: int, code: str, message: str, param: str | None = None) -> JSONResponse:
    return JSONResponse(openai_api.error(status, code, message, param), status)
