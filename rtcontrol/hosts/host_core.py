"""What the cores of hosts that are made of other hosts (backup, plans, standby) share: views, actions, reports.

A core takes an event by a method, with its instant, and returns actions; `layered.LayeredHost` does them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, Host, HostState


@dataclass(slots=True, eq=False)
class HostView(HostState):
    """The state of an inner host, as the `Host` protocol shows it."""

    alive: bool = True


def view_of(host: Host) -> HostView:
    """Return the host's state, as it is now."""
    return HostView(host.alive(), incarnation=host.incarnation, gave_up=host.gave_up, events=host.events)


@dataclass(slots=True)
class Submit:
    """Ask the inner host of this name."""

    host: str
    request: DecisionRequest


@dataclass(slots=True)
class Cancel:
    """Tell the inner host of this name that no one waits for this number."""

    host: str
    tick: int


@dataclass(slots=True)
class Report:
    """A line for the record: its instant (CLOCK_MONOTONIC) and its fields."""

    t_ns: int
    fields: dict[str, Any]


@dataclass(slots=True)
class Notify:
    """A line for people."""

    text: str


# A reply is one to the loop.
Action = Submit | Cancel | DecisionReply | Report | Notify


def reports_of(host: Host) -> deque[Report | Notify]:
    """Return what a host reports besides its replies, for the loop to take; of most hosts nothing."""
    reports: deque[Report | Notify] = getattr(host, "reports", deque())
    return reports


class HostCore(HostState):
    """Decides for a host that is made of `hosts`; its state is that of the whole.

    The shell sleeps in `main`, and polls all hosts: often while `watching`, else before each event. After each event,
    and at `wake_ns` (None: nothing becomes due by itself), it calls `decided`. All methods return what to do.
    """

    name = "layered"

    def __init__(self, hosts: Sequence[str], main: str) -> None:
        super().__init__()
        self.main = main
        self.views: Mapping[str, HostView] = {name: HostView() for name in hosts}

    @property
    def alive(self) -> bool:
        return self.views[self.main].alive

    @property
    def watching(self) -> bool:
        return False

    @property
    def wake_ns(self) -> int | None:
        return None

    def info(self, infos: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """Return what the report says, by what the inner hosts say of themselves."""
        return infos[self.main]

    def requested(self, request: DecisionRequest, now_ns: int) -> list[Action]:
        """The loop asks for a decision."""
        raise NotImplementedError

    def replied(self, host: str, reply: DecisionReply, now_ns: int) -> list[Action]:
        """The inner host of this name answered."""
        raise NotImplementedError

    def cancelled(self, tick: int) -> list[Action]:
        """The loop does not wait for this tick any more."""
        return [Cancel(self.main, tick)]

    def changed(self, views: Mapping[str, HostView], now_ns: int) -> list[Action]:
        """At least one inner host is not as it was before."""
        self.views, main = views, views[self.main]
        self.incarnation, self.events, self.gave_up = main.incarnation, main.events, main.gave_up
        return []

    def decided(self, now_ns: int) -> list[Action]:
        """Something happened, or is due."""
        return []


# So many of the newest answers tell whether the next one will be in time: at least half of them were.
RECENT = 16
# What is left of a tick's time when a better answer is waited for no longer: the one that is there has to act.
RESERVE, LEAST_NS = 8, 1_000_000
MOST = 256  # ticks and questions that are remembered


class Punctuality:
    """Whether a decider is usually in time."""

    def __init__(self) -> None:
        self._recent: deque[bool] = deque(maxlen=RECENT)

    def note(self, in_time: bool) -> None:
        self._recent.append(in_time)

    @property
    def usual(self) -> bool:
        return 2 * sum(self._recent) >= len(self._recent)


@dataclass(slots=True, eq=False)
class Question:
    """A request of the loop, and the decider's `answer` to it. Until `due_ns` that may be waited for (0: for ever).
    `waited`: the loop waits for its one reply."""

    request: DecisionRequest
    asked_ns: int
    due_ns: int
    answer: DecisionReply | None = None
    waited: bool = True


Q = TypeVar("Q", bound=Question)


def due_of(now_ns: int, within_ns: int) -> int:
    """Return until when a question of this time may wait for a better answer; 0: for ever."""
    return now_ns + within_ns - max(within_ns // RESERVE, LEAST_NS) if within_ns else 0


def remember(where: dict[int, Any], number: int, what: Any) -> None:
    """Add it, and forget the oldest beyond MOST."""
    where[number] = what
    if len(where) > MOST:
        del where[next(iter(where))]


class WaitingCore(HostCore, Generic[Q]):
    """A core that may wait for a better answer to a question than the one that it has."""

    def __init__(self, hosts: Sequence[str], main: str) -> None:
        super().__init__(hosts, main)
        self.open: dict[int, Q] = {}  # not replied to yet, by number
        self._now_ns = 0

    @property
    def wake_ns(self) -> int | None:
        """When an answer that is there acts in the place of the better one."""
        dues = [q.due_ns for q in self.open.values() if q.waited and q.due_ns > self._now_ns and self._has_other(q)]
        return min(dues, default=None)

    def decided(self, now_ns: int) -> list[Action]:
        """Reply to every question whose answer is known."""
        self._now_ns = now_ns
        actions: list[Action] = []
        for number, question in tuple(self.open.items()):
            reply = self._chosen(question, now_ns)
            if reply is not None:
                question.waited = False
                del self.open[number]
                actions.append(reply)
        return actions

    def _has_other(self, question: Q) -> bool:
        """Return whether there may be another answer."""
        return True

    def _chosen(self, question: Q, now_ns: int) -> DecisionReply | None:
        """Return the question's reply, once it is known."""
        raise NotImplementedError
