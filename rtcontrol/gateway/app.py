"""The gateway's routes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket

from rtcontrol.bridges.wire import PROTOCOL
from rtcontrol.gateway import body, chat, openai_api, questions, simpletool, view, watched
from rtcontrol.gateway.access import Refusal
from rtcontrol.gateway.chat_request import ChatRequest
from rtcontrol.gateway.content import ContentHeads, WrittenContent
from rtcontrol.gateway.decide import Timed, ToolSets, Unavailable
from rtcontrol.gateway.metrics import Metrics
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.gateway.source import public_name
from rtcontrol.gateway.ws import WebSockets
from rtcontrol.models.errors import UserError
from rtcontrol.serve.admission import Admission

PAGE = Path(__file__).parent / "page"
DEFAULT_MODEL = "default"
READ = ["GET", "HEAD"]


def build(
    admission: Admission, tool_sets: ToolSets, content: ContentHeads, options: GatewayOptions, metrics: Metrics
) -> FastAPI:
    """The application, without its gate."""
    app = FastAPI(title="rtcontrol", docs_url=None, redoc_url=None, openapi_url=None)
    sockets = WebSockets(admission, metrics)
    model, own = public_name(options.model), list(admission.options.default_tools)
    since = int(time.time())

    async def decide(tools: Sequence[dict[str, Any]], *told: Any) -> Timed:
        timed = await tool_sets.decide(tuple(tools), *told)
        metrics.latency.observe(timed.latency_ms / 1e3)
        return timed

    @app.websocket("/ws")
    async def ws(socket: WebSocket) -> None:
        await sockets.serve(socket)

    @app.api_route("/health", methods=READ)
    async def health() -> Response:
        told = admission.health()
        loaded = bool(told.get("decoder", True))
        status = {"status": "ok" if loaded else "no decoder", "loaded": loaded}
        return JSONResponse({**told, **status, "model": model, "protocol": list(PROTOCOL)}, 200 if loaded else 503)

    @app.api_route("/metrics", methods=READ)
    async def metrics_text() -> Response:
        metrics.websockets.set(sockets.open)
        metrics.tool_sets.set(tool_sets.open)
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.post("/v1/function_call")
    async def function_call(request: Request) -> Response:
        began = time.perf_counter()
        status, headers = 200, {}
        try:
            wanted = await body.read(request, simpletool.FunctionCallRequest, options)
            wanted.tools = wanted.tools or own
            if not wanted.tools:
                raise Refusal(
                    400, "invalid", "tools: there are none.", "Give `tools`, or `serve --tools` some, or an --agent."
                )
            told = wanted.tools, wanted.instruction(), wanted.observation(), wanted.history or ()
            timed = await decide(*told)
            answer, headers = (
                simpletool.respond(timed.decision.call, timed.schemas, timed.latency_ms),
                openai_api.warning(timed.warning),
            )
            if wanted.include_content_head and answer.success:
                written = await content.write(*told)
                answer.content, headers = written.text, openai_api.warning(timed.warning, written.lacking)
        except (Refusal, UserError, Unavailable) as error:
            if isinstance(error, Refusal):
                metrics.refused.labels(error.code).inc()
            status, text = _simpletool_error(error)
            spent_ms = (time.perf_counter() - began) * 1e3
            answer = simpletool.FunctionCallResponse(success=False, latency_ms=spent_ms, error=text)
        metrics.requests.labels("function_call", status).inc()
        return Response(answer.model_dump_json(), status, headers, "application/json")

    def known(name: str) -> None:
        if name not in (model, DEFAULT_MODEL):
            what = f"There is no model {name[:80]!r} here."
            raise Refusal(404, "model_not_found", what, f"Use {model!r} or {DEFAULT_MODEL!r}.", "model")

    @app.api_route("/v1/models", methods=READ)
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [openai_api.model(model, since)]}

    @app.api_route("/v1/models/{name:path}", methods=READ)
    async def one_model(name: str) -> dict[str, Any]:
        known(name)
        return openai_api.model(name, since)

    @app.post("/v1/chat/completions")
    async def completions(request: Request) -> Response:
        wanted = await body.read(request, ChatRequest, options, 400)
        known(wanted.model)
        wanted.tools = wanted.tools or own
        answer = await chat.decided(wanted, decide, options.decide_timeout_s)
        metrics.requests.labels("chat", 200).inc()
        headers = openai_api.warning(answer.timed[0].warning)

        async def written() -> WrittenContent:
            history = [one.text() for one in wanted.made()]
            return await content.write(wanted.offer().tools, wanted.instruction(), wanted.observation(), history)

        beside = written if wanted.include_content_head and (answer.calls or answer.stopped) else None
        if wanted.stream:
            events = openai_api.chunks(wanted, answer, beside)
            return StreamingResponse(events, 200, {**headers, "cache-control": "no-cache"}, "text/event-stream")
        said = None if beside is None else await beside()
        return JSONResponse(openai_api.completion(wanted, answer, said), headers=headers)

    questions.add(app, decide, known, options, metrics)

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        metrics.refused.labels(error.code).inc()
        metrics.requests.labels("chat", error.status).inc()
        return _openai_error(error.status, error.code, f"{error.what} {error.remedy}", error.param)

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
        path, method = request.url.path, request.method
        routes = [(route.path, sorted(route.methods or ())) for route in app.routes if isinstance(route, APIRoute)]
        if allowed := sorted({m for there, methods in routes if there == path for m in methods}):
            what = f"{path[:80]} takes no {method}. Use {' or '.join(allowed)}."
            return _openai_error(405, "method_not_allowed", what, headers={"allow": ", ".join(allowed)})
        there = ", ".join(f"{methods[0]} {named.partition('{')[0]}" for named, methods in routes)
        what = f"There is no {method} {path[:80]} here. There are {there}; an OpenAI client's base_url ends with /v1."
        return _openai_error(404 if error.status_code == 405 else error.status_code, "not_found", what)

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


def _openai_error(
    status: int, code: str, message: str, param: str | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    return JSONResponse(openai_api.error(status, code, message, param), status, headers)
