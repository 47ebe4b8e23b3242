"""The client's sockets to one life of the decoder's process, and the part of a host that uses them."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import select
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgpack
import zmq

from rtcontrol.hosts.base import DecisionReply, DecisionRequest, HostEvent
from rtcontrol.hosts.ray_actor import PING, pack_cancel, pack_request
from rtcontrol.models.call import Decision

log = logging.getLogger("rtcontrol.host")

WARM_ROUNDS = 3


class _Poll(ctypes.Structure):
    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


class _Timespec(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


class Files:
    """Waits for files to be readable, to the microsecond: poll() counts in whole milliseconds, and select() knows no
    descriptors above 1023."""

    def __init__(self, files: Sequence[int]) -> None:
        self._files = (_Poll * len(files))(*((fd, select.POLLIN, 0) for fd in files))
        self._ppoll = ctypes.CDLL(None).ppoll

    def wait(self, timeout_ns: int) -> bool:
        """Whether one is readable within the time; a signal ends the wait."""
        timeout = _Timespec(*divmod(timeout_ns, 1_000_000_000))
        return bool(self._ppoll(self._files, len(self._files), ctypes.byref(timeout), None) > 0)


class Wake:
    """A file that is readable after `set` until `clear`; any thread may call them."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.files = Files([self.fd])

    def set(self) -> None:
        # The counter saturates after 2**64 calls; a host that is closed has no file any more.
        with contextlib.suppress(OSError):
            os.eventfd_write(self.fd, 1)

    def clear(self) -> bool:
        """Whether it was set."""
        with contextlib.suppress(BlockingIOError):
            return os.eventfd_read(self.fd) > 0
        return False

    def __del__(self) -> None:
        os.close(self.fd)


def dealer(context: zmq.Context[Any], endpoint: str, key: bytes, identity: bytes = b"") -> zmq.Socket[bytes]:
    """Connected socket that keeps nothing for a peer that is not there; `identity` is what a ROUTER knows it by."""
    sock: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    sock.linger = 0
    sock.immediate = 1
    sock.reconnect_ivl, sock.reconnect_ivl_max = 20, 640
    if identity:
        sock.routing_id = identity
    if key:
        sock.curve_serverkey = key
        sock.curve_publickey, sock.curve_secretkey = zmq.curve_keypair()
    sock.connect(endpoint)
    return sock


class Link:
    """One DEALER a lane. Made on one thread, then handed over for good to the loop's."""

    def __init__(self, context: zmq.Context[Any], answer: dict[str, Any], wake: Wake, identity: bytes = b"") -> None:
        self.answer = answer
        self._wake = wake
        self._lanes = [dealer(context, endpoint, answer["key"], identity) for endpoint in answer["lanes"]]
        self._files = Files([wake.fd, *(int(lane.getsockopt(zmq.FD)) for lane in self._lanes)])
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

    def cancel(self, tick: int) -> None:
        """To the one lane of a decoder pool."""
        with contextlib.suppress(zmq.Again):
            self._lanes[0].send(pack_cancel(tick), zmq.NOBLOCK)

    def receive(self, timeout_ns: int) -> DecisionReply | None:
        """The next reply within the time, or None (possibly early)."""
        # A socket's file only says that something changed, so the sockets' state is asked before and after.
        reply = self._take()
        if reply is None and self._files.wait(max(timeout_ns, 0)) and not self._wake.clear():
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


class LinkedHost:
    """What a host does with links: its loop's thread owns the one in use; another thread tells of losses and offers
    the link to a restarted process."""

    name = "ray"

    def __init__(self) -> None:
        self.incarnation = 0
        self.events: list[HostEvent] = []
        self.last: DecisionRequest | None = None
        self._link: Link | None = None
        self._offers: deque[Link] = deque()
        self._up = False
        self._wake = Wake()

    def submit(self, request: DecisionRequest) -> None:
        self._adopt()
        self.last = request
        if self._link is None or not self._up or not self._link.send(request):
            log.debug("tick %d was not sent: no connection", request.tick)

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        self._adopt()
        if self._link is None:
            self._wake.files.wait(max(timeout_ns, 0))
            self._wake.clear()
            return None
        return self._link.receive(timeout_ns)

    def wake(self) -> None:
        self._wake.set()

    def alive(self) -> bool:
        return self._up

    def cancel(self, tick: int) -> None:
        """Nothing to do: a lane answers the newest request only."""

    def take(self, link: Link) -> None:
        """The first link."""
        self._link, self._up = link, True

    def drop(self) -> None:
        """Close the links, on the thread that owns them."""
        self._up = False
        self._adopt()
        if self._link is not None:
            self._link.close()
        self._link = None

    def lose(self, lost_ns: int) -> None:
        """The process was lost at `lost_ns`. On another thread, as `offer`."""
        self._up = False
        self.events.append(HostEvent(lost_ns, "lost", 0.0))

    def offer(self, link: Link, lost_ns: int) -> None:
        """The process that was lost at `lost_ns` is back."""
        self._offers.append(link)
        now_ns = time.monotonic_ns()
        self.incarnation += 1
        self._up = True
        self.events.append(HostEvent(now_ns, "restarted", (now_ns - lost_ns) / 1e9))

    def _adopt(self) -> None:
        while self._offers:
            if self._link is not None:
                self._link.close()
            self._link = self._offers.popleft()
