"""Run a real HTTP server on loopback with a handler class."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Quiet(BaseHTTPRequestHandler):
    """A request handler that passes the body to `post`, which answers, and writes no log."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *unused: Any) -> None: ...

    def post(self, body: bytes) -> None:
        raise NotImplementedError

    def do_POST(self) -> None:
        self.post(self.rfile.read(int(self.headers["content-length"])))


@contextmanager
def http_server(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run a server during the block; yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
