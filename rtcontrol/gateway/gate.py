"""Access control: middleware that checks Host, Origin, token and declared size before any route gets a request.

See docs/security.md. Same-origin pages and programs on this machine need no token. All others need the token, and
pages of another origin must be on the allow-list as well. CORS does not guard WebSockets, so Origin is checked here
for both.
"""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rtcontrol.gateway.options import GatewayOptions
from rtcontrol_client.wire.endpoint import SUBPROTOCOL, TOKEN_SUBPROTOCOL, is_address, is_loopback

MAX_BODY_BYTES = 1 << 18
# Paths that affect or reveal the sessions, as every WebSocket does; the remaining paths are the page's files, which are
# not secret.
GUARDED = ("/ws", "/view/", "/v1/", "/metrics", "/health")
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}
# For our pages, which have no inline scripts as users' pages may. Without caching, pages and modules always match.
PAGE_HEADERS = HEADERS | {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-cache",
}


class Refusal(Exception):
    """A refused request: HTTP status, code, problem and hint; `param` is the invalid field."""

    def __init__(self, status: int, code: str, problem: str, hint: str, param: str | None = None) -> None:
        super().__init__(problem)
        self.status, self.code, self.what, self.hint, self.param = status, code, problem, hint, param

    def response(self, headers: dict[str, str] | None = None) -> JSONResponse:
        """Return the error response in OpenAI's format."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": f"{self.what} {self.hint}", "type": kind, "param": self.param, "code": self.code}
        return JSONResponse({"error": error}, self.status, headers)


def too_large() -> Refusal:
    """Return the refusal of a body that exceeds the limit."""
    return Refusal(413, "too_large", f"The body is larger than {MAX_BODY_BYTES} bytes.", "Send less.")


def behind_gate(app: ASGIApp, options: GatewayOptions) -> ASGIApp:
    """Return the application with access checks in front."""
    return CORSMiddleware(  # outermost, so that a page of an allowed site can read why a request was refused
        AccessGate(app, options),
        allow_origins=sorted(options.origins),
        allow_methods=("GET", "HEAD", "POST"),
        allow_headers=("*",),
        expose_headers=("retry-after",),
    )


class AccessGate:
    """ASGI middleware that refuses requests without access and passes on the others."""

    def __init__(self, app: ASGIApp, options: GatewayOptions) -> None:
        self._app, self._options = app, options
        self._known = {_host(urlsplit(o).netloc) for o in options.origins} | {options.host}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            self._check(HTTPConnection(scope))
        except Refusal as refusal:
            more = {"www-authenticate": "Bearer"} if refusal.status == 401 else {}
            await refusal.response({"connection": "close", **HEADERS, **more})(scope, receive, send)
            return
        await self._app(scope, receive, with_headers(scope, send))

    def _check(self, request: HTTPConnection) -> None:
        """Raise Refusal for a request that is not allowed."""
        self._check_host(request)
        trusted = self._same_origin(request) and self._local(request)
        guarded = request.scope["type"] == "websocket" or request.scope["path"].startswith(GUARDED)
        if guarded and (self._options.require_token or not trusted):
            check_token(request, self._options)
        length = request.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            raise too_large()

    def _check_host(self, request: HTTPConnection) -> None:
        # With DNS rebinding, a foreign page reaches this server, but its requests still name the foreign host.
        host = _host(request.headers.get("host", ""))
        if is_loopback(host) or host in self._known or (is_address(host) and not self._options.loopback):
            return
        hint = "Use its address, or name the site with `serve.allow_origin` when it is behind a proxy."
        raise Refusal(421, "host", f"The Host {host[:80]!r} does not belong to this server.", hint)

    def _same_origin(self, request: HTTPConnection) -> bool:
        """Return whether the request is from this server's page, or from a program that is not a browser. Raises
        Refusal if the request is from a page of a site that is not allowed."""
        origin = request.headers.get("origin")
        scheme = "https" if request.scope["scheme"] in ("https", "wss") else "http"
        if origin is None or origin == f"{scheme}://{request.headers.get('host', '')}":
            return True
        if origin in self._options.origins:
            return False
        hint = "Allow it with `serve.allow_origin=ORIGIN`, or serve the page from here with `serve.static=DIR`."
        raise Refusal(403, "origin", f"Pages of {origin[:120]!r} may not use this server.", hint)

    def _local(self, request: HTTPConnection) -> bool:
        client, headers = request.client, request.headers
        here = client is not None and is_loopback(client.host) and is_loopback(_host(headers.get("host", "")))
        # A proxy on this machine forwards requests of other machines.
        return here and not any(name in headers for name in FORWARDED)


def check_token(request: HTTPConnection, options: GatewayOptions) -> None:
    """Raise Refusal if the request does not have the access token."""
    shown, secret = _token(request), options.token
    if secret is not None and shown is not None and hmac.compare_digest(shown.encode(), secret.encode()):
        return
    hint = (
        f"Send `Authorization: Bearer TOKEN` (WebSocket: ?token=TOKEN, or the subprotocol {TOKEN_SUBPROTOCOL}TOKEN "
        f"next to {SUBPROTOCOL}); the server reads the token from serve.token_file."
    )
    raise Refusal(401, "token", "This request does not have the access token.", hint)


def _token(request: HTTPConnection) -> str | None:
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return shown.strip()
    if request.scope["type"] != "websocket":
        return None
    for name in request.scope["subprotocols"]:
        if name.startswith(TOKEN_SUBPROTOCOL):
            return str(name.removeprefix(TOKEN_SUBPROTOCOL))
    return request.query_params.get("token")


def with_headers(scope: Scope, send: Send) -> Send:
    """Return a `send` that adds our headers to every response."""
    ours = HEADERS if scope["path"].startswith("/static/") else PAGE_HEADERS

    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in ours.items():
                headers.setdefault(name, value)
        await send(message)

    return wrapped


def _host(netloc: str) -> str:
    """Return the host in lower case without brackets; empty if there is no host."""
    try:
        return (urlsplit(f"//{netloc}").hostname or "").rstrip(".")
    except ValueError:
        return ""
