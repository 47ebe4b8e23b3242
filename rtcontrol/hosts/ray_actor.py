"""The decoder's process: a Ray actor that answers on ZeroMQ sockets of its own."""

from __future__ import annotations

import os
import socket
import threading
import traceback
from pathlib import Path
from typing import Any

import msgpack
import zmq

from rtcontrol.hosts.base import Decider, DeciderSource, DecisionReply, DecisionRequest
from rtcontrol.hosts.inprocess import answer

PING = b""


def pack_request(request: DecisionRequest) -> bytes:
    """Everything but the raw observation."""
    fields = (request.tick, request.epoch, request.observation, request.instruction, request.history)
    packed: bytes = msgpack.packb(fields)
    return packed


def unpack_request(data: bytes) -> DecisionRequest:
    tick, epoch, observation, instruction, history = msgpack.unpackb(data)
    return DecisionRequest(tick, epoch, observation, instruction, tuple(history))


def pack_reply(reply: DecisionReply) -> bytes:
    decision = None if reply.decision is None else reply.decision.to_dict()
    packed: bytes = msgpack.packb((reply.tick, decision, reply.error, reply.decide_ns, reply.mistake))
    return packed


class DecoderActor:
    """Builds one decider a lane and serves it. Ray creates it, restarts it and kills it; it never sees a tick.

    `start` may be asked again and again: it builds once in a process's life. A client on the same machine talks ipc
    under `directory`; any other talks tcp under CURVE, with a key that only `start`'s answer tells.
    """

    def __init__(self, source: DeciderSource, lanes: int, directory: str, host: str) -> None:
        self._source = source
        self._lanes = lanes
        self._local = host == socket.gethostname() and Path(directory).is_dir()
        self._directory = Path(directory)
        self._context = zmq.Context()
        self._key, self._secret = (b"", b"") if self._local else zmq.curve_keypair()
        self._answer: dict[str, Any] | None = None

    def start(self) -> dict[str, Any]:
        """Endpoints of the lanes and of the heartbeat, the CURVE key (tcp), the pid, and what the decider says of
        itself."""
        if self._answer is None:
            deciders = [self._source.build() for _ in range(self._lanes)]
            endpoints = [self._serve(f"lane{i}", decider) for i, decider in enumerate(deciders)]
            info = getattr(deciders[0], "info", None)
            self._answer = {
                "lanes": endpoints,
                "heartbeat": self._serve("heartbeat", None),
                "key": self._key,
                "pid": os.getpid(),
                "info": dict(info()) if info is not None else {},
            }
        return self._answer

    def _serve(self, name: str, decider: Decider | None) -> str:
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
        threading.Thread(target=_serve, args=(router, decider), name=name, daemon=True).start()
        return endpoint


def _serve(router: zmq.Socket[bytes], decider: Decider | None) -> None:
    """The whole life of a socket's thread. A process whose lane is dead but whose heart beats would never be missed:
    it ends, and Ray starts it again."""
    try:
        if decider is None:
            _echo(router)
        else:
            _decide(router, decider)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _echo(router: zmq.Socket[bytes]) -> None:
    while True:
        router.send_multipart(router.recv_multipart())


def _decide(router: zmq.Socket[bytes], decider: Decider) -> None:
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
    tick = -1
    try:
        request = unpack_request(body)
        tick = request.tick
        return pack_reply(answer(decider, request))
    except Exception as error:  # an answer that cannot be packed costs its tick, not the lane
        text = f"the decoder's answer cannot be sent: {type(error).__name__}: {error}".splitlines()[0]
        return pack_reply(DecisionReply(tick, None, text.encode("utf-8", "replace").decode(), 0))
