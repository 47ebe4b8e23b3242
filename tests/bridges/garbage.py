"""A TCP peer that is no server."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def garbage(parts: list[bytes | None]) -> Iterator[tuple[int, list[int]]]:
    """Says these (None: closes the connection), then only reads. Its port, and an entry for each connection."""
    met: list[int] = []

    class Peer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            met.append(1)
            with contextlib.suppress(OSError):
                for part in parts:
                    if part is None:
                        return
                    self.request.sendall(part)
                while self.request.recv(65536):
                    pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Peer) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_address[1], met
        server.shutdown()
