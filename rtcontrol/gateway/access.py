"""Who may come in: Host, Origin, token and declared body size, checked before any route sees a request.

See docs/security.md.

Same-origin pages and programs on this machine need no token. Everything else shows the token, and a page of another
origin must be on the allow-list besides. CORS does not guard WebSockets, so Origin is checked here for both.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import JSONResponse, Response

from rtcontrol.gateway.options import DEFAULT_PORTS, GatewayOptions
from rtcontrol_client.wire.endpoint import SUBPROTOCOL, TOKEN_SUBPROTOCOL, is_address, is_loopback

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Of a scope: what answers it; None once that was cancelled, as nobody waits for the answer.
TASK = "rtcontrol.task"
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
PREFLIGHT = {"access-control-allow-methods": "GET, HEAD, POST", "access-control-max-age": "600"}
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}


class Refusal(Exception):
    """A request that goes no further: HTTP status, a code for counting, what and remedy, and of OpenAI's requests the
    `param`, the field that is wrong."""

    def __init__(self, status: int, code: str, what: str, remedy: str, param: str | None = None) -> None:
        super().__init__(what)
        self.status, self.code, self.what, self.remedy, self.param = status, code, what, remedy, param


class AccessGate:
    """ASGI middleware. `refused` is told the code of every refusal."""

    def __init__(self, app: App, options: GatewayOptions, refused: Callable[[str], None]) -> None:
        self._app, self._options, self._refused = app, options, refused
        self._known = {_split(urlsplit(o).netloc)[0] for o in options.origins} | {options.host}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check_host(headers)
            foreign, trusted = self._foreign_origin(scope, headers)
            if foreign is not None and scope["type"] == "http" and scope["method"] == "OPTIONS":
                # Any header may come: what a page of elsewhere may do, its origin and its token decide.
                allowed = {"access-control-allow-headers": headers.get("access-control-request-headers", "")}
                await Response(status_code=204, headers={**PREFLIGHT, **allowed, **_cors(foreign)})(
                    scope, receive, send
                )
                return
            guarded = scope["type"] == "websocket" or scope["path"].startswith(GUARDED)
            if guarded and (self._options.require_token or not (trusted and self._local(scope, headers))):
                check_token(scope, self._options)
            if scope["type"] == "websocket":
                await self._app(scope, receive, send)
                return
            length = headers.get("content-length", "0")
            if not length.isdigit() or int(length) > self._options.max_body_bytes:
                raise too_large(self._options.max_body_bytes)
        except Refusal as refusal:
            self._refused(refusal.code)
            await _refuse(refusal, self._allowed(headers.get("origin")))(scope, receive, send)
            return
        await self._http(scope, receive, send, foreign)

    def _check_host(self, headers: Headers) -> None:
        # A page of a site whose name is made to point here (DNS rebinding) still names that site as its host.
        host = _split(headers.get("host", ""))[0]
        if is_loopback(host) or host in self._known or (is_address(host) and not self._options.loopback):
            return
        raise Refusal(
            421,
            "host",
            f"The Host {host[:80]!r} is not this server's.",
            "Use its address, or name the site with `--allow-origin` when it stands behind a proxy.",
        )

    def _foreign_origin(self, scope: Scope, headers: Headers) -> tuple[str | None, bool]:
        """The allowed origin of a page from elsewhere (None: of this origin, or a program that is no browser), and
        whether it is this server's own page all the same: by another of the loopback's names."""
        origin = headers.get("origin")
        if origin is None:
            return None, True
        try:
            parts = urlsplit(origin)
        except ValueError:  # such as a bracket without its other one
            parts = urlsplit("")
        scheme = "https" if scope["scheme"] in ("https", "wss") else "http"
        there = _split(parts.netloc, DEFAULT_PORTS.get(parts.scheme))
        here = _split(headers.get("host", ""), DEFAULT_PORTS[scheme])
        if parts.scheme in DEFAULT_PORTS and there == here:
            return None, True
        if self._allowed(origin) is not None:
            # Of a Host that is no name of the loopback, nobody is local.
            return origin, is_loopback(there[0]) and there[1] == here[1] and parts.scheme == scheme
        raise Refusal(
            403,
            "origin",
            f"Pages of {origin[:120]!r} may not use this server.",
            "Allow it with `--allow-origin ORIGIN`, or serve the page from here with `--static DIR`.",
        )

    def _allowed(self, origin: str | None) -> str | None:
        """It, where pages of it may come in: they are told of refusals, too."""
        if origin is None or origin in self._options.origins:
            return origin
        scheme, _, netloc = origin.partition("://")
        return origin if scheme in DEFAULT_PORTS and is_loopback(_split(netloc)[0]) else None

    def _local(self, scope: Scope, headers: Headers) -> bool:
        client = scope.get("client")
        here = client is not None and is_loopback(client[0]) and is_loopback(_split(headers.get("host", ""))[0])
        # A proxy on this machine speaks for others.
        return here and not any(name in headers for name in FORWARDED)

    async def _http(self, scope: Scope, receive: Receive, send: Send, foreign: str | None) -> None:
        # Pages of the user's own have inline scripts; ours have none.
        # A page that was installed anew must not meet yesterday's modules.
        policy = {"content-security-policy": PAGE_POLICY, "cache-control": "no-cache"}
        ours = HEADERS | ({} if scope["path"].startswith("/static/") else policy)
        ours |= {} if foreign is None else _cors(foreign)

        async def dressed(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in ours.items():
                    headers.setdefault(name, value)
            await send(message)

        # Whoever hangs up is worked for no longer (`BoundedHTTP.connection_lost`).
        scope[TASK] = asyncio.current_task()
        try:
            await self._app(scope, receive, dressed)
        except asyncio.CancelledError:
            if scope[TASK] is not None:
                raise


def check_token(scope: Scope, options: GatewayOptions) -> None:
    """Raises Refusal where the request does not show the access token."""
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


def too_large(limit: int) -> Refusal:
    return Refusal(413, "too_large", f"The body is larger than {limit} bytes.", "Send less.")


def error_body(status: int, code: str, message: str, param: str | None = None) -> dict[str, Any]:
    """Return an error in OpenAI's shape."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _refuse(refusal: Refusal, foreign: str | None) -> Response:
    """Return the refusal in OpenAI's shape. `foreign`: an allowed origin, whose page may read it."""
    error = error_body(refusal.status, refusal.code, f"{refusal.what} {refusal.remedy}", refusal.param)
    headers = {"connection": "close", **HEADERS} | ({} if foreign is None else _cors(foreign))
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(error, refusal.status, headers)


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


def _cors(origin: str) -> dict[str, str]:
    return {
        "access-control-allow-origin": origin,
        "access-control-expose-headers": f"{WARNING}, retry-after",
        "cross-origin-resource-policy": "cross-origin",
        "vary": "Origin",
    }


@lru_cache(64)
def _split(netloc: str, default: int | None = None) -> tuple[str, int | None]:
    """Host (lower case, no brackets) and port; no host where it is none."""
    try:
        parts = urlsplit(f"//{netloc}")
        return (parts.hostname or "").rstrip("."), parts.port if parts.port is not None else default
    except ValueError:
        return "", None
