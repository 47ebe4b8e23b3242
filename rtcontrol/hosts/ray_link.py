"""The client's sockets to one life of the decoder's process."""

from __future__ import annotations

import select
from dataclasses import replace
from typing import Any

import msgpack
import zmq

from rtcontrol.hosts.base import DecisionReply, DecisionRequest
from rtcontrol.hosts.ray_actor import PING, pack_request
from rtcontrol.models.call import Decision

WARM_ROUNDS = 3


def dealer(context: zmq.Context[Any], endpoint: str, key: bytes) -> zmq.Socket[bytes]:
    """Connected socket that keeps nothing for a peer that is not there."""
    sock: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    sock.linger = 0
    sock.immediate = 1
    sock.reconnect_ivl = 20
    if key:
        sock.curve_serverkey = key
        sock.curve_publickey, sock.curve_secretkey = zmq.curve_keypair()
    sock.connect(endpoint)
    return sock


class Link:
    """One DEALER a lane. Made on the watcher's thread, then handed over for good to the loop's."""

    def __init__(self, context: zmq.Context[Any], answer: dict[str, Any]) -> None:
        self.answer = answer
        self._lanes = [dealer(context, endpoint, answer["key"]) for endpoint in answer["lanes"]]
        self._files = [int(lane.getsockopt(zmq.FD)) for lane in self._lanes]
        self._waiting: list[int | None] = [None] * len(self._lanes)

    def ready(self, timeout_ms: int, warm: DecisionRequest | None = None) -> bool:
        """A round trip on every lane; False when there is no answer in time.

        `warm` is decided a few times instead, for nothing: a process that was started again is slow at first.
        """
        bodies = [PING] if warm is None else [pack_request(replace(warm, tick=-1, data=None))] * WARM_ROUNDS
        for lane in self._lanes:
            if not lane.poll(timeout_ms, zmq.POLLOUT):
                return False
            for body in bodies:
                lane.send(body)
                if not lane.poll(timeout_ms):
                    return False
                lane.recv()
        return True

    def send(self, request: DecisionRequest) -> bool:
        """On an idle lane, else on the one that has waited longest (it answers the newest); False when it is cut."""
        waiting = self._waiting
        i = waiting.index(None) if None in waiting else min(range(len(waiting)), key=lambda n: waiting[n] or 0)
        try:
            self._lanes[i].send(pack_request(request), zmq.NOBLOCK)
        except zmq.Again:
            return False
        waiting[i] = request.tick
        return True

    def receive(self, timeout_ns: int) -> DecisionReply | None:
        """The next reply within the time, or None (possibly early)."""
        # poll() counts in whole milliseconds; select() on the sockets' own files is exact. Such a file only says that
        # something changed, so the sockets' state is asked before and after.
        reply = self._take()
        if reply is None and timeout_ns > 0 and select.select(self._files, (), (), timeout_ns / 1e9)[0]:
            reply = self._take()
        return reply

    def _take(self) -> DecisionReply | None:
        for i, lane in enumerate(self._lanes):
            if int(lane.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                body = lane.recv()
                if body != PING:
                    tick, decision, error, decide_ns, mistake = msgpack.unpackb(body)
                    if self._waiting[i] == tick:
                        self._waiting[i] = None
                    made = decision and Decision.from_dict(decision)
                    return DecisionReply(tick, made, error, decide_ns, mistake and (mistake[0], mistake[1]))
        return None

    def close(self) -> None:
        for lane in self._lanes:
            lane.close(0)
