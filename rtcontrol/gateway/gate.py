"""Access control: middleware that checks the Host, Origin, token and content length of each request.

See docs/security.md. This server's pages and programs on this machine need no token. All other clients need the token,
and pages of other sites must also be on the allow-list. CORS does not protect WebSockets, so this module also checks
the Origin of WebSockets.
"""

from __future__ import annotations

import hmac
import re
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rtcontrol.gateway.options import GatewayOptions
from rtcontrol_client.wire.endpoint import SUBPROTOCOL, TOKEN_SUBPROTOCOL, is_address, is_loopback

MAX_BODY_BYTES = 1 << 18
# These paths, which control or show sessions, need the token, and so do WebSockets. All other paths are
# the page's files, which are public.
GUARDED_PATHS = ("/ws", "/view/", "/v1/", "/metrics", "/health")
UNIQUE_HEADERS = ("host", "origin", "authorization", "content-length", "transfer-encoding")
PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
NETLOC = re.compile(r"(?:\[(?P<ipv6>[0-9a-f:.]+)\]|(?P<name>[0-9a-z._-]+))(?::\d*)?")
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}
# Headers of this server's pages (users' pages may have inline scripts). Pages are not cached, so that all modules have
# the same version.
PAGE_HEADERS = HEADERS | {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-cache",
}


class Refusal(Exception):
    """The error that refuses a request: HTTP status, error code, problem and hint. `param`: the invalid field."""

    def __init__(self, status: int, code: str, problem: str, hint: str, param: str | None = None) -> None:
        super().__init__(problem)
        self.status, self.code, self.problem, self.hint, self.param = status, code, problem, hint, param

    def response(self, headers: dict[str, str] | None = None) -> JSONResponse:
        """Return the error response in OpenAI's format."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": f"{self.problem} {self.hint}", "type": kind, "param": self.param, "code": self.code}
        return JSONResponse({"error": error}, self.status, headers)


def too_large_refusal() -> Refusal:
    """Return the refusal of a request whose body exceeds MAX_BODY_BYTES."""
    return Refusal(413, "too_large", f"The body is larger than {MAX_BODY_BYTES} bytes.", "Send a smaller body.")


def with_access_checks(app: ASGIApp, options: GatewayOptions) -> ASGIApp:
    """Return an application that checks a request's access before it calls `app`."""
    return CORSMiddleware(  # before `AccessGate`, so that pages of allowed sites can read the errors, too
        AccessGate(app, options),
        allow_origins=sorted(options.origins),
        allow_methods=("GET", "HEAD", "POST"),
        allow_headers=("*",),
        expose_headers=("retry-after",),
    )


class AccessGate:
    """ASGI middleware that refuses requests without access, and passes other requests to the application."""

    def __init__(self, app: ASGIApp, options: GatewayOptions) -> None:
        self._app, self._options = app, options
        self._known_hosts = {_host(urlsplit(o).netloc) for o in options.origins} | {options.host}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            self._check(HTTPConnection(scope))
        except Refusal as refusal:
            headers = {"www-authenticate": "Bearer"} if refusal.status == 401 else {}
            await refusal.response({"connection": "close", **HEADERS, **headers})(scope, receive, send)
            return
        await self._app(scope, receive, with_security_headers(scope, send))

    def _check(self, request: HTTPConnection) -> None:
        """Raise Refusal if the request is not allowed."""
        check_headers(request)
        self._check_host(request)
        trusted = self._is_same_origin(request) and self._is_local(request)
        guarded = request.scope["type"] == "websocket" or request.scope["path"].startswith(GUARDED_PATHS)
        if guarded and (self._options.require_token or not trusted):
            check_token(request, self._options)
        length = request.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            raise too_large_refusal()

    def _check_host(self, request: HTTPConnection) -> None:
        # Prevent DNS rebinding: a page of another site may reach this server, but its requests name that site's host.
        host = _host(request.headers.get("host", ""))
        if is_loopback(host) or host in self._known_hosts or (is_address(host) and not self._options.loopback):
            return
        hint = "Use the server's address. If there is a proxy, add its site with `serve.allow_origin`."
        raise Refusal(421, "host", f"The Host {host[:80]!r} does not belong to this server.", hint)

    def _is_same_origin(self, request: HTTPConnection) -> bool:
        """Return True for a request of this server's page or of a program without Origin, and False for a request of an
        allowed site. Raises Refusal for a page of any other site."""
        origin = request.headers.get("origin")
        scheme = "https" if request.scope["scheme"] in ("https", "wss") else "http"
        if origin is None or origin == f"{scheme}://{request.headers.get('host', '')}":
            return True
        if origin in self._options.origins:
            return False
        hint = "Allow the site with `serve.allow_origin=ORIGIN`, or serve the page with `serve.static=DIR`."
        raise Refusal(403, "origin", f"Pages of {origin[:120]!r} may not use this server.", hint)

    def _is_local(self, request: HTTPConnection) -> bool:
        client, headers = request.client, request.headers
        here = client is not None and is_loopback(client.host) and is_loopback(_host(headers.get("host", "")))
        # Requests that a proxy on this machine forwards may come from other machines.
        return here and not any(name in headers for name in PROXY_HEADERS)


def check_headers(request: HTTPConnection) -> None:
    """Raise Refusal if a proxy could interpret the request's headers differently from this server."""
    repeated = [name for name in UNIQUE_HEADERS if len(request.headers.getlist(name)) > 1]
    if repeated or {"content-length", "transfer-encoding"} <= {*request.headers}:
        problem = f"The header {repeated[0]} occurs twice." if repeated else "The body's length is given in two ways."
        raise Refusal(400, "headers", problem, "Send one of them.")


def check_token(request: HTTPConnection, options: GatewayOptions) -> None:
    """Raise Refusal if the request does not have the access token."""
    sent_token, secret = _sent_token(request), options.token
    if secret is not None and sent_token is not None and hmac.compare_digest(sent_token.encode(), secret.encode()):
        return
    hint = (
        f"Send `Authorization: Bearer TOKEN` (WebSocket: ?token=TOKEN, or the subprotocol {TOKEN_SUBPROTOCOL}TOKEN "
        f"next to {SUBPROTOCOL}); the server reads the token from serve.token_file."
    )
    raise Refusal(401, "token", "This request does not have the access token.", hint)


def _sent_token(request: HTTPConnection) -> str | None:
    scheme, _, sent_token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return sent_token.strip()
    if request.scope["type"] != "websocket":
        return None
    for name in request.scope["subprotocols"]:
        if name.startswith(TOKEN_SUBPROTOCOL):
            return str(name.removeprefix(TOKEN_SUBPROTOCOL))
    return request.query_params.get("token")


def with_security_headers(scope: Scope, send: Send) -> Send:
    """Return a `send` function that adds security headers to the response."""
    ours = HEADERS if scope["path"].startswith("/static/") else PAGE_HEADERS

    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in ours.items():
                headers.setdefault(name, value)
        await send(message)

    return wrapped


def _host(netloc: str) -> str:
    """Return the host of `netloc` in lower case, without port and brackets, or an empty string if it is invalid."""
    match = NETLOC.fullmatch(netloc.lower())
    return (match["ipv6"] or match["name"]).rstrip(".") if match else ""
