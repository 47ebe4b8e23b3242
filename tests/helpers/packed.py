"""A real HTTP server whose answers are compressed bombs, endless or slow."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

from tests.helpers.web_server import Quiet, http_server

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
