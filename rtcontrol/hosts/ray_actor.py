"""The decoder's process: a Ray actor that decides for all sessions, on a ZeroMQ socket."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import pickle
import sys
import threading
import time
import traceback
from dataclasses import replace
from typing import Any

import zmq

from rtcontrol.hosts.deciders import DeciderLane, answer
from rtcontrol.hosts.decoder_link import PING, Files, WakeFile, router_socket
from rtcontrol.hosts.inprocess import InProcessHost, InProcessPool
from rtcontrol.hosts.processes import Heartbeat
from rtcontrol.hosts.protocol import DeciderSource, DecisionReply, DecisionRequest
from rtcontrol.hosts.scheduler import Turn

BUILD = "build"
WARM_ROUNDS = 3
# The deciding thread asks for the interpreter some hundred times a decision, and a build holds it for long: with
# Python's own 5 ms a decision would take a second meanwhile.
SWITCH_INTERVAL_S = 2e-5
# A build yields the processor to decisions, where there are not enough for both.
BUILDER_NICE = 10
FOREVER_NS = 3_600_000_000_000
_CONTEXT: zmq.Context[Any] = zmq.Context()


class DecoderActor:
    """A `SocketPool` in a process of Ray's, which calls `open` and `close` on the thread of the concurrency group
    `BUILD`, in their order. A `gentle` actor builds next to the decisions of another process."""

    def __init__(self, lanes: int, preload: bool, gentle: bool, directory: str) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        # One that cannot decide but whose heart beats would never be missed: it ends, and another takes its place.
        threading.excepthook = _exit
        self._pool = SocketPool(lanes, preload, directory)
        self._gentle = gentle

    def start(self) -> dict[str, Any]:
        """Return the endpoints of sessions and of the heartbeat, their CURVE key, the pid, and the numbers of the
        deciding threads."""
        self._pool.start()
        threading.Thread(target=self._pool.socket.echo, name="heartbeat", daemon=True).start()
        keep_loaded()
        return {**self._pool.socket.address, "tids": [tid for _, tid in self._pool.threads]}

    def open(self, key: bytes, source: DeciderSource, warm: DecisionRequest | None) -> dict[str, Any]:
        """Build the session's deciders; gives what the first says of itself. `warm` is decided a few times, for
        nothing: a process that was started again is slow at first."""
        hosts = self._pool.socket.hosts
        if self._gentle or hosts:
            yield_processor()
        host = SocketHost(source, pool=self._pool, session=key.decode())
        info = host.start()
        for decider, _ in itertools.product(host.deciders, range(WARM_ROUNDS if warm else 0)):
            assert warm is not None, "zero rounds without one"
            answer(decider, warm)
        if not hosts:
            keep_loaded()
        hosts[key] = host
        return info

    def close(self, key: bytes) -> int:
        """Free the session's deciders, if there are any. Gives how many sessions there are."""
        host = self._pool.socket.hosts.pop(key, None)
        if host is not None:
            host.close()
        return len(self._pool.socket.hosts)


class SocketPool(InProcessPool):
    """Its workers take in themselves what arrives for all sessions, and sleep at the socket."""

    def __init__(self, lanes: int, preload: bool, directory: str) -> None:
        super().__init__(sys.maxsize, lanes, preload)
        self.socket = SessionSocket(directory)

    def turn(self, lane: DeciderLane) -> list[Turn]:
        while True:
            self.socket.receive()
            with self.changed:
                turn = self.take(lane)
            if turn or not lane.idle:
                if self.lanes > 1:
                    self.socket.wake.set()  # others may have a turn by what this one has received
                return turn
            self.socket.sleep()


class SessionSocket:
    """The ROUTER of all sessions, and another for the heartbeat.

    Its clients are on the same machine and talk ipc under `directory`, under CURVE, with a key that only the answer of
    the actor's `start` tells: who knows it is the run, and who can answer to it is this process. Messages are pickled.
    A session's DEALER has the session's key, a slash and a number as its identity: one that replaces another is not
    taken for it.
    """

    def __init__(self, directory: str) -> None:
        self.hosts: dict[bytes, SocketHost] = {}
        self.beat = Heartbeat()
        self.wake = WakeFile()
        self._using = threading.Lock()
        self._router, self._heart = (router_socket(_CONTEXT) for _ in range(2))
        key, secret = zmq.curve_keypair()
        # The pid keeps a new process off the socket that its predecessor left behind.
        ends = {name: f"ipc://{directory}/{name}-{os.getpid()}" for name in ("endpoint", "heartbeat")}
        for router, endpoint in zip((self._router, self._heart), ends.values(), strict=True):
            router.linger = 0
            router.curve_server, router.curve_secretkey = True, secret
            router.bind(endpoint)
        self.address = {**ends, "key": key, "pid": os.getpid()}
        self._files = Files([self.wake.fd, int(self._router.getsockopt(zmq.FD))])

    def receive(self) -> None:
        """Take in what has arrived: empty messages, which are echoed, requests, and the ticks of those that are given
        up."""
        router = self._router
        with self._using:
            while int(router.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                client, body = router.recv_multipart()
                if body == PING:
                    router.send_multipart((client, body))
                elif (host := self.hosts.get(client.partition(b"/")[0])) is not None:
                    host.received(client, pickle.loads(body))

    def send(self, client: bytes, reply: DecisionReply) -> None:
        body = pack_reply(replace(reply, gaps=self.beat.recent()))
        with self._using:
            self._router.send_multipart((client, body))

    def sleep(self) -> None:
        """Until something arrives, or `wake` is set."""
        self._files.wait(FOREVER_NS)
        self.wake.clear()

    def echo(self) -> None:
        """Answer the watcher's pings, whatever the workers do."""
        self.beat.__enter__()  # for the process's life
        while True:
            self._heart.send_multipart(self._heart.recv_multipart())


class SocketHost(InProcessHost):
    """A session whose replies go to its newest client."""

    _client = b""

    def received(self, client: bytes, message: DecisionRequest | int) -> None:
        """Take a request, or the tick of one that is given up."""
        self._client = client
        if isinstance(message, int):
            self.cancel(message)
        else:
            self.submit(replace(message, received_ns=time.monotonic_ns()))

    def given_up(self, request: DecisionRequest) -> bool:
        self._pool.socket.receive()
        return super().given_up(request)

    def take(self, request: DecisionRequest, reply: DecisionReply | None) -> None:
        self.deciding.discard(request.tick)
        if reply is not None:
            self._pool.socket.send(self._client, reply)


def pack_reply(reply: DecisionReply) -> bytes:
    """Pack a reply; one that cannot be packed costs its tick alone."""
    try:
        return pickle.dumps(reply)
    except Exception as error:
        text = f"the decoder's answer cannot be sent: {type(error).__name__}: {error}".splitlines()[0]
        return pickle.dumps(DecisionReply(reply.tick, None, text, 0))


def _exit(arguments: threading.ExceptHookArgs) -> None:
    traceback.print_exception(arguments.exc_value)
    os._exit(1)


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
