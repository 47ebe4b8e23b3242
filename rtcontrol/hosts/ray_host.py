"""The loop's end of the sockets to a decoder's process: a session's host with its lanes, and the heartbeat."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import zmq

from rtcontrol.hosts.processes import GONE, STOPPED, WAITING, Progress
from rtcontrol.hosts.protocol import (
    SHARES,
    DeciderSource,
    DecisionReply,
    DecisionRequest,
    DecoderUnavailable,
    HostEvent,
)
from rtcontrol.hosts.ray_actor import PING
from rtcontrol.models.call import Call, Decision

log = logging.getLogger("rtcontrol.host")

PING_EVERY_S = 0.1
# Silence alone proves little: on a starved machine a live process answers late. So long it may be silent before the
# kernel's word counts that it has got nowhere for `STILL_S`; and so long whatever the kernel says.
DOUBT_AFTER_S, STILL_S, DEAD_AFTER_S = 2.0, 1.0, 10.0
# For the process's life: to end a context is to wait for its sockets, which their sessions' threads must close.
_CONTEXT: zmq.Context[Any] = zmq.Context()
_NUMBERS = itertools.count()


class RayHost:
    """One session's part of a `RayPool`, which it starts and ends where it is its `own`.

    Its loop's thread owns the link in use. The pool's threads, under the pool's lock, tell of losses (`lose`), offer
    the link to a restarted process, or give up.
    """

    name = "ray"

    def __init__(self, pool: Any, source: DeciderSource, session: str, own: bool = False) -> None:
        self.incarnation = 0
        self.shares: deque[float] = deque(maxlen=SHARES)
        self.events: list[HostEvent] = []
        self.gave_up: str | None = None
        self.source, self.session = source, session
        self.info: dict[str, Any] = {}
        self.last: DecisionRequest | None = None
        self.lost_ns: int | None = None  # when the decider was lost that is not back
        self.up = False
        self.woken = WakeFile()
        self._pool, self._own = pool, own
        self.renew()
        self._link: DecoderLink | None = None
        self._offers: deque[DecoderLink] = deque()

    def renew(self) -> None:
        """Another key: what had the one before was freed for good."""
        self.key = b"%d" % next(_NUMBERS)

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        if not self.info:
            if self._own:
                self._pool.start(stopped)
            if not stopped():
                self._pool.admit(self, stopped)
        return self.info

    def submit(self, request: DecisionRequest) -> None:
        if self._offers:
            self._adopt()
        self.last = request
        if self._link is None or not self.up or not self._link.send(request):
            log.debug("tick %d was not sent: no connection", request.tick)

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        if self._offers:
            self._adopt()
        if self._link is None:
            self.woken.files.wait(max(timeout_ns, 0))
            self.woken.clear()
            return None
        reply = self._link.receive(timeout_ns)
        if reply is not None:
            self.shares.append(reply.decide_ns / reply.together)
        return reply

    @property
    def threads(self) -> Sequence[tuple[int, int]]:
        link = self._offers[-1] if self._offers else self._link
        return () if link is None else link.threads

    def wake(self) -> None:
        self.woken.set()

    def alive(self) -> bool:
        return self.up

    def cancel(self, tick: int) -> None:
        if self._link is not None:
            self._link.cancel(tick)

    def close(self) -> None:
        self._pool.release(self)
        self.up = False
        self._adopt()
        if self._link is not None:
            self._link.close()
        self._link = None
        if self._own:
            self._pool.close()

    def lose(self, lost_ns: int) -> None:
        self.up, self.lost_ns = False, lost_ns
        self.events.append(HostEvent(lost_ns, "lost", 0.0))

    def offer(self, link: DecoderLink) -> None:
        """A link to a process that is up."""
        self._offers.append(link)
        self.up = True
        if self.lost_ns is not None:
            now_ns = time.monotonic_ns()
            self.incarnation += 1
            self.events.append(HostEvent(now_ns, "restarted", (now_ns - self.lost_ns) / 1e9))
            self.lost_ns = None

    def give_up(self, why: str) -> None:
        """There will be no more decisions."""
        self.up = False
        self.gave_up = why
        self.woken.set()

    def _adopt(self) -> None:
        while self._offers:
            if self._link is not None:
                self._link.close()
            self._link = self._offers.popleft()


class _Poll(ctypes.Structure):
    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


class _Timespec(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


class Files:
    """Waits for files to be readable, to the microsecond: poll() counts in whole milliseconds, and select() knows no
    descriptors above 1023."""

    def __init__(self, files: Sequence[int]) -> None:
        self._files = (_Poll * len(files))(*(_Poll(fd, select.POLLIN, 0) for fd in files))
        self._ppoll = ctypes.CDLL(None).ppoll

    def wait(self, timeout_ns: int) -> bool:
        """Whether one is readable within the time; a signal ends the wait."""
        timeout = _Timespec(*divmod(timeout_ns, 1_000_000_000))
        return bool(self._ppoll(self._files, len(self._files), ctypes.byref(timeout), None) > 0)


class WakeFile:
    """A file that is readable after `set` until `clear`; any thread may call them."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.files = Files([self.fd])

    def set(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the counter is full: it is set
            os.eventfd_write(self.fd, 1)

    def clear(self) -> bool:
        """Whether it was set."""
        with contextlib.suppress(BlockingIOError):
            return os.eventfd_read(self.fd) > 0
        return False

    def __del__(self) -> None:
        os.close(self.fd)


def _dealer(endpoint: str, curve_key: bytes, identity: bytes = b"") -> zmq.Socket[bytes]:
    """Connected socket that keeps nothing for a peer that is not there; `identity` is what a ROUTER knows it by."""
    sock: zmq.Socket[bytes] = _CONTEXT.socket(zmq.DEALER)
    sock.linger = 0
    sock.immediate = 1
    sock.reconnect_ivl, sock.reconnect_ivl_max = 20, 640
    if identity:
        sock.routing_id = identity
    sock.curve_serverkey = curve_key
    sock.curve_publickey, sock.curve_secretkey = zmq.curve_keypair()
    sock.connect(endpoint)
    return sock


def _decision(call: Sequence[Any] | None, fields: Sequence[Any]) -> Decision:
    confidence, passes, tokens, reused, words, kept = fields
    made = None if call is None else Call(*call)
    return Decision(made, confidence, passes, tokens, reused, tuple(words), kept=kept)


class DecoderLink:
    """A session's sockets to one life of the decoder's process: one DEALER a lane. Made on one thread, then handed over
    for good to the loop's."""

    def __init__(self, answer: dict[str, Any], session_key: bytes, wake: WakeFile) -> None:
        self._wake = wake
        identity = b"%s/%d" % (session_key, next(_NUMBERS))
        try:
            self._lanes = [_dealer(endpoint, answer["key"], identity) for endpoint in answer["lanes"]]
        except zmq.ZMQError as error:  # no descriptors left, say: it may be tried again
            raise DecoderUnavailable(
                f"No socket to the decoder ({error}).", "Close some, or raise `ulimit -n`."
            ) from None
        self.threads = [(int(answer["pid"]), tid) for tid in answer["tids"]]
        self._files = Files([wake.fd, *(int(lane.getsockopt(zmq.FD)) for lane in self._lanes)])
        self._waiting: list[int | None] = [None] * len(self._lanes)

    def ready(self, timeout_ms: int) -> bool:
        """A round trip on every lane; False when there is no answer in time."""
        for lane in self._lanes:
            if not lane.poll(timeout_ms, zmq.POLLOUT):
                return False
            lane.send(PING)
            if not lane.poll(timeout_ms):
                return False
            lane.recv()
        return True

    def send(self, request: DecisionRequest) -> bool:
        """On an idle lane, else on the one that has waited longest (it answers the newest); False when it is cut."""
        waiting = self._waiting
        i = waiting.index(None) if None in waiting else min(range(len(waiting)), key=lambda n: waiting[n] or 0)
        try:
            # Everything but the raw observation.
            asked = request.tick, request.epoch, request.observation, request.instruction, request.history
            more = () if request.standing is None else (request.standing.to_dict(),)
            self._lanes[i].send(msgpack.packb((*asked, request.within_ns, *more)), zmq.NOBLOCK)
        except zmq.Again:
            return False
        waiting[i] = request.tick
        return True

    def cancel(self, tick: int) -> None:
        if tick in self._waiting:
            with contextlib.suppress(zmq.Again):
                self._lanes[self._waiting.index(tick)].send(msgpack.packb(tick), zmq.NOBLOCK)

    def receive(self, timeout_ns: int) -> DecisionReply | None:
        """The next reply within the time, or None (possibly early)."""
        # A socket's file only says that something changed, so the sockets' state is asked before and after.
        reply = self._take()
        if reply is None and timeout_ns > 0 and self._files.wait(timeout_ns) and not self._wake.clear():
            reply = self._take()
        return reply

    def _take(self) -> DecisionReply | None:
        for i, lane in enumerate(self._lanes):
            if int(lane.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                body = lane.recv()
                if body != PING:
                    tick, call, rest, error, decide_ns, mistake, *stamps = msgpack.unpackb(body)
                    if self._waiting[i] == tick:
                        self._waiting[i] = None
                    made = rest and _decision(call, rest)
                    said = mistake and (mistake[0], mistake[1])
                    return DecisionReply(tick, made, error, decide_ns, said, *stamps)
        return None

    def close(self) -> None:
        for lane in self._lanes:
            lane.close(0)


def until_lost(answer: dict[str, Any], others: Sequence[int], stop: threading.Event) -> int | None:
    """Watch the process that gave this answer: when it was lost, or one of `others` became readable; None when
    `stop` was set before."""
    heart = _dealer(answer["heartbeat"], answer["key"])
    monitor = heart.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    poller = zmq.Poller()
    for watched in (heart, monitor, *others):
        poller.register(watched, zmq.POLLIN)
    progress = Progress(answer["pid"])
    # In rounds, which this thread itself saw: while it is not run, nobody is silent.
    silent = still = 0
    try:
        while not stop.is_set():
            with contextlib.suppress(zmq.Again):
                heart.send(PING, zmq.NOBLOCK)
            until = time.monotonic() + PING_EVERY_S
            silent += 1
            while (left := until - time.monotonic()) > 0:
                ready = dict(poller.poll(max(1, int(1e3 * left))))
                if heart in ready:
                    heart.recv()
                    silent = 0
                    del ready[heart]
                if ready:
                    return time.monotonic_ns()
            if not silent:
                still = 0
                continue
            state = progress.look()
            still = still + 1 if state in (STOPPED, WAITING) else 0
            hangs = silent * PING_EVERY_S > DOUBT_AFTER_S and still * PING_EVERY_S > STILL_S
            if state == GONE or hangs or silent * PING_EVERY_S > DEAD_AFTER_S:
                return time.monotonic_ns()
        return None
    finally:
        heart.disable_monitor()
        heart.close(0)
