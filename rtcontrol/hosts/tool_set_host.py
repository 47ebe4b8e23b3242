"""Decides for a world whose tools change from question to question: the last few sets of tools are kept open."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from queue import Empty, SimpleQueue
from typing import Any

from rtcontrol.hosts.protocol import SHARES, DecisionReply, DecisionRequest, DecoderUnavailable, Host, HostEvent
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.hosts")

OVER = "nobody waits for the answer any more"
LIMIT = 8  # sets that are kept open
LOOK_NS = 50_000_000  # so often it is seen whether the decoder is there still
TAKEOVER_NS, SLEEP_S = 500_000_000, 0.01
CLOSE_S = 1.0
REASONS = 64  # are told


@dataclass(frozen=True)
class ToolOffer:
    """The tools (OpenAI-style) that a question may be answered with; with `allow_null`, or with no call."""

    tools: tuple[dict[str, Any], ...]
    allow_null: bool = False

    @cached_property
    def key(self) -> str:
        return json.dumps([self.allow_null, *self.tools])


class ToolSetHost:
    """A `Host` of one session. The `offer` of a request's data says with which tools it is decided; `open` gives a
    started host for these, which may take seconds: the request waits, and so do those after it, until its deadline
    is over. A request whose data says that it is `over` is given up, and answered so. One thread asks the hosts, one
    question after the other. `tell` is told why tools cannot be decided with, once of each reason.
    At most `limit` sets are open, and fewer where the place of decision is full."""

    gave_up: str | None = None

    def __init__(
        self,
        name: str,
        open_host: Callable[[str, ToolOffer], Host],
        tell: Callable[[str], None] = lambda line: None,
        limit: Callable[[], int] = lambda: LIMIT,
    ) -> None:
        self.name, self._make, self._tell, self._limit = name, open_host, tell, limit
        self._reasons: set[str] = set()
        self.incarnation = 0
        self.events: list[HostEvent] = []
        self.shares: deque[float] = deque(maxlen=SHARES)
        self._open: OrderedDict[str, Host] = OrderedDict()
        self._asked: Host | None = None  # the one that is, or was last
        self._jobs = SimpleQueue[DecisionRequest | ToolOffer | None]()
        self._replies = SimpleQueue[DecisionReply | None]()
        self._cancelled = -1  # all up to this tick
        self._made = 0
        self._closed = self._away = False
        self._starting = threading.Lock()
        self._thread = threading.Thread(target=self._work, name=f"{name}-tools", daemon=True)

    @property
    def threads(self) -> Sequence[tuple[int, int]]:
        return () if self._asked is None else self._asked.threads

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        with self._starting:
            if self._thread.ident is None:
                self._thread.start()
        return {}

    def prepare(self, offer: ToolOffer) -> None:
        """Open these tools before they are asked for. Any thread may call it, also before `start`."""
        self.start()
        self._jobs.put(offer)

    def submit(self, request: DecisionRequest) -> None:
        self._jobs.put(request)

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        try:
            return self._replies.get(timeout=timeout_ns / 1e9) if timeout_ns > 0 else self._replies.get_nowait()
        except Empty:
            return None

    def wake(self) -> None:
        self._replies.put(None)

    def alive(self) -> bool:
        """Not while a lost decoder is away: then questions need not wait for their deadlines."""
        asked = self._asked
        there = asked is None or asked.gave_up is not None or asked.alive()  # of one that gave up, another is opened
        return there and not (self._away or self._closed) and self._thread.is_alive()

    def cancel(self, tick: int) -> None:
        self._cancelled = max(self._cancelled, tick)
        if (host := self._asked) is not None:
            host.wake()

    def close(self) -> None:
        self._closed = True
        self.cancel(1 << 62)
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    # -- on the thread ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while (job := self._jobs.get()) is not None and not self._closed:
                if isinstance(job, DecisionRequest):
                    self._decide(job)
                else:
                    self._prepare(job)
        finally:
            while self._open:
                self._end(self._open.popitem()[1])

    def _prepare(self, offer: ToolOffer) -> None:
        try:
            self._host(offer)
        except Exception as error:
            self._failed(error)
            self._away = False  # the next question tries it again

    def _decide(self, request: DecisionRequest) -> None:
        received_ns = time.monotonic_ns()
        if request.tick <= self._cancelled:
            return
        offer: ToolOffer = request.data.offer  # type: ignore[union-attr]
        try:
            host = None if _over(request) else self._host(offer)
            if request.tick <= self._cancelled:
                return
            if host is None or _over(request):
                self._replies.put(DecisionReply(request.tick, None, OVER, 0, received_ns=received_ns))
                return
            incarnation = host.incarnation
            host.submit(request)
            while request.tick > self._cancelled and not _over(request):
                reply = host.wait(LOOK_NS)
                if reply is not None and reply.tick == request.tick:
                    self.shares.append(reply.decide_ns / reply.together)
                    self._replies.put(reply)
                    return
                if not host.alive() or host.incarnation != incarnation:
                    self._lost(offer)
                    return
            host.cancel(request.tick)
            if _over(request):
                self._replies.put(DecisionReply(request.tick, None, OVER, 0, received_ns=received_ns))
        except Exception as error:
            what = self._failed(error)
            self._replies.put(DecisionReply(request.tick, None, what, 0, received_ns=received_ns))

    def _failed(self, error: Exception) -> str:
        """In one line."""
        what = " ".join((str(error) or type(error).__name__).split())
        if not isinstance(error, UserError):
            log.error("%s: tools", self.name, exc_info=error)
        elif what not in self._reasons and len(self._reasons) < REASONS:
            self._reasons.add(what)
            self._tell(what)
        return what

    def _host(self, offer: ToolOffer) -> Host:
        """Raises UserError where these tools cannot be decided with."""
        host = self._open.get(offer.key)
        if host is None or not host.alive():
            if host is not None:
                self._end(self._open.pop(offer.key))
            while len(self._open) >= self._limit():
                self._end(self._open.popitem(last=False)[1])
            host = self._open[offer.key] = self._made_room(offer)
        self._open.move_to_end(offer.key)
        self._asked, self._away = host, False
        return host

    def _made_room(self, offer: ToolOffer) -> Host:
        self._made += 1
        while True:
            try:
                return self._make(f"{self.name}-{self._made}", offer)
            except DecoderUnavailable as error:
                if not (error.full and self._open):
                    raise
                self._end(self._open.popitem(last=False)[1])

    def _lost(self, offer: ToolOffer) -> None:
        """The decoder went down with the question: its tick is a miss, and another is opened, unless a standby is there
        at once."""
        self._away = True
        self.events.append(HostEvent(time.monotonic_ns(), "lost", 0.0))
        self.incarnation += 1
        self.wake()
        host, give_up_ns = self._open[offer.key], time.monotonic_ns() + TAKEOVER_NS
        while not host.alive() and not self._closed and time.monotonic_ns() < give_up_ns:
            time.sleep(SLEEP_S)
        if host.alive():
            self._away = False
        else:
            self._end(self._open.pop(offer.key))
            self._jobs.put(offer)

    def _end(self, host: Host) -> None:
        if host is self._asked:
            self._asked = None
        try:
            host.close()
        except Exception:
            log.exception("%s: closing tools", self.name)


def _over(request: DecisionRequest) -> bool:
    return bool(getattr(request.data, "over", False))
