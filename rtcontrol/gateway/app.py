"""The gateway: a server's HTTP and WebSocket routes for sessions, /v1 requests, the live view and /metrics."""

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
from rtcontrol.gateway.bodies import read_body
from rtcontrol.gateway.decide import TimedDecision, ToolSetCache, public_name
from rtcontrol.gateway.gate import Refusal, with_access_checks
from rtcontrol.gateway.http_server import HTTPServer
from rtcontrol.gateway.metrics import Metrics
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.gateway.websocket import WebSockets
from rtcontrol.hosts.protocol import DecoderPool
from rtcontrol.serve.session_manager import SessionManager
from rtcontrol.telemetry.causes import causes_script
from rtcontrol_client.wire import PROTOCOL


class GatewayApp:
    """The gateway's ASGI application. `gated`: the application with access checks, which an HTTP server can run."""

    def __init__(self, sessions: SessionManager, pool: DecoderPool, options: GatewayOptions) -> None:
        self._sessions, self._options = sessions, options
        self._tool_sets, self._metrics = ToolSetCache(pool, options), Metrics(sessions)
        self._model, self._since = public_name(options.model), int(time.time())
        self._routes = self._all_routes()
        app = Starlette(routes=self._routes, exception_handlers={HTTPException: self._missing_route})
        self.gated = with_access_checks(app, options)

    def start(self) -> None:
        """Do nothing: an HTTP server elsewhere runs the application."""

    def close(self) -> None:
        """Close the tool sets and their decoder hosts."""
        self._tool_sets.close()

    def _all_routes(self) -> list[BaseRoute]:
        sessions, static = self._sessions, self._options.static
        return [
            *decisions.routes(self._decide, self._options, self._metrics),
            Route("/v1/chat/completions", self._metrics.count_responses("chat", self._completions), methods=["POST"]),
            Route("/v1/models", self._models),
            Route("/health", self._health),
            Route("/metrics", self._metrics_text),
            WebSocketRoute("/ws", WebSockets(sessions).serve),
            *view.view_routes(lambda name: view.find_session(sessions, name), lambda: view.list_sessions(sessions)),
            WebSocketRoute("/{path:path}", self._no_socket),
            *([] if static is None else [Mount("/static", StaticFiles(directory=static, html=True))]),
            Route("/crowd", lambda request: FileResponse(view.PAGE / "crowd.html")),
            Route("/causes.js", lambda request: Response(causes_script(), media_type="text/javascript")),
            *view.page_routes(html=True),
        ]

    async def _decide(self, tools: Sequence[dict[str, Any]], *prompt: Any) -> TimedDecision:
        timed = await self._tool_sets.decide(tuple(tools), *prompt)
        self._metrics.latency.observe(timed.latency_ms / 1e3)
        return timed

    async def _completions(self, request: Request) -> Response:
        body = await read_body(request, chat.ChatRequest, self._options, 400)
        answer = await chat.decide_reply(body, body.offered_tools(self._sessions.options.default_tools), self._decide)
        if body.stream:
            headers = {"cache-control": "no-cache"}
            return StreamingResponse(chat.completion_events(body, answer), 200, headers, "text/event-stream")
        return JSONResponse(chat.completion_body(body, answer))

    async def _models(self, request: Request) -> Response:
        model = {"id": self._model, "object": "model", "created": self._since, "owned_by": "rtcontrol"}
        return JSONResponse({"object": "list", "data": [model]})

    async def _health(self, request: Request) -> Response:
        health = self._sessions.health()
        loaded = bool(health.get("decoder", True))
        health |= {"status": "ok" if loaded else "no decoder", "loaded": loaded}
        return JSONResponse({**health, "model": self._model, "protocol": list(PROTOCOL)}, 200 if loaded else 503)

    async def _metrics_text(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _missing_route(self, request: Request, error: Exception) -> Response:
        # Paths without a route are files of the page, so other methods than GET get status 404 there.
        has_route = request.url.path in (route.path for route in self._routes if isinstance(route, Route))
        status, code = (405, "method_not_allowed") if has_route else (404, "not_found")
        problem = f"This server does not support {request.method} {request.url.path[:80]}."
        return Refusal(status, code, problem, "The base_url of an OpenAI client must end with /v1.").response()

    async def _no_socket(self, socket: WebSocket) -> None:
        await socket.close()


class Gateway(HTTPServer):
    """An HTTP server on its own thread that runs the gateway's application."""

    def __init__(self, sessions: SessionManager, pool: DecoderPool, options: GatewayOptions) -> None:
        self._gateway = GatewayApp(sessions, pool, options)
        super().__init__(self._gateway.gated, options)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._gateway.close()
