"""A stand-in for a policy server: a real WebSocket server in this process, whose answers the test chooses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from rtcontrol.hosts.policy_link import pack_message, unpack_message


class PolicyStandin:
    """A policy server that gives `answers(n)` to the n-th question; if that raises OSError, the connection ends.
    `questions` counts questions, `headers` are those of each connection. `refuse`: an HTTP status and a location."""

    def __init__(self, answers: Callable[[int], Sequence[Any]], refuse: tuple[int, str] | None) -> None:
        self._answers, self._refuse = answers, refuse
        self.questions = 0
        self.headers: list[dict[str, str]] = []
        self.url = ""

    def check(self, connection: ServerConnection, request: Request) -> Response | None:
        self.headers.append({name.lower(): value for name, value in request.headers.raw_items()})
        if self._refuse is None:
            return None
        response = connection.respond(self._refuse[0], "no\n")
        response.headers["Location"] = self._refuse[1]
        return response

    def talk(self, connection: ServerConnection) -> None:
        with suppress(ConnectionClosed, OSError):
            connection.send(pack_message({"policy": "standin"}))
            for message in connection:
                assert "prompt" in unpack_message(message)
                self.questions += 1
                for message in self._answers(self.questions):
                    connection.send(pack_message(message))


def actions(*rows: float, **more: Any) -> dict[str, Any]:
    """Return an answer with one number per action, and a unique timing."""
    timing = {"infer_ms": time.perf_counter() * 1e3}
    return {"actions": np.array([[row] for row in rows], np.float32), "server_timing": timing, **more}


@contextmanager
def policy(
    answers: Callable[[int], Sequence[Any]] = lambda n: [actions(n / 100)], refuse: tuple[int, str] | None = None
) -> Iterator[PolicyStandin]:
    standin = PolicyStandin(answers, refuse)
    options: dict[str, Any] = {"compression": None, "process_request": standin.check, "close_timeout": 0.2}
    with serve(standin.talk, "127.0.0.1", 0, **options) as server:
        standin.url = f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield standin
        finally:
            server.shutdown()
            thread.join()
