"""A core and its inner hosts on a simulated clock: what `LayeredHost` does in real time, by one queue of events."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from rtcontrol.hosts.host_core import Action, Cancel, HostCore, HostView, Notify, Report, Submit
from rtcontrol.hosts.protocol import DecisionLost, DecisionReply, DecisionRequest, HostEvent
from rtcontrol.models.call import Call, Decision

MS = 1_000_000


def call_of(name: str, sure: float = 1.0) -> Callable[[DecisionRequest], Decision]:
    """Return a decider whose calls name it, and what it saw."""
    return lambda asked: Decision(Call(name, {"to": asked.observation}), {"function": 1.0, "arg1": sure})


@dataclass
class SimulatedHost:
    """An inner host: `after_ms` says how long an answer takes (None: it never comes), `decide` what it is."""

    name: str
    decide: Callable[[DecisionRequest], Decision]
    after_ms: Callable[[DecisionRequest], float | None] = lambda asked: 1.0
    refuses: bool = False  # its `submit` raises
    asked: list[DecisionRequest] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    under_way: set[int] = field(default_factory=set)
    most: int = 0
    view: HostView = field(default_factory=HostView)

    def answer(self, asked: DecisionRequest) -> DecisionReply:
        try:
            return DecisionReply(asked.tick, self.decide(asked), None, 0)
        except DecisionLost as lost:
            return DecisionReply(asked.tick, None, str(lost), 0, loss=lost.loss)
        except Exception as error:
            return DecisionReply(asked.tick, None, f"{type(error).__name__}: {error}", 0)


class Simulation:
    """Instants are in ms from the start; the clock moves by `run` alone."""

    START_NS = 1_000_000 * MS

    def __init__(self, core: HostCore, *hosts: SimulatedHost) -> None:
        self.core, self.hosts = core, {host.name: host for host in hosts}
        self.now_ns = self.START_NS
        self.replies: list[tuple[float, DecisionReply]] = []  # with when each was given
        self.reports: list[dict[str, Any]] = []
        self.notices: list[str] = []
        self.on_reply: Callable[[DecisionReply], None] = lambda reply: None
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    @property
    def now_ms(self) -> float:
        return (self.now_ns - self.START_NS) / MS

    def at(self, ms: float, act: Callable[[], None]) -> None:
        """Do it at this instant, or as soon as the clock runs where that is past."""
        heapq.heappush(self._queue, (self.START_NS + round(ms * MS), next(self._numbers), act))

    def run(self, ms: float) -> None:
        """Let so much time pass."""
        end_ns = self.now_ns + round(ms * MS)
        while True:
            wake_ns = self.core.wake_ns
            first_ns = self._queue[0][0] if self._queue else end_ns + 1
            if wake_ns is not None and wake_ns <= min(first_ns, end_ns):
                self.now_ns = max(self.now_ns, wake_ns)
                self.take([])
                assert self.core.wake_ns is None or self.core.wake_ns > self.now_ns, "it would never sleep"
            elif first_ns <= end_ns:
                self.now_ns = max(self.now_ns, first_ns)
                heapq.heappop(self._queue)[2]()
            else:
                self.now_ns = end_ns
                return

    def ask(self, tick: int, within_ms: float = 50.0, age_ms: float = 0.0, **more: Any) -> DecisionRequest:
        """Ask as the loop does."""
        fields = {"epoch": 1, "instruction": "go", "within_ns": round(within_ms * MS), "seq": tick, **more}
        observation = fields.pop("observation", f"o{tick}")
        request = DecisionRequest(tick, observation=observation, captured_ns=self.now_ns - round(age_ms * MS), **fields)
        self.take(self.core.requested(request, self.now_ns))
        return request

    def cancel(self, tick: int) -> None:
        self.take(self.core.cancelled(tick))

    def reply(self, name: str, reply: DecisionReply) -> None:
        self.take(self.core.replied(name, reply, self.now_ns))

    def lose(self, host: SimulatedHost, gave_up: str | None = None) -> None:
        """The host's decider is gone, with all that it was to answer."""
        host.view = replace(
            host.view, alive=False, gave_up=gave_up, events=[*host.view.events, HostEvent(self.now_ns, "lost", 0.0)]
        )
        host.under_way.clear()
        self.changed()

    def restore(self, host: SimulatedHost) -> None:
        view, back = host.view, HostEvent(self.now_ns, "restarted", 1.0)
        host.view = HostView(incarnation=view.incarnation + 1, events=[*view.events, back])
        self.changed()

    def changed(self) -> None:
        self.take(self.core.changed({name: host.view for name, host in self.hosts.items()}, self.now_ns))

    def take(self, actions: list[Action]) -> None:
        for action in actions + self.core.decided(self.now_ns):
            if isinstance(action, Submit):
                self._submit(self.hosts[action.host], action.request)
            elif isinstance(action, Cancel):
                self.hosts[action.host].cancelled.append(action.tick)
                self.hosts[action.host].under_way.discard(action.tick)
            elif isinstance(action, DecisionReply):
                self.replies.append((self.now_ms, action))
                self.on_reply(action)
            elif isinstance(action, Report):
                self.reports.append({**action.fields, "t_ns": action.t_ns})
            else:
                assert isinstance(action, Notify)
                self.notices.append(action.text)

    def _submit(self, host: SimulatedHost, asked: DecisionRequest) -> None:
        if host.refuses:
            self.reply(host.name, DecisionReply(asked.tick, None, "ZMQError: full", 0))
        if host.refuses or not host.view.alive:
            return
        host.asked.append(asked)
        host.under_way.add(asked.tick)
        host.most = max(host.most, len(host.under_way))
        took, life = host.after_ms(asked), host.view.incarnation
        if took is not None:
            self.at(self.now_ms + took, lambda: self._answer(host, asked, life))

    def _answer(self, host: SimulatedHost, asked: DecisionRequest, life: int) -> None:
        if host.view.alive and host.view.incarnation == life:
            host.under_way.discard(asked.tick)
            self.reply(host.name, host.answer(asked))
