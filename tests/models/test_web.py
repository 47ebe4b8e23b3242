"""Answers of hostile servers: compressed bombs, endless answers, or one byte at a time."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest

from rtcontrol.hosts.protocol import DecisionLost, DecisionRequest
from rtcontrol.hosts.remote_api import EndpointSource
from rtcontrol.models.errors import UserError
from rtcontrol.models.web import MAX_BYTES, WebAnswer, WebClient, WebError
from rtcontrol.run import toolsets
from tests.helpers.web_server import Quiet, http_server

TOOL = {"name": "go", "description": "Go.", "parameters": {"properties": {"to": {"enum": ["left", "right"]}}}}
REQUEST = DecisionRequest(1, 1, "a wall", "go left")
UNPACKED = b" " * (1 << 27)
WAYS = ("zstd", "gzip")
ENDLESS = ("chunked", "counted")


@cache
def packed(way: str) -> bytes:
    """Return 128 MiB of JSON, compressed as far as possible."""
    if way == "gzip":
        return gzip.compress(UNPACKED)
    import zstandard

    return zstandard.compress(UNPACKED)


@contextmanager
def answering(way: str) -> Iterator[tuple[str, list[str]]]:
    """Run a server that answers every request in one way (of WAYS, of ENDLESS, "slow body", "slow headers"). Yield its
    address, and the list of encodings that clients accepted."""
    asked: list[str] = []
    data = packed(way) if way in WAYS else b""  # created before a client waits for the answer

    class Handler(Quiet):
        def post(self, body: bytes) -> None:
            asked.append(self.headers["accept-encoding"])
            with suppress(OSError):
                self.answer()

        def answer(self) -> None:
            if way == "slow headers":
                self.wfile.write(b"HTTP/1.1 200 OK\r\n")
                while True:
                    self.wfile.write(b"x-more: 1\r\n")
                    time.sleep(0.05)
            self.send_response(200)
            self.send_header("content-type", "application/json")
            if way in WAYS:
                self.send_header("content-encoding", way)
            length = {"counted": 1 << 40, **dict.fromkeys(WAYS, len(data))}.get(way)
            self.send_header(*(("transfer-encoding", "chunked") if length is None else ("content-length", str(length))))
            self.end_headers()
            self.wfile.write(data)
            size = 1 if way == "slow body" else 65_536
            chunk = b" " * size
            while way not in WAYS:
                self.wfile.write(chunk if way == "counted" else b"%x\r\n%b\r\n" % (size, chunk))
                time.sleep(0.05 if way == "slow body" else 0)

    with http_server(Handler) as url:
        yield url, asked


def peak_mib() -> float:
    """Return this process's peak memory since the last call."""
    status = Path("/proc/self/status").read_text()
    Path("/proc/self/clear_refs").write_text("5")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def decides(url: str) -> str:
    with pytest.raises(DecisionLost) as lost:
        EndpointSource.parse(f"decisions:{url}/v1", (TOOL,)).build().decide(REQUEST)
    assert lost.value.loss == "malformed"
    return str(lost.value)


def lists_tools(url: str) -> str:
    pytest.importorskip("mcp")
    with pytest.raises(UserError) as error:
        toolsets.list_mcp_tools(f"{url}/mcp")
    return str(error.value)


CLIENTS = (decides, lists_tools)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("way", WAYS)
def test_compressed_answer_is_refused_without_unpacking(client: Callable[[str], str], way: str) -> None:
    with answering(way) as (url, asked):
        before = peak_mib() and peak_mib()
        told = client(url)
        assert f"compressed response ({way})" in told and set(asked) == {"identity"}
        assert peak_mib() - before < 60, "it was unpacked"


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("way", ENDLESS)
def test_endless_answer_is_dropped_at_the_size_limit(client: Callable[[str], str], way: str) -> None:
    with answering(way) as (url, _):
        told = client(url)
    most = toolsets.MAX_BYTES if client is lists_tools else MAX_BYTES
    assert f"{most} bytes" in told


@pytest.mark.parametrize("way", ["slow body", "slow headers"])
def test_slow_answer_ends_with_the_request_timeout(way: str) -> None:
    with answering(way) as (url, _):
        began = time.monotonic()
        with pytest.raises(WebError) as told:
            WebClient(url, {}).post({}, 0.3).result(20)
        assert told.value.loss == "timeout" and time.monotonic() - began >= 0.3


def test_too_deeply_nested_answer_is_refused() -> None:
    assert WebAnswer(200, {}, b"[" * 100 + b"]" * 100).json() is not None
    assert WebAnswer(200, {}, b'["' + b'\\"[{' * 1000 + b'"]').json() == ['"[{' * 1000]
    for more in (b"[" * 100_000, b'{"a":' * 100_000):
        with pytest.raises(ValueError, match="recursion limit"):
            WebAnswer(200, {}, more).json()
