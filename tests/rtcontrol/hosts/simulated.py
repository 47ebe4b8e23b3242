"""Run the core of a layered host on a simulated clock, with one event queue in place of the real-time shell."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

from rtcontrol.hosts import layered_core as ev
from rtcontrol.hosts.protocol import DecisionLost, DecisionReply, DecisionRequest, HostBase
from rtcontrol.models.call import Call, Decision

MS = 1_000_000


def call_of(name: str, confidence: float = 1.0) -> Callable[[DecisionRequest], Decision]:
    """Return a decider whose calls contain its name and the observation."""
    return lambda request: Decision(Call(name, {"to": request.observation}), {"function": 1.0, "arg1": confidence})


class SimulatedHost(HostBase):
    """A simulated inner host: an answer takes `after_ms` (None: it never comes), and `decide` returns the decision."""

    def __init__(self, name: str, decide: Callable[[DecisionRequest], Decision]) -> None:
        super().__init__(name)
        self.decide, self.up = decide, True
        self.after_ms: Callable[[DecisionRequest], float | None] = lambda request: 1.0
        self.refuses = False  # no request can be sent
        self.requests: list[DecisionRequest] = []
        self.cancelled: list[int] = []
        self.under_way: set[int] = set()
        self.most = 0
        self.sent: Callable[[SimulatedHost, DecisionRequest], None] = lambda host, request: None

    def answer(self, request: DecisionRequest) -> DecisionReply:
        try:
            return DecisionReply(request.tick, self.decide(request), None, 0)
        except DecisionLost as lost:
            return DecisionReply(request.tick, None, str(lost), 0, loss=lost.loss)
        except Exception as error:
            return DecisionReply(request.tick, None, f"{type(error).__name__}: {error}", 0)

    def submit(self, request: DecisionRequest) -> None:
        if self.up:
            self.requests.append(request)
            self.under_way.add(request.tick)
            self.most = max(self.most, len(self.under_way))
            self.sent(self, request)

    def cancel(self, tick: int) -> None:
        self.cancelled.append(tick)
        self.under_way.discard(tick)


class Simulation:
    """A simulated clock with a core and inner hosts. Instants are in ms from the start; only `run` moves the clock."""

    START_NS = 1_000_000 * MS

    def __init__(self, core: Any, inner: dict[str, Any]) -> None:
        self.core, self.inner = core, inner
        for inner in self.inner.values():
            inner.sent = self._sent
        self.now_ns = self.START_NS
        self.replies: list[tuple[float, DecisionReply]] = []  # with the instant of each
        self.reports: list[dict[str, Any]] = []
        self.notices: list[str] = []
        self.on_reply: Callable[[DecisionReply], None] = lambda reply: None
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    @property
    def now_ms(self) -> float:
        return (self.now_ns - self.START_NS) / MS

    def run(self, ms: float) -> None:
        """Let `ms` of simulated time pass."""
        end_ns = self.now_ns + round(ms * MS)
        while True:
            wake_ns = self.core.wake_ns
            first_ns = self._queue[0][0] if self._queue else end_ns + 1
            if wake_ns is not None and wake_ns <= min(first_ns, end_ns):
                self.now_ns = max(self.now_ns, wake_ns)
                self._advance(ev.TimerFired())
                assert self.core.wake_ns is None or self.core.wake_ns > self.now_ns, "it would never sleep"
            elif first_ns <= end_ns:
                self.now_ns = max(self.now_ns, first_ns)
                heapq.heappop(self._queue)[2]()
            else:
                self.now_ns = end_ns
                return

    def ask(self, tick: int, within_ms: float = 50.0, age_ms: float = 0.0, **more: Any) -> None:
        """Submit a request for a tick, as the loop does."""
        fields = {"epoch": 1, "instruction": "go", "within_ns": round(within_ms * MS), "seq": tick, **more}
        observation = fields.pop("observation", f"o{tick}")
        captured_ns = self.now_ns - round(age_ms * MS)
        request = DecisionRequest(tick, observation=observation, captured_ns=captured_ns, **fields)
        self._advance(request)

    def cancel(self, tick: int) -> None:
        self._advance(ev.RequestCancelled(tick))

    def reply(self, name: str, reply: DecisionReply) -> None:
        self._advance(ev.ReplyReceived(name, reply))

    def lose(self, inner: SimulatedHost, gave_up: str | None = None) -> None:
        """Lose the host's decider, with all requests that it has not answered."""
        inner.mark_lost(self.now_ns)
        inner.gave_up = gave_up
        inner.under_way.clear()
        self._look()

    def restore(self, inner: SimulatedHost) -> None:
        inner.mark_ready(self.now_ns)
        self._look()

    def _look(self) -> None:
        hosts = self.inner.items()
        self._advance(
            ev.StatusChanged({n: ev.Status(h.up, h.incarnation, h.gave_up, tuple(h.events)) for n, h in hosts})
        )

    def _advance(self, event: ev.Event) -> None:
        for action in self.core.advance(event, self.now_ns):
            match action:
                case ev.SubmitRequest(name, request) if self.inner[name].refuses:
                    self.reply(name, DecisionReply(request.tick, None, "ConnectionError: full", 0))
                case ev.SubmitRequest(name, request):
                    self.inner[name].submit(request)
                case ev.CancelRequest(name, tick):
                    self.inner[name].cancel(tick)
                case DecisionReply():
                    self.replies.append((self.now_ms, action))
                    self.on_reply(action)
                case ev.RecordFields():
                    self.reports.append({**action.fields, "t_ns": action.t_ns})
                case ev.Notify():
                    self.notices.append(action.text)

    def _sent(self, inner: SimulatedHost, request: DecisionRequest) -> None:
        ms, life = inner.after_ms(request), inner.incarnation

        def answer() -> None:
            if inner.up and inner.incarnation == life:
                inner.under_way.discard(request.tick)
                self.reply(inner.name, inner.answer(request))

        if ms is not None:
            heapq.heappush(self._queue, (self.now_ns + round(ms * MS), next(self._numbers), answer))
