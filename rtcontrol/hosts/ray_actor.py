"""The decoder's process: a Ray actor that decides for all sessions, on a ZeroMQ socket."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import zmq

from rtcontrol.hosts.deciders import Worker, answer
from rtcontrol.hosts.decoder_link import READY
from rtcontrol.hosts.inprocess import InProcessHost, InProcessPool
from rtcontrol.hosts.messages import pack_reply, unpack_request
from rtcontrol.hosts.pool import ScheduledRequest
from rtcontrol.hosts.processes import Heartbeat, keep_loaded, yield_processor
from rtcontrol.hosts.protocol import DeciderSource, DecisionReply, DecisionRequest
from rtcontrol.hosts.sockets import FilePoll, WakeFile, router_socket

BUILD, PING = "build", "ping"  # groups of calls, each with a thread
WARM_ROUNDS = 3
# The deciding thread takes the interpreter's lock about a hundred times per decision: with Python's default of 5 ms, a
# build on another thread would delay each decision by a second.
SWITCH_INTERVAL_S = 2e-5
FOREVER_NS = 3_600_000_000_000
_CONTEXT: zmq.Context[Any] = zmq.Context()


class DecoderActor(InProcessPool):
    """A pool in a Ray process; the workers wait at one ROUTER socket for the messages of all sessions.

    Clients use ipc under `directory`, and CURVE with a key that only the answer to `start` has. Messages are pickled.
    A DEALER's identity is the session's key, a slash and a number that is new for each link. `build` and `free` run
    in order, on the thread of Ray's group BUILD, `ping` on the thread of PING."""

    def __init__(self, workers: int, preload: bool, directory: str) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        # An actor whose thread failed could still answer pings: so the process exits, and a new one replaces it.
        threading.excepthook = _exit
        super().__init__(sys.maxsize, workers, preload)
        self._hosts: dict[bytes, SocketHost] = {}
        self._beat, self._wake, self._using = Heartbeat(), WakeFile(), threading.Lock()
        self._router = router_socket(_CONTEXT)
        self._router.linger = 0
        self._router.curve_server = True
        key, self._router.curve_secretkey = zmq.curve_keypair()
        # The pid in the name keeps a new process from the socket that the old process left.
        endpoint = f"ipc://{directory}/endpoint-{os.getpid()}"
        self._router.bind(endpoint)
        self._address = {"endpoint": endpoint, "key": key, "pid": os.getpid()}
        self._files = FilePoll([self._wake.fd, int(self._router.getsockopt(zmq.FD))])

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """Return the endpoint of sessions, its CURVE key, the pid, and the workers' threads."""
        super().start()
        self._beat.__enter__()  # until the process ends
        keep_loaded()
        return {**self._address, "tids": [tid for _, tid in self.threads]}

    def build(self, key: bytes, source: DeciderSource, warm: DecisionRequest | None) -> dict[str, Any]:
        """Build the session's deciders; return the lines that the first decider adds to the report.

        Each decider answers `warm` a few times and the answers are dropped: a restarted process is slow at first."""
        yield_processor()
        host = SocketHost(source, pool=self, session=key.decode())
        info = host.start()
        if warm is not None:
            for decider in host.deciders * WARM_ROUNDS:
                answer(decider, warm)
        if not self._hosts:
            keep_loaded()
        self._hosts[key] = host
        return info

    def free(self, key: bytes) -> int:
        """Free the session's deciders, if there are any; return the number of sessions."""
        host = self._hosts.pop(key, None)
        if host is not None:
            host.close()
        return len(self._hosts)

    def next_batch(self, worker: Worker) -> list[ScheduledRequest]:
        while True:
            self.receive()
            with self.changed:
                batch = self.take_batch(worker)
            if batch or not worker.idle:
                if len(self.workers) > 1:
                    self._wake.set()  # this worker may have received requests for other workers
                return batch
            self._wait()

    def _wait(self) -> None:
        """Wait for a message, or for another worker that has received some. The socket's own wait is the faster one."""
        if len(self.workers) > 1:
            self._files.wait(FOREVER_NS)
            self._wake.clear()
        else:
            self._read(*self._router.recv_multipart())

    def receive(self) -> None:
        """Read all messages."""
        router = self._router
        with self._using:
            while int(router.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                self._read(*router.recv_multipart())

    def _read(self, client: bytes, body: bytes) -> None:
        """Submit a request, cancel a tick, or echo an empty message."""
        if body == READY:
            self._router.send_multipart((client, body))
        elif (host := self._hosts.get(client.partition(b"/")[0])) is not None:
            host.message(client, unpack_request(body))

    def send(self, client: bytes, reply: DecisionReply) -> None:
        reply.gaps = self._beat.recent()
        body = pack_reply(reply)
        with self._using:
            self._router.send_multipart((client, body))

    def ping(self) -> bool:
        """Answer the watcher, even while all workers are busy."""
        return True


class SocketHost(InProcessHost):
    """A session's host, which sends replies to the session's newest client."""

    _client = b""

    def message(self, client: bytes, message: DecisionRequest | int) -> None:
        """Submit a request, or cancel the tick whose number is the message."""
        self._client = client
        if isinstance(message, int):
            self.cancel(message)
        else:
            message.received_ns = now_ns = time.monotonic_ns()
            with self.pool.changed:
                self.pool.scheduler.enqueue(self, message, now_ns)

    def cancelled(self, request: DecisionRequest) -> bool:
        self.pool.receive()
        return super().cancelled(request)

    def deliver(self, request: DecisionRequest, reply: DecisionReply | None) -> None:
        self.deciding.discard(request.tick)
        if reply is not None:
            self.pool.send(self._client, reply)


def _exit(arguments: threading.ExceptHookArgs) -> None:
    traceback.print_exception(arguments.exc_value)
    os._exit(1)
