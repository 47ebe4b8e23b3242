"""The C# client gets an access token for a code: from the real server, and from a double that answers as told."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import socket as sockets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.bridges.client.worlds import until
from tests.bridges.unity.mono import Start
from tests.bridges.unity.test_unity import play, stub  # noqa: F401
from tests.bridges.web_ends import Served

TOKEN = "k3" * 16
GIVEN = "Zm9v_YmFy-" + "a" * 33
PAIRS = importlib.util.find_spec("rtcontrol.gateway.pairing") is not None


class Double:
    """A double of a server that pairs: sends `answer` to whatever comes, and closes where `closes`."""

    def __init__(self, answer: bytes, closes: bool = True) -> None:
        self.requests: list[bytes] = []
        self._answer, self._closes = answer, closes
        self._listener = sockets.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"ws://127.0.0.1:{self.port}/ws?x=1"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                threading.Thread(target=self._talk, args=(peer,), daemon=True).start()

    def _talk(self, peer: sockets.socket) -> None:
        with contextlib.suppress(OSError), peer:
            request = b""
            while not self._whole(request) and (more := peer.recv(65536)):
                request += more
            self.requests.append(request)
            peer.sendall(self._answer)
            while not self._closes and peer.recv(65536):
                pass

    @staticmethod
    def _whole(request: bytes) -> bool:
        head, _, body = request.partition(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        return b"\r\n\r\n" in request and len(body) >= (int(length[1]) if length else 0)

    def close(self) -> None:
        self._listener.close()


def answer(status: str, told: Any, *headers: str) -> bytes:
    body = told if isinstance(told, bytes) else json.dumps(told).encode()
    lines = ["HTTP/1.1 " + status, "Content-Type: application/json", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunked(*parts: bytes) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"


@pytest.fixture
def double(request: pytest.FixtureRequest) -> Iterator[Double]:
    one = Double(request.param)
    yield one
    one.close()


def pair(driver: Start, url: str, code: str = "493 021", *more: str) -> dict[str, Any]:
    told: dict[str, Any] = driver("pair", "--endpoint", url, "--code", code, *more).answer()
    return told


YES = json.dumps({"token": GIVEN, "name": "phone 2", "more": [1]}).encode()
TAKEN = {
    "by its length": answer("200 OK", YES),
    "in parts": chunked(YES[:7], YES[7:]),
    "to the end": b"HTTP/1.1 200 OK\r\n\r\n" + YES,
    "an older HTTP": b"HTTP/1.0 200 OK\r\nContent-type: application/json\r\n\r\n" + YES,
}


@pytest.mark.parametrize("double", TAKEN.values(), ids=TAKEN, indirect=True)
def test_code_is_exchanged_for_a_token(driver: Start, double: Double) -> None:
    told = pair(driver, double.url + ",ws://127.0.0.1:9/ws", "493-0 21", "--name", "Ada's\theadset" + "x" * 80)
    assert (told["token"], told["name"], told["trouble"], told["again"]) == (GIVEN, "phone 2", None, False)
    head, _, body = double.requests[0].partition(b"\r\n\r\n")
    sent = json.loads(body)
    assert sent["code"] == "493021"
    assert sent["name"].startswith("Ada'sheadset") and len(sent["name"]) == 64
    assert head.startswith(b"POST /pair HTTP/1.1\r\n")
    assert f"\r\nHost: 127.0.0.1:{double.port}\r\n".encode() in head
    assert b"\r\nContent-Type: application/json\r\n" in head
    # A program that is no browser has none.
    assert b"origin" not in head.lower() and len(double.requests) == 1


def no(code: str) -> dict[str, Any]:
    return {"success": False, "code": code, "error": f"It is {code}. Do something."}


REFUSED: dict[str, tuple[bytes, dict[str, Any]]] = {
    "wrong code": (answer("403 Forbidden", no("wrong_code")), {"trouble": "It is wrong_code", "again": True}),
    "a public address": (answer("403 Forbidden", no("public")), {"trouble": "It is public", "again": False}),
    "no pairing": (answer("404 Not Found", b"Not Found"), {"trouble": "Start it with --pair", "again": False}),
    "an older server": (answer("405 No", no("method")), {"trouble": "Start it with --pair", "again": False}),
    "full": (answer("409 Conflict", no("full")), {"trouble": "It is full", "again": False}),
    "locked": (
        answer("429 Too Many Requests", no("locked"), "Retry-After: 30"),
        {"trouble": "It is locked", "again": True, "seconds": 30},
    ),
    "shape": (answer("422 No", no("invalid")), {"trouble": "It is invalid", "again": False}),
    "busy": (answer("503 No", b"busy"), {"trouble": "HTTP 503", "again": True}),
    "a redirect": (answer("302 Found", b"", "Location: http://127.0.0.1:9/"), {"trouble": "HTTP 302"}),
    "no token": (answer("200 OK", {"name": "x"}), {"trouble": "holds no access token"}),
    "a token that is none": (answer("200 OK", {"token": "a b\r\nc" * 5}), {"trouble": "holds no access token"}),
    "a short token": (answer("200 OK", {"token": "abc"}), {"trouble": "holds no access token"}),
    "no JSON": (answer("200 OK", b"<html>"), {"trouble": "holds no access token"}),
    "half an answer": (answer("200 OK", YES)[:-5], {"trouble": "ends in the middle", "again": True}),
    "half its parts": (chunked(YES)[:-8], {"trouble": "ends in the middle", "again": True}),
    "parts that are none": (chunked(YES).replace(b"\r\n\r\n", b"\r\n\r\n-", 1), {"trouble": "parts are none"}),
    "an answer without end": (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100_000, {"trouble": "too long"}),
    "another protocol": (b"\xff" + bytes(63) + b"\r\n\r\n", {"trouble": "speaks no HTTP"}),
    # dotnet/corefx#20232: the largest length there is.
    "a length of 2^63 - 1": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775807\r\n\r\n" + YES,
        {"trouble": "too long", "again": True},
    ),
    "nothing": (b"", {"trouble": "ends in the middle", "again": True}),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_answer_that_is_no_token_is_told_in_words(driver: Start, kind: str) -> None:
    sent, wanted = REFUSED[kind]
    one = Double(sent)
    told = pair(driver, one.url)
    one.close()
    assert told["token"] is None
    assert wanted.pop("trouble") in told["trouble"], told
    assert {name: told[name] for name in wanted} == wanted, told
    # The code may be used up: it is never sent again by itself.
    assert len(one.requests) == 1


@pytest.mark.parametrize(
    ("url", "code", "told"),
    [
        ("tcp://127.0.0.1:5555", "493021", "the address of --http"),
        ("wss://127.0.0.1:8080/ws", "493021", "wss:// is spoken in a browser"),
        ("ws://127.0.0.1:9/ws", "49302", "six digits"),
        ("ws://127.0.0.1:9/ws", "4930211", "six digits"),
        ("ws://127.0.0.1:9/ws", "49302a", "six digits"),
        ("ws://127.0.0.1:9/ws", "４９３０２１", "six digits"),
    ],
)
def test_what_cannot_be_sent_is_a_mistake_told_at_once(driver: Start, url: str, code: str, told: str) -> None:
    assert told in driver("pair", "--endpoint", url, "--code", code).failure()


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "a..b", "[::", "a" * 64, "x" * 255, "%00", "[fe80::1%nope]"])
def test_host_that_is_none_ends_in_words(driver: Start, host: str) -> None:
    # kumaryu/peercaststation#212: 0.0.0.0 as a host ended the whole program, the resolver throws for it.
    told = pair(driver, f"ws://{host}:9/ws")
    assert told["token"] is None and "The code may have been used" in told["trouble"]


def test_nobody_there_is_told(driver: Start) -> None:
    told = pair(driver, "ws://127.0.0.1:9/ws")
    assert (told["token"], "nobody answers" in told["trouble"]) == (None, True)


def test_component_connects_with_the_token_that_it_got(play: Start) -> None:  # noqa: F811
    one = Double(answer("200 OK", YES))
    told = play("pair", one.url).answer()
    one.close()
    assert (told["token"], told["told"], told["anew"]) == (GIVEN, GIVEN, True), told
    assert "six digits" in told["refused"]
    opened = [request for request in one.requests if request.startswith(b"GET ")]
    # Without a token before, and with it after.
    assert b"rtcontrol.token." not in opened[0]
    assert f"rtcontrol.v1, rtcontrol.token.{GIVEN}\r\n".encode() in opened[-1]


def test_component_goes_on_without_a_token_where_it_got_none(play: Start) -> None:  # noqa: F811
    one = Double(answer("403 Forbidden", no("wrong_code")))
    told = play("pair", one.url).answer()
    one.close()
    assert (told["token"], told["told"], told["anew"]) == ("", None, False), told
    assert "It is wrong_code" in told["trouble"]


@pytest.mark.skipif(not PAIRS, reason="this rtcontrol has no `serve --pair`")
def test_real_server_pairs_a_device_whose_token_opens_it(driver: Start, tmp_path: Path) -> None:
    addresses = [a.address for many in psutil.net_if_addrs().values() for a in many if a.family == sockets.AF_INET]
    outer = next((a for a in addresses if not a.startswith("127.")), None)
    if outer is None:
        pytest.skip("this machine has no address beyond loopback")
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    served = Served(tmp_path, "--token-file", str(tmp_path / "token"), "--pair", host=outer)
    served.start()
    try:
        asked = driver("pair", "--endpoint", served.url).answer()
        assert (asked["shown"], asked["token"], asked["trouble"]) == (True, None, None), asked
        until(lambda: re.search(r"type (\d{3}) (\d{3})", served.logs()), "no code is shown")
        code = "".join(re.findall(r"type (\d{3}) (\d{3})", served.logs())[-1])
        wrong = pair(driver, served.url, f"{(int(code) + 1) % 10**6:06}")
        assert (wrong["code"], wrong["again"], wrong["token"]) == ("wrong_code", True, None)
        told = pair(driver, served.url, code, "--name", "phone")
        assert told["name"] == "phone", told
        driver("run", "--endpoint", served.url, "--ttl-ms", "500", "--token", told["token"]).event("call")
        # A code is good for one device.
        assert pair(driver, served.url, code)["code"] in ("wrong_code", "code")
    finally:
        served.stop()
