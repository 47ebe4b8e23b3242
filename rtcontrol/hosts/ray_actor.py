"""The decoder's process: a Ray actor that decides for all sessions, on ZeroMQ sockets of its own."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import msgpack
import zmq

from rtcontrol.hosts.deciders import DeciderLane, answer, describe
from rtcontrol.hosts.decoder_link import router_socket
from rtcontrol.hosts.messages import PING, pack_error, pack_reply, unpack_request
from rtcontrol.hosts.pool_core import DeciderTable
from rtcontrol.hosts.processes import Heartbeat
from rtcontrol.hosts.protocol import Decider, DeciderSource, DecisionReply, DecisionRequest
from rtcontrol.hosts.scheduler import EdfScheduler

BUILD = "build"
WARM_ROUNDS = 3
# The deciding thread asks for the interpreter some hundred times a decision, and a build holds it for long: with
# Python's own 5 ms a decision would take a second meanwhile.
SWITCH_INTERVAL_S = 2e-5
# A build yields the processor to decisions, where there are not enough for both.
BUILDER_NICE = 10


class DecoderActor:
    """Builds, keeps and asks the deciders of sessions: of each session one a lane. On a lane, a session's DEALER has
    the session's key, a slash and a number as its identity: one that replaces another is not taken for it.

    Its clients are on the same machine and talk ipc under `directory`, under CURVE, with a key that only the answer of
    `start` tells: who knows it is the run, and who can answer to it is this process. Ray calls `open` on a
    thread of the concurrency group `BUILD`, the others on another; each lane has a thread that
    decides. Each may be asked again and again.
    """

    def __init__(self, lanes: int, preload: bool, directory: str) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._directory, self._context = directory, zmq.Context()
        self._key, self._secret = zmq.curve_keypair()
        self._lanes, self._preload = lanes, preload
        self._table, self._lock = DeciderTable(), threading.Lock()
        self._closed: list[deque[bytes]] = [deque() for _ in range(lanes)]
        self._answer: dict[str, Any] | None = None
        self._beat = Heartbeat()
        self._tids: list[int] = []

    def start(self) -> dict[str, Any]:
        """Endpoints of the lanes and of the heartbeat, their CURVE key, the pid, and the lanes' thread numbers."""
        if self._answer is None:
            if self._preload:
                # It holds the interpreter for up to a second: not while others decide or the heart must beat.
                import rtcontrol.models.runners.torch_runner  # noqa: F401

                keep_loaded()
            self._answer = {
                "lanes": [self._serve(f"lane{i}", partial(self._decide, i)) for i in range(self._lanes)],
                "heartbeat": self._serve("heartbeat", _echo),
                "key": self._key,
                "pid": os.getpid(),
                "tids": self._tids[: self._lanes],
            }
            self._beat.__enter__()  # for the process's life
        return self._answer

    def open(self, key: bytes, source: DeciderSource, warm: DecisionRequest | None) -> dict[str, Any]:
        """Build the session's deciders, unless they are there; gives the pid and what the first says of itself. `warm`
        is decided a few times, for nothing: a process that was started again is slow at first."""
        with self._lock:
            if not self._table.open(key):
                return {"pid": os.getpid(), "info": {}}  # nobody waits for it any more
            deciders, alone = self._table.there.get(key), not self._table.there
        try:
            if deciders is None:
                if not alone:
                    yield_processor()
                deciders = [source.build() for _ in range(self._lanes)]
                for decider, _ in itertools.product(deciders, range(WARM_ROUNDS if warm else 0)):
                    assert warm is not None, "zero rounds without one"
                    answer(decider, warm)
            if alone and not gc.get_freeze_count():
                keep_loaded()
            info = describe(deciders[0])
        finally:
            with self._lock:
                self._table.opened(key, deciders)
        return {"pid": os.getpid(), "info": info}

    def close(self, key: bytes) -> int:
        """Free the session's deciders, also those still being built, or to be built: their `open` may come later. Gives
        how many sessions there are."""
        with self._lock:
            if self._table.close(key):
                for closed in self._closed:
                    closed.append(key)
            return len(self._table.there)

    def _serve(self, name: str, work: Callable[[zmq.Socket[bytes]], None]) -> str:
        """Start `work` on a new ROUTER and a thread of its own; gives the endpoint."""
        router = router_socket(self._context)
        router.linger = 0
        router.curve_server, router.curve_secretkey = True, self._secret
        # The pid keeps a restarted process off the socket that its predecessor left behind.
        endpoint = f"ipc://{self._directory}/{name}-{os.getpid()}"
        router.bind(endpoint)

        def run() -> None:
            # One whose lane is dead but whose heart beats would never be missed: it ends, and Ray starts it again.
            try:
                work(router)
            except BaseException:
                traceback.print_exc()
                os._exit(1)

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        self._tids.append(thread.native_id or 0)
        return endpoint

    def _decide(self, i: int, router: zmq.Socket[bytes]) -> None:
        """A lane's thread: take in all that has arrived, decide for the session whose turn it is, and so on."""
        socket, closed = LaneSocket(router, self._beat), self._closed[i]
        lane = DeciderLane(socket.rota, partial(self._decider, i), socket.cancelled, socket.answer)
        while True:
            socket.receive()
            while closed:
                key = closed.popleft()
                socket.forget(key)
                lane.forget(key)
            turn = lane.take(time.monotonic_ns())
            if turn or not lane.idle:
                lane.run(turn)
            else:
                socket.receive(one=True)  # sleeps until something arrives

    def _decider(self, i: int, key: bytes) -> Decider | None:
        return next(iter(self._table.there.get(key, ())[i : i + 1]), None)


class LaneSocket:
    """The socket of all sessions, and who waits."""

    def __init__(self, router: zmq.Socket[bytes], beat: Heartbeat) -> None:
        self.rota = EdfScheduler()
        self._router, self._beat = router, beat
        self._given_up: dict[bytes, int] = {}  # each session's newest tick that nobody waits for
        self._clients: dict[bytes, bytes] = {}  # each session's newest identity

    def receive(self, one: bool = False) -> None:
        """Take in all that has arrived, or wait for `one` message: a request, the tick of one that is given up, or an
        empty one, which is echoed."""
        while one or int(self._router.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            client, body = self._router.recv_multipart()
            if body == PING:
                self._router.send_multipart((client, body))
            else:
                self._take(client, body)
            if one:
                return

    def _take(self, client: bytes, body: bytes) -> None:
        key = client.partition(b"/")[0]
        try:
            fields = msgpack.unpackb(body)
            if isinstance(fields, int):
                self.rota.cancel(key, fields)
                self._given_up[key] = fields
            else:
                now = time.monotonic_ns()
                self.rota.put(key, unpack_request(fields, now), now)
                self._clients[key] = client
        except Exception as error:
            self._router.send_multipart((client, pack_error(-1, error)))

    def cancelled(self, key: bytes, request: DecisionRequest) -> bool:
        """Whether nobody waits for the session's request any more, by what has arrived."""
        self.receive()
        return self._given_up.get(key) == request.tick

    def answer(self, key: bytes, request: DecisionRequest, reply: DecisionReply | None) -> None:
        """Send the reply, where there is one."""
        if reply is not None:
            self._router.send_multipart((self._clients[key], pack_reply(reply, self._beat.recent())))

    def forget(self, key: bytes) -> None:
        """The session is closed."""
        self._clients.pop(key, None)
        self._given_up.pop(key, None)


def _echo(router: zmq.Socket[bytes]) -> None:
    """A heartbeat's thread."""
    while True:
        router.send_multipart(router.recv_multipart())


def keep_loaded() -> None:
    """Collections of garbage pass over what is there by now. They come on whichever thread allocates, and hold up all:
    through all modules for 0.1 s, which is several ticks."""
    gc.collect()
    gc.freeze()


def yield_processor() -> None:
    """Of this thread, to whoever decides."""
    with contextlib.suppress(AttributeError, OSError):
        tid = threading.get_native_id()
        # Above what decides: of a Ray that others have started, that is nice itself.
        nice = os.getpriority(os.PRIO_PROCESS, os.getpid()) + BUILDER_NICE
        os.setpriority(os.PRIO_PROCESS, tid, min(nice, 19))
