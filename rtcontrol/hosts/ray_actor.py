"""The decoder's process: a Ray actor that answers on ZeroMQ sockets of its own."""

from __future__ import annotations

import os
import socket
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import zmq

from rtcontrol.hosts.base import Decider, DeciderSource, DecisionReply, DecisionRequest
from rtcontrol.hosts.inprocess import answer, describe

PING = b""


def pack_request(request: DecisionRequest) -> bytes:
    """Everything but the raw observation."""
    fields = (request.tick, request.epoch, request.observation, request.instruction, request.history)
    packed: bytes = msgpack.packb(fields)
    return packed


def unpack_request(data: bytes) -> DecisionRequest:
    return as_request(msgpack.unpackb(data))


def as_request(fields: Sequence[Any]) -> DecisionRequest:
    """From the unpacked fields; ValueError when there are others."""
    tick, epoch, observation, instruction, history = fields
    return DecisionRequest(tick, epoch, observation, instruction, tuple(history))


def pack_cancel(tick: int) -> bytes:
    """A decoder pool tells it from a request by its type."""
    packed: bytes = msgpack.packb(tick)
    return packed


def pack_reply(reply: DecisionReply) -> bytes:
    decision = None if reply.decision is None else reply.decision.to_dict()
    packed: bytes = msgpack.packb((reply.tick, decision, reply.error, reply.decide_ns, reply.mistake))
    return packed


class Sockets:
    """The sockets that a decoder's process answers on, each with a thread of its own.

    A client on the same machine talks ipc under `directory`; any other talks tcp under CURVE, with a `key` that only
    the actor's answer tells.
    """

    def __init__(self, directory: str, host: str) -> None:
        self._local = host == socket.gethostname() and Path(directory).is_dir()
        self._directory = Path(directory)
        self._context = zmq.Context()
        self.key, self._secret = (b"", b"") if self._local else zmq.curve_keypair()

    def serve(self, name: str, work: Callable[[zmq.Socket[bytes]], None]) -> str:
        """Start `work` on a new ROUTER; gives its endpoint."""
        router = self._context.socket(zmq.ROUTER)
        router.linger = 0
        if self._local:
            # The pid keeps a restarted process off the socket that its predecessor left behind.
            endpoint = f"ipc://{self._directory}/{name}-{os.getpid()}"
            router.bind(endpoint)
        else:
            router.curve_server, router.curve_secretkey = True, self._secret
            import ray

            address: str = ray.util.get_node_ip_address()
            endpoint = f"tcp://{address}:{router.bind_to_random_port(f'tcp://{address}')}"
        threading.Thread(target=_serve, args=(router, work), name=name, daemon=True).start()
        return endpoint


def _serve(router: zmq.Socket[bytes], work: Callable[[zmq.Socket[bytes]], None]) -> None:
    """The whole life of a socket's thread. A process whose lane is dead but whose heart beats would never be missed:
    it ends, and Ray starts it again."""
    try:
        work(router)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def echo(router: zmq.Socket[bytes]) -> None:
    """A heartbeat's thread."""
    while True:
        router.send_multipart(router.recv_multipart())


class DecoderActor:
    """Builds one decider a lane and serves it. Ray creates it, restarts it and kills it; it never sees a tick.

    `start` may be asked again and again: it builds once in a process's life.
    """

    def __init__(self, source: DeciderSource, lanes: int, directory: str, host: str) -> None:
        self._source = source
        self._lanes = lanes
        self._sockets = Sockets(directory, host)
        self._answer: dict[str, Any] | None = None

    def start(self) -> dict[str, Any]:
        """Endpoints of the lanes and of the heartbeat, the CURVE key (tcp), the pid, and what the decider says of
        itself."""
        if self._answer is None:
            deciders = [self._source.build() for _ in range(self._lanes)]
            serve = self._sockets.serve
            self._answer = {
                "lanes": [serve(f"lane{i}", partial(_decide, d)) for i, d in enumerate(deciders)],
                "heartbeat": serve("heartbeat", echo),
                "key": self._sockets.key,
                "pid": os.getpid(),
                "info": describe(deciders[0]),
            }
        return self._answer


def _decide(decider: Decider, router: zmq.Socket[bytes]) -> None:
    """Answer the newest request; older ones that piled up meanwhile are dropped. An empty message is echoed."""
    while True:
        client, body = router.recv_multipart()
        while router.poll(0):
            newer = router.recv_multipart()
            if newer[1] == PING:
                router.send_multipart(newer)
            else:
                client, body = newer
        if body != PING:
            body = reply_to(decider, body)
        router.send_multipart((client, body))


def reply_to(decider: Decider, body: bytes) -> bytes:
    """The packed reply to a packed request; one that cannot be read or answered gets an error (tick -1 if unknown)."""
    try:
        request = unpack_request(body)
    except Exception as error:
        return unsaid(-1, error)
    return reply_body(decider, request)


def reply_body(decider: Decider, request: DecisionRequest) -> bytes:
    """The packed reply; an answer that cannot be packed costs its tick, not the lane."""
    try:
        return pack_reply(answer(decider, request))
    except Exception as error:
        return unsaid(request.tick, error)


def unsaid(tick: int, error: Exception) -> bytes:
    """The packed reply in place of one that could not be made."""
    text = f"the decoder's answer cannot be sent: {type(error).__name__}: {error}".splitlines()[0]
    return pack_reply(DecisionReply(tick, None, text.encode("utf-8", "replace").decode(), 0))
