"""uvicorn on a thread, behind a gate that checks Host, Origin, token and declared size before any route sees a request.

See docs/security.md. Same-origin pages and programs on this machine need no token. Everything else shows the token, and
a page of another origin must be on the allow-list besides. CORS does not guard WebSockets, so Origin is checked here
for both.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.models.errors import UserError
from rtcontrol_client.wire.endpoint import SUBPROTOCOL, TOKEN_SUBPROTOCOL, is_address, is_loopback

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

ABORT = "rtcontrol.abort"  # an extension of a connection's scope, which cuts off a stuck peer
# Paths that act or tell something about the sessions, as every WebSocket does; the rest are the page's files, which are
# no secret.
GUARDED = ("/ws", "/view/", "/v1/", "/metrics", "/health")
WARNING = "x-rtcontrol-warning"
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}
IDLE_S = 10.0
START_S = 30.0
END_S = 5.0
MAX_CONNECTIONS = 256


class Refusal(Exception):
    """A request that goes no further: HTTP status, a code for counting, what and remedy, and of OpenAI's requests the
    `param`, the field that is wrong."""

    def __init__(self, status: int, code: str, what: str, remedy: str, param: str | None = None) -> None:
        super().__init__(what)
        self.status, self.code, self.what, self.remedy, self.param = status, code, what, remedy, param

    def response(self, headers: dict[str, str] | None = None) -> JSONResponse:
        """Return the error in OpenAI's shape."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        message = f"{self.what} {self.remedy}"
        error = {"message": message, "type": kind, "param": self.param, "code": self.code}
        return JSONResponse({"error": error}, self.status, headers)


def too_large(limit: int) -> Refusal:
    return Refusal(413, "too_large", f"The body is larger than {limit} bytes.", "Send less.")


# -- the gate ----------------------------------------------------------------------------------------------------------


def behind_gate(app: App, options: GatewayOptions, refused: Callable[[str], None]) -> App:
    """Return the application behind its gate; `refused` gets the code of every refusal."""
    gate: Any = AccessGate(app, options, refused)
    return CORSMiddleware(  # outside: a page of an allowed site can read why it is refused
        gate,
        allow_origins=sorted(options.origins),
        allow_methods=("GET", "HEAD", "POST"),
        allow_headers=("*",),
        expose_headers=(WARNING, "retry-after"),
    )


class AccessGate:
    """ASGI middleware. `refused` gets the code of every refusal."""

    def __init__(self, app: App, options: GatewayOptions, refused: Callable[[str], None]) -> None:
        self._app, self._options, self._refused = app, options, refused
        self._known = {_name(urlsplit(o).netloc) for o in options.origins} | {options.host}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except Refusal as refusal:
            self._refused(refusal.code)
            more = {"www-authenticate": "Bearer"} if refusal.status == 401 else {}
            await refusal.response({"connection": "close", **HEADERS, **more})(scope, receive, send)
            return
        await self._app(scope, receive, _dressed(scope, send))

    def _check(self, scope: Scope) -> None:
        """Raise Refusal for a request that may not come in."""
        headers = Headers(scope=scope)
        self._check_host(headers)
        trusted = self._same_origin(scope, headers) and self._local(scope, headers)
        guarded = scope["type"] == "websocket" or scope["path"].startswith(GUARDED)
        if guarded and (self._options.require_token or not trusted):
            check_token(scope, self._options)
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self._options.max_body_bytes:
            raise too_large(self._options.max_body_bytes)

    def _check_host(self, headers: Headers) -> None:
        # A page of a site whose name is made to point here (DNS rebinding) still names that site as its host.
        host = _name(headers.get("host", ""))
        if is_loopback(host) or host in self._known or (is_address(host) and not self._options.loopback):
            return
        what = f"The Host {host[:80]!r} is not this server's."
        hint = "Use its address, or name the site with `--allow-origin` when it stands behind a proxy."
        raise Refusal(421, "host", what, hint)

    def _same_origin(self, scope: Scope, headers: Headers) -> bool:
        """Return whether this server's page asks, or a program that is no browser. Raises Refusal for a page of a site
        that may not come in."""
        origin = headers.get("origin")
        scheme = "https" if scope["scheme"] in ("https", "wss") else "http"
        if origin is None or origin == f"{scheme}://{headers.get('host', '')}":
            return True
        if origin in self._options.origins:
            return False
        what = f"Pages of {origin[:120]!r} may not use this server."
        hint = "Allow it with `--allow-origin ORIGIN`, or serve the page from here with `--static DIR`."
        raise Refusal(403, "origin", what, hint)

    def _local(self, scope: Scope, headers: Headers) -> bool:
        client = scope.get("client")
        here = client is not None and is_loopback(client[0]) and is_loopback(_name(headers.get("host", "")))
        # A proxy on this machine speaks for others.
        return here and not any(name in headers for name in FORWARDED)


def check_token(scope: Scope, options: GatewayOptions) -> None:
    """Raise Refusal where the request does not show the access token."""
    shown, wanted = _token(scope), options.token
    if wanted is not None and shown is not None and hmac.compare_digest(shown.encode(), wanted.encode()):
        return
    raise Refusal(
        401,
        "token",
        "No access token." if shown is None or wanted is None else "This is not the access token.",
        "Send `Authorization: Bearer TOKEN` (WebSocket: ?token=TOKEN, or the subprotocol "
        f"{TOKEN_SUBPROTOCOL}TOKEN beside {SUBPROTOCOL}); the server reads it from --token-file, "
        "and has none without.",
    )


def _token(scope: Scope) -> str | None:
    scheme, _, shown = Headers(scope=scope).get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return shown.strip()
    if scope["type"] == "websocket":
        for name in scope["subprotocols"]:
            if name.startswith(TOKEN_SUBPROTOCOL):
                return str(name.removeprefix(TOKEN_SUBPROTOCOL))
        return QueryParams(scope["query_string"].decode("latin-1")).get("token")
    return None


def _dressed(scope: Scope, send: Send) -> Send:
    """Return `send` with the headers that every answer has."""
    # Pages of the user's own have inline scripts; ours have none.
    # A page that was installed anew must not meet yesterday's modules.
    policy = {"content-security-policy": PAGE_POLICY, "cache-control": "no-cache"}
    ours = HEADERS | ({} if scope["path"].startswith("/static/") else policy)

    async def dressed(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in ours.items():
                headers.setdefault(name, value)
        await send(message)

    return dressed


def _name(netloc: str) -> str:
    """Return the host (lower case, no brackets); empty where it is none."""
    try:
        return (urlsplit(f"//{netloc}").hostname or "").rstrip(".")
    except ValueError:
        return ""


# -- the server --------------------------------------------------------------------------------------------------------


class IdleHTTP(H11Protocol):
    """Cuts off a connection on which no request begins for `IDLE_S` to twice that; half a head is none. The oldest idle
    one makes room where three quarters of all places are taken."""

    since_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.since_s = self.loop.time()
        idle = [c for c in self.connections if isinstance(c, IdleHTTP) and c.idle() and not c.transport.is_closing()]
        if idle and len(self.connections) >= MAX_CONNECTIONS * 3 // 4:
            min(idle, key=lambda c: c.since_s).transport.abort()
        super().connection_made(transport)  # type: ignore[arg-type]
        self.loop.call_later(IDLE_S, self._look, None)

    def idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _look(self, last: Any) -> None:
        """`last`: the request of the last look."""
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return
        if self.cycle is last and self.idle():
            self.transport.abort()
        else:
            self.loop.call_later(IDLE_S, self._look, self.cycle)


class StuckWebSocket(WebSocketsSansIOProtocol):
    """Gives the application a way to cut a stuck peer off (`scope["extensions"]`, `ABORT`)."""

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if scope := getattr(self, "scope", None):
            scope["extensions"][ABORT] = self.transport.abort

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True  # refused with an answer: nothing that uvicorn should log as a fault


class HTTPServer:
    """Serves `app` behind the gate. `start` returns when requests are taken; `port` is then the real one. `named` is
    the option that chose the address; `refused` gets the code of every refusal."""

    def __init__(self, app: App, options: GatewayOptions, named: str, refused: Callable[[str], None]) -> None:
        self._options, self._named = options, f"{named} {options.host}:{options.port}"
        config = uvicorn.Config(
            behind_gate(app, options, refused),
            ws=StuckWebSocket,
            http=IdleHTTP,
            loop="asyncio",
            ws_max_size=options.max_body_bytes,
            ws_per_message_deflate=False,
            lifespan="off",
            # uvicorn's lines show addresses with their query, and so the token.
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            # Whoever stands before this server must not be able to say that it is this machine.
            proxy_headers=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        return self._options.port if self._socket is None else int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        host = self._options.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"

    def start(self) -> None:
        """Raises UserError when the address cannot be bound."""
        host, port = self._options.host, self._options.port
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._socket = socket.create_server((host, port), family=family, backlog=128)
        except OSError as error:
            what = f"{self._named} cannot be bound ({error.strerror or error})."
            raise UserError(what, "Choose another port or address.") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="gateway", daemon=True
        )
        self._thread.start()
        give_up = time.monotonic() + START_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > give_up:
                raise UserError(f"{self._named}: the HTTP server did not start.", "See its lines above.")
            time.sleep(0.005)

    def close(self) -> None:
        """End all connections; returns within `END_S`."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(END_S)
            if self._thread.is_alive():
                self._server.force_exit = True
                self._thread.join(END_S)
        if self._socket is not None:
            self._socket.close()
