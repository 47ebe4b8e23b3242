"""Access to the gateway by origin, host, token and machine."""

from __future__ import annotations

import contextlib
import logging
import socket
from pathlib import Path

import httpx
import pytest
from gateway_peer import TOKEN, TURN, Serve, Served
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from rtcontrol.gateway import http_server
from rtcontrol.gateway.options import GatewayOptions, normalize_origin, read_token
from rtcontrol.models.errors import UserError
from rtcontrol.serve.options import ServeOptions

CALL = {"model": "default", "messages": [{"role": "user", "content": "left"}], "tools": [TURN]}
SITE = "https://robot.example:8443"
SHOWN = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def guarded(serve: Serve) -> Served:
    """Return a gateway with a token and another site on the allow-list."""
    return serve(token=TOKEN, origins=frozenset({SITE}), model="noop")


def head(served: Served, line: str, *headers: str, host: str | None = None) -> str:
    """Return a request's head: the first line and the headers, starting with Host."""
    host = host or f"127.0.0.1:{served.gateway.port}"
    return "\r\n".join((f"{line} HTTP/1.1", f"Host: {host}", *headers, "", ""))


def raw(served: Served, text: str) -> bytes:
    """Send raw bytes, and return the answer."""
    with socket.create_connection(("127.0.0.1", served.gateway.port), timeout=10) as line:
        line.sendall(text.encode())
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := line.recv(65536):
                answer += part
    return answer


def handshake(served: Served, origin: str | None = None, query: str = "", **options: object) -> int:
    """Return the HTTP status of a WebSocket handshake; 101 for success."""
    try:
        with connect(served.ws + query, origin=origin, compression=None, **options):  # type: ignore[arg-type]
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


def test_same_origin_and_local_programs_need_no_token(guarded: Served) -> None:
    here = guarded.url.rstrip("/")
    assert guarded.post("v1/chat/completions", CALL).status_code == 200
    assert guarded.post("v1/chat/completions", CALL, headers={"origin": here}).status_code == 200
    assert handshake(guarded) == 101
    assert handshake(guarded, origin=here) == 101


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://robot.example:8443", f"{SITE}0", "file://"])
def test_pages_of_other_sites_are_refused(guarded: Served, origin: str) -> None:
    answer = guarded.post("v1/chat/completions", CALL, headers={**SHOWN, "origin": origin})
    assert answer.status_code == 403
    assert "serve.allow_origin" in answer.json()["error"]["message"]
    assert "access-control-allow-origin" not in answer.headers
    assert handshake(guarded, origin=origin, query=f"?token={TOKEN}") == 403


def test_an_allowed_site_needs_the_token(guarded: Served) -> None:
    assert guarded.post("v1/chat/completions", CALL, headers={"origin": SITE}).status_code == 401
    refused = guarded.post("v1/chat/completions", CALL, headers={"origin": SITE, "authorization": f"Bearer {TOKEN}x"})
    assert refused.status_code == 401
    # Or its page could not read why.
    assert refused.headers["access-control-allow-origin"] == SITE
    let_in = guarded.post("v1/chat/completions", CALL, headers={"origin": SITE, **SHOWN})
    assert (let_in.status_code, let_in.headers["access-control-allow-origin"]) == (200, SITE)
    assert handshake(guarded, origin=SITE) == 401
    assert handshake(guarded, origin=SITE, query=f"?token={TOKEN}") == 101


def test_the_token_as_subprotocol_is_not_echoed(guarded: Served) -> None:
    offered = [Subprotocol("rtcontrol.v1"), Subprotocol(f"rtcontrol.token.{TOKEN}")]
    with connect(guarded.ws, origin=SITE, subprotocols=offered, compression=None) as line:  # type: ignore[arg-type]
        assert line.subprotocol == "rtcontrol.v1"


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models"])
def test_rebound_host_name_is_refused(served: Served, path: str) -> None:
    answer = httpx.get(served.url.rstrip("/") + path, headers={"host": f"evil.example:{served.gateway.port}"})
    assert answer.status_code == 421
    assert "access-control-allow-origin" not in answer.headers
    # As a browser would send it from a page of that name: same origin, by its own light.
    both = {"host": "evil.example", "origin": "http://evil.example"}
    assert httpx.get(served.url.rstrip("/") + path, headers=both).status_code == 421
    for host in ("[::1].evil.example", "localhost/..", "me@localhost", "127.0.0.1:80:80"):
        assert raw(served, head(served, f"GET {path}", "Connection: close", host=host)).startswith(b"HTTP/1.1 421")


def test_proxied_request_is_not_local(guarded: Served) -> None:
    for name in ("x-forwarded-for", "forwarded", "x-real-ip"):
        answer = guarded.post("v1/chat/completions", CALL, headers={name: "127.0.0.1"})
        assert answer.status_code == 401, name


def test_requests_from_other_machines_need_the_token(serve: Serve) -> None:
    with pytest.raises(UserError, match="serve.token_file"):
        GatewayOptions(host="0.0.0.0", port=0)
    wide = serve(host="0.0.0.0", token=TOKEN, model="noop")
    port = wide.gateway.port
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    assert httpx.post(url, json=CALL, timeout=60).status_code == 200
    # By an address that is not loopback, the peer is not trusted (the machine's own, where it has one).
    named = {"host": f"192.0.2.7:{port}"}
    assert httpx.post(url, json=CALL, headers=named).status_code == 401
    page = {"origin": f"http://localhost:{port}"}  # of the loopback: a stranger to another machine's address
    assert httpx.post(url, json=CALL, headers=named | page).status_code == 403
    assert httpx.post(url, json=CALL, headers=page | {"host": f"localhost:{port}"}).status_code == 200
    assert httpx.post(url, json=CALL, headers={**named, **SHOWN}).status_code == 200
    assert httpx.get(f"http://127.0.0.1:{port}/metrics", headers=named).status_code == 401
    assert httpx.get(f"http://127.0.0.1:{port}/", headers=named).status_code == 200


def test_the_token_is_never_logged(guarded: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "rtcontrol")
    assert handshake(guarded, origin=SITE, query=f"?token={TOKEN}") == 101
    assert handshake(guarded, origin="http://a.b", query=f"?token={TOKEN}") == 403
    guarded.post("v1/chat/completions", {"messages": 5}, headers=SHOWN)
    assert logging.getLogger("uvicorn.error").getEffectiveLevel() >= logging.WARNING
    assert TOKEN not in caplog.text + repr(GatewayOptions(token=TOKEN))


def test_bodies_are_bounded_declared_or_not(served: Served) -> None:
    answer = served.post("v1/chat/completions", {"messages": "x" * (1 << 20)})
    assert answer.status_code == 413
    assert "access-control-allow-origin" not in answer.headers

    def endless():  # type: ignore[no-untyped-def]
        for _ in range(4096):
            yield b" " * 1024

    answer = httpx.post(served.url + "v1/chat/completions", content=endless(), timeout=30)
    assert answer.status_code == 413 and answer.json()["error"]
    # What is declared is refused before it comes.
    declared = head(served, "POST /v1/chat/completions", "Content-Length: 99999999")
    assert raw(served, declared).startswith(b"HTTP/1.1 413")


def test_incomplete_body_times_out(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "IDLE_S", 0.5)
    short = serve(body_timeout_s=0.3, model="noop")
    declared = head(short, "POST /v1/chat/completions", "Content-Length: 99")
    assert raw(short, declared + "{").startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("started", ["", "GET /health HT", "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: 1\r\n"])
@pytest.mark.parametrize("first", ["", "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"])
def test_connection_without_request_is_cut_off(
    served: Served, monkeypatch: pytest.MonkeyPatch, first: str, started: str
) -> None:
    monkeypatch.setattr(http_server, "IDLE_S", 0.2)
    answer = raw(served, first + started)
    assert answer.count(b"HTTP/1.1 200") == (1 if first else 0)


def test_page_has_a_policy_and_no_inline_code(served: Served) -> None:
    answer = httpx.get(served.url)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "<script>" not in answer.text and " style=" not in answer.text and "onclick" not in answer.text
    assert "http://" not in answer.text and "https://" not in answer.text


def test_static_pages_are_served_from_their_folder_only(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "game.html").write_text("<p>a game")
    (tmp_path / "secret").write_text("its words")
    separate = serve(static=tmp_path / "pages", model="noop")
    assert httpx.get(separate.url + "static/game.html").text == "<p>a game"
    for path in ("../secret", "%2e%2e/secret"):
        answer = raw(separate, head(separate, f"GET /static/{path}", "Connection: close"))
        assert b"its words" not in answer and b" 404 " in answer


def test_required_token_applies_to_this_machine(serve: Serve) -> None:
    """The server cannot tell a local proxy without headers from another program."""
    single = serve(token=TOKEN, require_token=True)
    shown = {"Authorization": f"Bearer {TOKEN}"}
    for path in ("health", "metrics", "v1/models", "view/sessions"):
        assert httpx.get(single.url + path).status_code == 401, path
        assert httpx.get(single.url + path, headers=shown).status_code == 200, path
    assert httpx.get(single.url).status_code == 200  # the page itself, which asks for the token
    for address in (single.ws, single.ws.removesuffix("ws") + "view/ws"):
        with pytest.raises(InvalidStatus):
            connect(address, compression=None)
        connect(f"{address}?token={TOKEN}", compression=None).close()
    with pytest.raises(UserError, match="serve.require_token"):
        GatewayOptions(require_token=True)


def test_health_is_503_without_a_decoder(serve: Serve) -> None:
    separate = serve(model="noop")
    assert httpx.get(separate.url + "health").status_code == 200
    separate.pool.close()
    answer = httpx.get(separate.url + "health")
    assert answer.status_code == 503
    assert answer.json()["loaded"] is False and answer.json()["status"] != "ok"


def test_token_file_is_made_private_and_reread(tmp_path: Path) -> None:
    path = tmp_path / "token"
    first = GatewayOptions.from_serve(ServeOptions(http="0.0.0.0:8080", token_file=path), "0.0.0.0:8080")
    assert path.stat().st_mode & 0o777 == 0o600
    assert first.token is not None and len(first.token) >= 32
    assert (
        GatewayOptions.from_serve(ServeOptions(http="0.0.0.0:8080", token_file=path), "0.0.0.0:8080").token
        == first.token
    )


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        ("", 0o600, "16 to"),
        ("short", 0o600, "16 to"),
        ("with a space in it", 0o600, "16 to"),
        ("x" * 32, 0o644, "chmod"),
    ],
)
def test_weak_or_readable_token_is_refused(tmp_path: Path, text: str, mode: int, says: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(UserError, match=says):
        GatewayOptions(token=read_token(path))


@pytest.mark.parametrize(
    "text", ["*", "robot.example", "https://robot.example/page", "ftp://a.b", "https://a.b:x", "https://[::1"]
)
def test_invalid_origin_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="not an origin"):
        normalize_origin(text)


@pytest.mark.parametrize(
    "headers",
    [
        ("Origin: http://127.0.0.1:{port}", "Origin: http://evil.example"),
        ("Authorization: Bearer x", "Authorization: Bearer y"),
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
    ],
)
def test_ambiguous_headers_are_refused(guarded: Served, headers: tuple[str, ...]) -> None:
    named = [header.format(port=guarded.gateway.port) for header in headers]
    answer = raw(guarded, head(guarded, "GET /v1/models", *named) + "0\r\n\r\n" + head(guarded, "GET /v1/models"))
    assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("chunk", ["-1\r\n\r\n", "5\r\nhelloXX\r\n", "0x2\r\nxx\r\n"])
def test_broken_chunk_ends_request_without_error(guarded: Served, caplog: pytest.LogCaptureFixture, chunk: str) -> None:
    for path in ("/v1/chat/completions", "/nothing", "/v1/models"):
        answer = raw(guarded, head(guarded, f"POST {path}", "Transfer-Encoding: chunked") + chunk)
        assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1, answer
    assert "Traceback" not in caplog.text
