"""A real HTTP server whose answers are packed, endless or slow."""

from __future__ import annotations

import gzip
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

UNPACKED = 1 << 27
WAYS = ("zstd", "gzip", "deflate", "br", "gzip, zstd")
ENDLESS = ("chunked", "counted", "closed")


@cache
def packed(way: str) -> bytes:
    """128 MiB of JSON, as small as it gets."""
    import zstandard

    block, blocks = b" " * (1 << 20), UNPACKED >> 20
    if "zstd" in way:
        made = zstandard.ZstdCompressor().compressobj()
    elif way == "br":  # nothing here packs so: four bytes of it would do
        return b"\x8b\x00\x80\x03"
    else:
        made = zlib.compressobj(9, wbits=31 if way == "gzip" else 15)  # type: ignore[assignment]
    one = b"".join(made.compress(block) for _ in range(blocks)) + made.flush()
    return gzip.compress(one) if "," in way else one


@contextmanager
def answering(way: str) -> Iterator[tuple[str, list[str]]]:
    """The address of a server that answers all in this way (of WAYS, of ENDLESS, "slow body", "slow headers"), and the
    encodings that it was asked for."""
    asked: list[str] = []
    body = packed(way) if way in WAYS else b""  # made before anybody waits for it

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *unused: Any) -> None: ...

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
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
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return
            named = {"counted": ("content-length", str(1 << 40)), "closed": ("connection", "close")}
            self.send_header(*named.get(way, ("transfer-encoding", "chunked")))
            self.end_headers()
            size = 1 if way == "slow body" else 65_536
            chunk = b" " * size
            while True:
                self.wfile.write(chunk if way in named else b"%x\r\n%b\r\n" % (size, chunk))
                time.sleep(0.05 if way == "slow body" else 0)

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None: ...

    server = Quiet(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
