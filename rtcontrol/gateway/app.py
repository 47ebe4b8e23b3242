"""The gateway's routes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket

from rtcontrol.bridges.wire import PROTOCOL
from rtcontrol.gateway import body, openai_api, questions, simpletool, view, watched
from rtcontrol.gateway.access import Refusal
from rtcontrol.gateway.decide import Timed, ToolSets, Unavailable
from rtcontrol.gateway.metrics import Metrics
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.gateway.source import public_name
from rtcontrol.gateway.ws import WebSockets
from rtcontrol.models.errors import UserError
from rtcontrol.serve.admission import Admission

PAGE = Path(__file__).parent / "page"
DEFAULT_MODEL = "default"
OTHER_METHODS = ["GET", "HEAD", "PUT", "PATCH", "DELETE"]


def build(admission: Admission, tool_sets: ToolSets, options: GatewayOptions, metrics: Metrics) -> FastAPI:
    """The application, without its gate."""
    app = FastAPI(title="rtcontrol", docs_url=None, redoc_url=None, openapi_url=None)
    sockets = WebSockets(admission, metrics)
    model = public_name(options.model)
    since = int(time.time())

    async def decide(tools: Sequence[dict[str, Any]], *told: Any) -> Timed:
        timed = await tool_sets.decide(tuple(tools), *told)
        metrics.latency.observe(timed.latency_ms / 1e3)
        return timed

    @app.websocket("/ws")
    async def ws(socket: WebSocket) -> None:
        await sockets.serve(socket)

    @app.get("/health")
    async def health() -> Response:
        told = admission.health()
        loaded = bool(told.get("decoder", True))
        status = {"status": "ok" if loaded else "no decoder", "loaded": loaded}
        return JSONResponse({**told, **status, "model": model, "protocol": list(PROTOCOL)}, 200 if loaded else 503)

    @app.get("/metrics")
    async def metrics_text() -> Response:
        metrics.websockets.set(sockets.open)
        metrics.tool_sets.set(tool_sets.open)
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.post("/v1/function_call")
    async def function_call(request: Request) -> Response:
        began = time.perf_counter()
        status = 200
        try:
            wanted = await body.read(request, simpletool.FunctionCallRequest, options)
            timed = await decide(wanted.tools, wanted.instruction(), wanted.observation(), wanted.history or ())
            answer = simpletool.respond(timed.decision.call, timed.schemas, timed.latency_ms)
        except (Refusal, UserError, Unavailable) as error:
            if isinstance(error, Refusal):
                metrics.refused.labels(error.code).inc()
            status, text = _simpletool_error(error)
            spent_ms = (time.perf_counter() - began) * 1e3
            answer = simpletool.FunctionCallResponse(success=False, latency_ms=spent_ms, error=text)
        metrics.requests.labels("function_call", status).inc()
        return Response(answer.model_dump_json(), status, media_type="application/json")

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return openai_api.models(model, since)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        wanted = await body.read(request, openai_api.ChatRequest, options)
        if wanted.model not in (model, DEFAULT_MODEL):
            raise Refusal(404, "model_not_found", f"There is no model {wanted.model[:80]!r} here.", f"Use {model!r}.")
        timed = await openai_api.decided(wanted, decide, options.decide_timeout_s)
        metrics.requests.labels("chat", 200).inc()
        if not wanted.stream:
            return JSONResponse(openai_api.completion(wanted, timed))

        async def events() -> AsyncIterator[str]:
            for event in openai_api.chunks(wanted, timed):
                yield event

        return StreamingResponse(events(), media_type="text/event-stream", headers={"cache-control": "no-cache"})

    questions.add(app, decide, options, metrics)

    # Without these routes the page's files would be looked through, and say 404.
    @app.api_route("/v1/function_call", methods=OTHER_METHODS)
    @app.api_route("/v1/chat/completions", methods=OTHER_METHODS)
    @app.api_route("/v1/decisions", methods=OTHER_METHODS)
    @app.api_route("/v1/systemone", methods=OTHER_METHODS)
    async def not_post() -> None:
        raise HTTPException(405, "Use POST.", {"allow": "POST"})

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        metrics.refused.labels(error.code).inc()
        metrics.requests.labels("chat", error.status).inc()
        return _openai_error(error.status, error.code, f"{error.what} {error.remedy}")

    @app.exception_handler(UserError)
    async def mistake(request: Request, error: UserError) -> Response:
        metrics.requests.labels("chat", 400).inc()
        return _openai_error(400, "invalid_request", str(error))

    @app.exception_handler(Unavailable)
    async def unavailable(request: Request, error: Unavailable) -> Response:
        metrics.requests.labels("chat", 503).inc()
        return _openai_error(503, "unavailable", f"The decoder cannot answer: {error}. Try again.")

    @app.exception_handler(HTTPException)
    async def missing(request: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http")
        answer = _openai_error(error.status_code, code, str(error.detail))
        answer.headers.update(error.headers or {})
        return answer

    view.add(app, lambda name: watched.find(admission, name), lambda: watched.listed(admission))
    if options.static is not None:
        app.mount("/static", StaticFiles(directory=options.static, html=True))
    app.mount("/", StaticFiles(directory=PAGE, html=True))
    return app


def _simpletool_error(error: Exception) -> tuple[int, str]:
    """As the original: what the model or the schema will not do is 200 with `success` false."""
    if isinstance(error, Refusal):
        return error.status, f"{error.what} {error.remedy}"
    if isinstance(error, Unavailable):
        return 503, f"The decoder cannot answer: {error}. Try again."
    return 200, str(error)


def _openai_error(status: int, code: str, message: str) -> JSONResponse:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return JSONResponse({"error": {"message": message, "type": kind, "param": None, "code": code}}, status)
