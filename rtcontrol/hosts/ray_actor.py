"""The decoder's process: a Ray actor that decides for all sessions. Requests and replies go over a ZeroMQ socket."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import zmq

from rtcontrol.hosts.deciders import Worker, reply_of
from rtcontrol.hosts.decoder_link import READY
from rtcontrol.hosts.inprocess import InProcessHost, InProcessPool
from rtcontrol.hosts.pool import ScheduledRequest
from rtcontrol.hosts.processes import Heartbeat, freeze_loaded_objects, lower_thread_priority
from rtcontrol.hosts.protocol import DeciderSource, DecisionReply, DecisionRequest, pack_reply, unpack_request
from rtcontrol.hosts.sockets import FilePoll, WakeFile, router_socket

BUILD, PING = "build", "ping"  # Ray's concurrency groups; each group's calls run on a separate thread
WARM_ROUNDS = 3
# The interpreter's switch interval. A decision acquires the interpreter's lock (GIL) about a hundred times. With
# Python's default of 5 ms, a build on another thread would delay each decision by half a second.
SWITCH_INTERVAL_S = 2e-5
FOREVER_NS = 3_600_000_000_000
_CONTEXT: zmq.Context[Any] = zmq.Context()


class DecoderActor(InProcessPool):
    """A pool in a Ray actor, whose workers wait for the messages of all sessions at one ROUTER socket.

    The socket is an ipc file in `directory`, with CURVE encryption by a key that `start` returns. The identity of a
    client's DEALER socket is the session's key, a slash and a number. `build` and `free` run in order on the thread of
    the group BUILD, and `ping` runs on the thread of the group PING."""

    def __init__(self, workers: int, preload: bool, directory: str) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        # Exit if a thread fails, so that the pool starts a new process. Otherwise this process would answer pings.
        threading.excepthook = _exit_process
        super().__init__(sys.maxsize, workers, preload)
        self._hosts: dict[bytes, SocketHost] = {}
        self._beat, self._wake, self._router_lock = Heartbeat(), WakeFile(), threading.Lock()
        self._router = router_socket(_CONTEXT)
        self._router.linger = 0
        self._router.curve_server = True
        key, self._router.curve_secretkey = zmq.curve_keypair()
        # The pid makes the name of the socket file unique, because the file of an earlier process may still exist.
        endpoint = f"ipc://{directory}/endpoint-{os.getpid()}"
        self._router.bind(endpoint)
        self._address = {"endpoint": endpoint, "key": key, "pid": os.getpid()}
        self._files = FilePoll([self._wake.fd, int(self._router.getsockopt(zmq.FD))])

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """Start the workers. Return the socket's endpoint and CURVE key, the pid, and the workers' thread ids."""
        super().start()
        self._beat.__enter__()  # the heartbeat runs until the process ends
        freeze_loaded_objects()
        return {**self._address, "tids": [tid for _, tid in self.threads]}

    def build(self, key: bytes, source: DeciderSource, warm: DecisionRequest | None) -> dict[str, Any]:
        """Build the deciders of a session, one for each worker. Return the first decider's fields for the report.

        `warm`: a request that each decider decides WARM_ROUNDS times to warm up, or None to skip this."""
        lower_thread_priority()
        host = SocketHost(source, pool=self, session=key.decode())
        info = host.start()
        if warm is not None:
            for decider in host.deciders * WARM_ROUNDS:
                reply_of(decider, warm)
        if not self._hosts:
            freeze_loaded_objects()
        self._hosts[key] = host
        return info

    def free(self, key: bytes) -> int:
        """Free the deciders of a session, if there are any. Return the number of remaining sessions."""
        host = self._hosts.pop(key, None)
        if host is not None:
            host.close()
        return len(self._hosts)

    def next_batch(self, worker: Worker) -> list[ScheduledRequest]:
        while True:
            self.receive()
            with self.changed:
                batch = self.dequeue_batch(worker)
            if batch or not worker.idle:
                if len(self.workers) > 1:
                    self._wake.set()  # wake other workers, because this worker may have received requests for them
                return batch
            self._wait_for_messages()

    def _wait_for_messages(self) -> None:
        """Wait for a message, or, with several workers, until another worker has received messages."""
        if len(self.workers) > 1:
            self._files.wait(FOREVER_NS)
            self._wake.clear()
        else:
            self._handle_message(*self._router.recv_multipart())

    def receive(self) -> None:
        """Receive and handle all waiting messages."""
        router = self._router
        with self._router_lock:
            while int(router.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                self._handle_message(*router.recv_multipart())

    def _handle_message(self, client: bytes, body: bytes) -> None:
        """Handle a message of a client: a request, a tick to cancel, or an empty message to send back."""
        if body == READY:
            self._router.send_multipart((client, body))
        elif (host := self._hosts.get(client.partition(b"/")[0])) is not None:
            host.handle_message(client, unpack_request(body))

    def send(self, client: bytes, reply: DecisionReply) -> None:
        reply.gaps = self._beat.recent_gaps()
        body = pack_reply(reply)
        with self._router_lock:
            self._router.send_multipart((client, body))

    def ping(self) -> bool:
        """Return True. This shows that the process is alive, even while all workers are busy."""
        return True


class SocketHost(InProcessHost):
    """The host of a session in the actor, which sends replies to the session's newest client."""

    _client = b""

    def handle_message(self, client: bytes, message: DecisionRequest | int) -> None:
        """Enqueue a request, or cancel the request of a tick if the message is a number."""
        self._client = client
        if isinstance(message, int):
            self.cancel(message)
        else:
            message.received_ns = now_ns = time.monotonic_ns()
            with self.pool.changed:
                self.pool.scheduler.enqueue(self, message, now_ns)

    def is_cancelled(self, request: DecisionRequest) -> bool:
        self.pool.receive()
        return super().is_cancelled(request)

    def deliver(self, request: DecisionRequest, reply: DecisionReply | None) -> None:
        self.deciding.discard(request.tick)
        if reply is not None:
            self.pool.send(self._client, reply)


def _exit_process(arguments: threading.ExceptHookArgs) -> None:
    traceback.print_exception(arguments.exc_value)
    os._exit(1)
