"""The routes of `POST /v1/decisions` and `POST /v1/systemone`: one state, several typed questions, a probability for
every option; docs/decisions.md.

All questions of a request are answered together, by the model that decides for `/v1/chat/completions`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from rtcontrol.gateway import body, decisions, systemone
from rtcontrol.gateway.access import Refusal
from rtcontrol.gateway.asked import Asked, answered
from rtcontrol.gateway.decide import Timed, Unavailable
from rtcontrol.gateway.metrics import Metrics
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.gateway.source import public_name
from rtcontrol.hosts.questions import told
from rtcontrol.models.errors import UserError
from rtcontrol.run.trained import trained_on_questions

log = logging.getLogger("rtcontrol.gateway")
ANY_MODEL = "default"
WARNING = "x-rtcontrol-warning"


def add(app: FastAPI, decide: Callable[..., Awaitable[Timed]], options: GatewayOptions, metrics: Metrics) -> None:
    """Both routes; `decide` is asked without tools."""
    model = public_name(options.model)
    trained = trained_on_questions(options.model)
    warning = f"The model {model} was not trained on questions: its probabilities are legal, and mean nothing."

    async def answer(state: str, asked: list[Asked]) -> tuple[Timed, dict[str, Any]]:
        timed = await decide((), told([one.question() for one in asked]), state)
        if trained is False and not warned:
            warned.append(True)
            log.warning("%s This is said once.", warning)
        extra = {
            "latency_ms": round(timed.latency_ms, 3),
            "decide_ms": round(timed.decide_ms, 3),
            "forward_passes": timed.decision.forward_passes,
            "trained": trained,
        }
        return timed, {"rtcontrol": extra}

    warned: list[bool] = []
    headers = {WARNING: warning} if trained is False else None

    async def of_openai(request: Request) -> dict[str, Any]:
        wanted = await body.read(request, decisions.DecisionsRequest, options)
        if wanted.model not in (model, ANY_MODEL):
            what = f"There is no model {wanted.model[:80]!r} here."
            raise Refusal(404, "model_not_found", what, f"Use {model!r}.", "model")
        asked = wanted.asked()
        timed, extra = await answer(wanted.state(), asked)
        return {**decisions.respond(wanted, model, answered(asked, timed), timed), **extra}

    async def of_system_one(request: Request) -> dict[str, Any]:
        wanted = await body.read(request, systemone.SystemOneRequest, options)
        asked = wanted.asked()
        timed, extra = await answer(wanted.text(), asked)
        return {**systemone.respond(wanted, model, answered(asked, timed), timed), **extra}

    async def respond(route: str, made: Callable[[Request], Awaitable[dict[str, Any]]], request: Request) -> Response:
        try:
            response = JSONResponse(await made(request), headers=headers)
        except Refusal as error:
            refusal = decisions.refused(error) if route == "decisions" else error
            metrics.refused.labels(refusal.code).inc()
            response = _error(refusal.status, refusal.code, f"{refusal.what} {refusal.remedy}", refusal.param)
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
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return JSONResponse({"error": {"message": message, "type": kind, "param": param, "code": code}}, status)
