"""Peers that are no server."""

from __future__ import annotations

import contextlib
import socket as sockets
import threading
from collections.abc import Iterator, Sequence


@contextlib.contextmanager
def garbage(parts: Sequence[bytes | None], reads: bool = True) -> Iterator[tuple[str, list[int]]]:
    """Sends the parts to whoever comes, and hears on, where it reads; None: it closes. Gives its address, `HOST:PORT`,
    and a list with an entry for each that came."""
    met: list[int] = []
    over = threading.Event()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                met.append(1)
                threading.Thread(target=talk, args=(peer,), daemon=True).start()

    def talk(peer: sockets.socket) -> None:
        with contextlib.suppress(OSError):
            for part in parts:
                if part is None:
                    peer.close()
                    return
                peer.sendall(part)
            if not reads:
                over.wait()
            while peer.recv(65536):
                pass

    with sockets.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", met
        over.set()
