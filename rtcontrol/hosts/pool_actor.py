"""The decoder's process of many sessions: a Ray actor that decides for all of them on one thread."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from typing import Any

import msgpack
import zmq

from rtcontrol.hosts.base import Decider, DeciderSource, DecisionRequest
from rtcontrol.hosts.inprocess import answer, describe
from rtcontrol.hosts.pool import Rota
from rtcontrol.hosts.ray_actor import PING, Sockets, as_request, echo, reply_body, unsaid

BUILDERS = "build"
WARM_ROUNDS = 3
# The deciding thread asks for the interpreter some hundred times a decision, and a build holds it for long: with
# Python's own 5 ms a decision would take a second meanwhile.
SWITCH_INTERVAL_S = 2e-5
# A build yields the processor to decisions, where there are not enough for both.
BUILDER_NICE = 10


class PoolActor:
    """Builds, keeps and asks the deciders of sessions. A session's DEALER has the session's key, a slash and a number
    as its identity: one that replaces another is not taken for it.

    Ray calls `open` on a thread of the concurrency group `BUILDERS`, the others on another; a third, the lane's,
    decides. Each may be asked again and again.
    """

    def __init__(self, directory: str, host: str) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._sockets = Sockets(directory, host)
        self._deciders: dict[bytes, Decider] = {}
        self._lock = threading.Lock()
        self._opening: set[bytes] = set()
        self._closed: deque[bytes] = deque()
        self._answer: dict[str, Any] | None = None

    def start(self) -> dict[str, Any]:
        """Endpoints of the lane and of the heartbeat, the CURVE key (tcp), and the pid."""
        if self._answer is None:
            # Loading torch holds the interpreter for up to a second: not while others decide or the heart must beat.
            import rtcontrol.models.engines.torch_engine  # noqa: F401

            self._answer = {
                "lanes": [self._sockets.serve("lane", self._decide)],
                "heartbeat": self._sockets.serve("heartbeat", echo),
                "key": self._sockets.key,
                "pid": os.getpid(),
            }
        return self._answer

    def open(self, key: bytes, source: DeciderSource, warm: DecisionRequest | None) -> dict[str, Any]:
        """Build the session's decider, unless it is there; gives the pid and what the decider says of itself. `warm`
        is decided a few times, for nothing: a process that was started again is slow at first."""
        with self._lock:
            decider = self._deciders.get(key)
            self._opening.add(key)
        try:
            if decider is None:
                _yield_processor()
                decider = source.build()
                if warm is not None:
                    for _ in range(WARM_ROUNDS):
                        answer(decider, warm)
            info = describe(decider)
        finally:
            with self._lock:
                if key in self._opening and decider is not None:
                    self._deciders[key] = decider
                self._opening.discard(key)
        return {"pid": os.getpid(), "info": info}

    def close(self, key: bytes) -> int:
        """Free the session's decider, also one that is still being built; gives how many there are."""
        with self._lock:
            self._opening.discard(key)
            if self._deciders.pop(key, None) is not None:
                self._closed.append(key)
            return len(self._deciders)

    def _decide(self, router: zmq.Socket[bytes]) -> None:
        """The lane's thread: take in all that has arrived, decide for the session whose turn it is, and so on."""
        lane = Lane(router)
        while True:
            while lane.readable():
                lane.receive()
            while self._closed:
                lane.forget(self._closed.popleft())
            turn = lane.rota.take()
            if turn is None:
                lane.receive()  # sleeps until something arrives
                continue
            key, request = turn
            if (decider := self._deciders.get(key)) is not None:
                lane.send(key, reply_body(decider, request))
                del decider  # a closed session's is not kept until the next request


class Lane:
    """The socket of all sessions, and who waits."""

    def __init__(self, router: zmq.Socket[bytes]) -> None:
        self.rota = Rota()
        self._router = router
        self._clients: dict[bytes, bytes] = {}  # each session's newest identity

    def readable(self) -> bool:
        return bool(int(self._router.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def receive(self) -> None:
        """Take in one message: a request, the tick of one that is given up, or an empty one, which is echoed."""
        client, body = self._router.recv_multipart()
        if body == PING:
            self._router.send_multipart((client, body))
            return
        key = client.partition(b"/")[0]
        try:
            fields = msgpack.unpackb(body)
            if isinstance(fields, int):
                self.rota.cancel(key, fields)
            else:
                self.rota.put(key, as_request(fields))
                self._clients[key] = client
        except Exception as error:
            self._router.send_multipart((client, unsaid(-1, error)))

    def send(self, key: bytes, body: bytes) -> None:
        self._router.send_multipart((self._clients[key], body))

    def forget(self, key: bytes) -> None:
        """The session is closed."""
        self.rota.remove(key)
        self._clients.pop(key, None)


def _yield_processor() -> None:
    with contextlib.suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BUILDER_NICE)
