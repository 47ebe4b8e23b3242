"""The shell of hosts that are made of other hosts: it does what a core says, in real time, and decides nothing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from rtcontrol.hosts import host_events as ev
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, Host, HostEvent

# A host that is not slept in is polled so often while its answer would be given at once.
POLL_NS = 500_000


class LayeredHost:
    """Runs `core` over `inner` hosts by name. They are closed in the reverse of their order.

    `listener` receives reports (of the record, and for people); without one they wait in a `HostMailbox`.
    """

    name = "layered"

    def __init__(self, core: ev.HostCore, inner: Mapping[str, Host], listener: ev.HostListener | None = None) -> None:
        self.core, self.inner = core, inner
        self.listener: ev.HostListener = ev.HostMailbox() if listener is None else listener
        self._replies: deque[DecisionReply] = deque()
        self._shown: list[Any] = []  # of the inner hosts, when it was last looked at
        self._woken = False

    @property
    def incarnation(self) -> int:
        return self.core.incarnation

    @property
    def events(self) -> list[HostEvent]:
        return self.core.events

    @property
    def gave_up(self) -> str | None:
        return self.core.gave_up

    @property
    def shares(self) -> deque[float]:
        return self.inner[self.core.main].shares

    @property
    def threads(self) -> Sequence[tuple[int, int]]:
        return self.inner[self.core.main].threads

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        return self.inner[self.core.main].start(stopped)

    def submit(self, request: DecisionRequest) -> None:
        self._collect()
        self._dispatch(ev.Requested(request))

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        now = time.monotonic_ns()
        until = now + timeout_ns
        while True:
            self._collect()
            due = self.core.wake_ns
            if due is not None and now >= due:
                self._dispatch(ev.Woke())
                due = self.core.wake_ns
            if self._replies:
                return self._replies.popleft()
            if self._woken:
                self._woken = False
                return None
            ends = until if due is None else min(until, due)
            left = min(ends - now, POLL_NS) if self.core.watching else ends - now
            main = self.core.main
            reply = self.inner[main].wait(left)
            now = time.monotonic_ns()
            if reply is not None:
                self._dispatch(ev.Replied(main, reply))
            elif now >= until:
                self._woken = False
                return None

    def wake(self) -> None:
        self._woken = True  # a wait of an inner host that ends early may be the end of a poll
        for name in self.core.sleepers:
            self.inner[name].wake()

    def alive(self) -> bool:
        self._look()
        return self.core.alive

    def cancel(self, tick: int) -> None:
        self._dispatch(ev.Cancelled(tick))

    def close(self) -> None:
        with ExitStack() as closing:
            for host in self.inner.values():
                closing.callback(host.close)

    def _collect(self) -> None:
        """Let the core know what the inner hosts are, and have answered."""
        self._look()
        for name in self.core.polled:
            while (reply := self.inner[name].wait(0)) is not None:
                self._dispatch(ev.Replied(name, reply))

    def _look(self) -> None:
        shown = [(h.alive(), h.incarnation, h.gave_up, len(h.events)) for h in self.inner.values()]
        if shown != self._shown:
            self._shown = shown
            views = {name: ev.HostView(h.alive(), h.incarnation, h.gave_up, h.events) for name, h in self.inner.items()}
            self._dispatch(ev.Changed(views))

    def _dispatch(self, event: ev.Event) -> None:
        """Let the core take the event, do what it says, and let it take the answers."""
        answers = [self._do(action) for action in self.core.advance(event, time.monotonic_ns())]
        for answer in answers:
            if answer is not None:
                self._dispatch(answer)

    def _do(self, action: Any) -> ev.Replied | None:
        """Do it; a request that cannot be submitted is answered by its error."""
        kind = type(action)
        if kind is ev.Reply:
            self._replies.append(action.reply)
        elif kind is ev.Submit:
            try:
                self.inner[action.host].submit(action.request)
            except Exception as error:
                reply = DecisionReply(action.request.tick, None, f"{type(error).__name__}: {error}", 0)
                return ev.Replied(action.host, reply)
        elif kind is ev.Cancel:
            self.inner[action.host].cancel(action.tick)
        else:
            self.listener.report(action)
        return None
