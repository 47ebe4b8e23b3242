"""A real WebSocket server of a policy in this process, whose answers are as the test says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from rtcontrol.hosts.array_message import pack_message, unpack_message

Answer = Callable[
    [int, dict[str, Any]], Any
]  # of the question's number and what it holds: a message, none, or several with seconds between


class PolicyStandin:
    """`questions` are all that it was asked, `headers` those of each connection."""

    def __init__(self, answer: Answer, first: Any, refuse: int | None) -> None:
        self._answer, self._first, self._refuse = answer, first, refuse
        self.questions: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""

    def check(self, connection: ServerConnection, request: Request) -> Response | None:
        self.headers.append({name.lower(): value for name, value in request.headers.raw_items()})
        return None if self._refuse is None else connection.respond(self._refuse, "no\n")

    def talk(self, connection: ServerConnection) -> None:
        try:
            connection.send(pack_message(self._first) if isinstance(self._first, dict) else self._first)
            for message in connection:
                self.questions.append(unpack_message(message))
                made = self._answer(len(self.questions), self.questions[-1])
                for said in made if isinstance(made, list) else [] if made is None else [made]:
                    if isinstance(said, float):
                        time.sleep(said)
                    else:
                        connection.send(pack_message(said) if isinstance(said, dict) else said)
        except ConnectionClosed:
            pass  # the client cut it


def actions(*rows: float, **more: Any) -> dict[str, Any]:
    """An answer of one number an action, with a timing of its own."""
    timing = {"infer_ms": time.perf_counter() * 1e3}
    return {"actions": np.array([[row] for row in rows], np.float32), "server_timing": timing, **more}


@contextmanager
def policy(answer: Answer, first: Any = {"policy": "standin"}, refuse: int | None = None) -> Iterator[PolicyStandin]:  # noqa: B006
    made = PolicyStandin(answer, first, refuse)
    with serve(
        made.talk, "127.0.0.1", 0, compression=None, max_size=None, process_request=made.check, close_timeout=0.2
    ) as server:
        made.url = f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()
