"""The gateway's routes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket

from rtcontrol.gateway import chat, decisions, view
from rtcontrol.gateway.decide import Timed, ToolSets, error_boundary, public_name, read
from rtcontrol.gateway.http_server import HTTPServer, Refusal, behind_gate
from rtcontrol.gateway.metrics import Metrics
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.gateway.websocket import WebSockets
from rtcontrol.hosts.protocol import DecoderPool
from rtcontrol.serve.session_manager import SessionManager
from rtcontrol.telemetry.causes import script
from rtcontrol_client.wire import PROTOCOL


def build(
    admission: SessionManager,
    tool_sets: ToolSets,
    options: GatewayOptions,
    metrics: Metrics,
) -> Starlette:
    """The application, without its gate."""
    sockets = WebSockets(admission, metrics)
    model, own = public_name(options.model), list(admission.options.default_tools)
    since = int(time.time())

    async def decide(tools: Sequence[dict[str, Any]], *told: Any) -> Timed:
        timed = await tool_sets.decide(tuple(tools), *told)
        metrics.latency.observe(timed.latency_ms / 1e3)
        return timed

    async def health(request: Request) -> Response:
        told = admission.health()
        loaded = bool(told.get("decoder", True))
        status = {"status": "ok" if loaded else "no decoder", "loaded": loaded}
        return JSONResponse({**told, **status, "model": model, "protocol": list(PROTOCOL)}, 200 if loaded else 503)

    async def metrics_text(request: Request) -> Response:
        metrics.websockets.set(sockets.open)
        metrics.tool_sets.set(tool_sets.open)
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [chat.model(model, since)]})

    async def completions(request: Request) -> Response:
        wanted = await read(request, chat.ChatRequest, options, 400)
        answer = await chat.decided(wanted, wanted.offer(own), decide)
        headers = answer.timed.headers()
        if wanted.stream:
            events = chat.chunks(wanted, answer)
            return StreamingResponse(events, 200, {**headers, "cache-control": "no-cache"}, "text/event-stream")
        return JSONResponse(chat.completion(wanted, answer), headers=headers)

    async def missing(request: Request, error: Exception) -> Response:
        status, code = 404, "not_found"
        # The page's files take no POST, and they are at every other path.
        if request.url.path in (route.path for route in routes if isinstance(route, Route)):
            status, code = 405, "method_not_allowed"
        what = f"There is no {request.method} {request.url.path[:80]} here."
        return Refusal(status, code, what, "An OpenAI client's base_url ends with /v1.").response()

    async def no_socket(socket: WebSocket) -> None:
        await socket.close()

    routes: list[BaseRoute] = [
        *decisions.routes(decide, options, metrics),
        Route("/v1/chat/completions", error_boundary("chat", completions, metrics), methods=["POST"]),
        Route("/v1/models", models),
        Route("/health", health),
        Route("/metrics", metrics_text),
        WebSocketRoute("/ws", sockets.serve),
        *view.routes(lambda name: view.find(admission, name), lambda: view.listed(admission)),
        WebSocketRoute("/{path:path}", no_socket),
        *([] if options.static is None else [Mount("/static", StaticFiles(directory=options.static, html=True))]),
        Route("/crowd", lambda request: FileResponse(view.PAGE / "crowd.html")),
        Route("/causes.js", lambda request: Response(script(), media_type="text/javascript")),
        *view.files(html=True),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: missing})


class GatewayApp:
    """The routes for an admission, and what decides for them. `app` is without its gate, `gated` behind it."""

    def __init__(self, admission: SessionManager, pool: DecoderPool, options: GatewayOptions) -> None:
        self._tool_sets = ToolSets(pool, options)
        self._metrics = Metrics(admission)
        self.app = build(admission, self._tool_sets, options, self._metrics)
        self.gated = behind_gate(self.app, options, self.refused)

    def refused(self, code: str) -> None:
        """Count a request that went no further."""
        self._metrics.refused.labels(code).inc()

    def start(self) -> None:
        """Somebody else's server calls it."""

    def close(self) -> None:
        """What decides for it ends."""
        self._tool_sets.close()


class Gateway(HTTPServer):
    """HTTP and WebSocket for an admission."""

    def __init__(self, admission: SessionManager, pool: DecoderPool, options: GatewayOptions) -> None:
        self._made = GatewayApp(admission, pool, options)
        super().__init__(self._made.app, options, "--http", self._made.refused)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._made.close()
