"""The cores of hosts that combine other hosts: the base class, and the standby. `backup.py` and `plans.py` have more.

`advance` takes one event and its instant, and returns actions in order. A core has no thread, lock or
clock: `layered.py` carries out the core's actions in real time, the simulation on a simulated clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, HostBase, HostEvent

# An eighth of a tick's time, and at least LEAST_NS, is reserved so that the answer that is ready can still act.
RESERVE, LEAST_NS = 8, 1_000_000
MOST_OPEN = 256  # how many ticks and questions to remember
RECENT = 16  # answers that show whether the next one will be in time
# A request that is not the first of its tick has a number beyond all ticks.
FURTHER = 1 << 40


class Status(NamedTuple):
    """The status that an inner host shows."""

    alive: bool = True
    incarnation: int = 0
    gave_up: str | None = None
    events: tuple[HostEvent, ...] = ()


# -- events; a request of the loop (`DecisionRequest`) is an event, too ------------------------------------------------


class Replied(NamedTuple):
    """The inner host `name` replied."""

    name: str
    reply: DecisionReply


class Cancelled(NamedTuple):
    """The loop does not wait for this tick any more."""

    tick: int


class Changed(NamedTuple):
    """The status of an inner host has changed."""

    status: Mapping[str, Status]


class Woke(NamedTuple):
    """The clock has reached `wake_ns`."""


Event = DecisionRequest | Replied | Cancelled | Changed | Woke


# -- actions -----------------------------------------------------------------------------------------------------------


class Ask(NamedTuple):
    """Submit a request to an inner host. If that raises, the error becomes the host's reply."""

    name: str
    request: DecisionRequest


class Withdraw(NamedTuple):
    """Cancel a request of an inner host."""

    name: str
    tick: int


class Report(NamedTuple):
    """A line for the record: an instant (CLOCK_MONOTONIC) and the fields."""

    t_ns: int
    fields: dict[str, Any]


class Notify(NamedTuple):
    """A line of text for people to read."""

    text: str


# A reply goes to the loop.
Action = Ask | Withdraw | DecisionReply | Report | Notify


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request of the loop and its `answer`. A better answer may be waited for until `due_ns` (0: for ever).

    `waited`: the loop still waits for the reply."""

    request: DecisionRequest
    sent_ns: int
    due_ns: int
    answer: DecisionReply | None = None
    waited: bool = True


def is_usual(recent: Sequence[bool]) -> bool:
    """Return whether at least half of a decider's recent answers were in time."""
    return 2 * sum(recent) >= len(recent)


def due_of(now_ns: int, within_ns: int) -> int:
    """Return until when a request with `within_ns` left may wait for a better answer; 0: for ever."""
    return now_ns + within_ns - max(within_ns // RESERVE, LEAST_NS) if within_ns else 0


def remember(entries: dict[int, Any], number: int, entry: Any) -> None:
    """Add an entry, and forget the oldest one if there are more than MOST_OPEN."""
    entries[number] = entry
    if len(entries) > MOST_OPEN:
        del entries[next(iter(entries))]


class LayeredCore:
    """Base of the cores that decide by inner hosts, given by name. `state` is what the layered host shows.

    The shell sleeps in `main` until `wake_ns`. The shell polls the other hosts often while `watching`, else before each
    event."""

    watching = False

    def __init__(self, name: str, names: Collection[str], main: str) -> None:
        self.main = main
        self.state = HostBase(name, up=True)
        self.status: Mapping[str, Status] = dict.fromkeys(names, Status())
        self.open: dict[int, Any] = {}  # questions without a reply, by number
        self._actions: list[Action] = []
        self._now_ns = 0  # the instant of the last event

    def advance(self, event: Event, now_ns: int) -> list[Action]:
        """Handle an event that happened at `now_ns`; return the actions to carry out."""
        self._actions, self._now_ns = [], now_ns
        match event:
            case DecisionRequest():
                self.requested(event, now_ns)
            case Replied():
                self.replied(event.name, event.reply, now_ns)
            case Cancelled():
                self.cancelled(event.tick)
            case Changed():
                before, self.status = self.status, event.status
                self.changed(before, now_ns)
        for number, question in tuple(self.open.items()):
            reply = self.chosen(question, now_ns)
            if reply is not None:
                question.waited = False
                del self.open[number]
                self._actions.append(reply)
        return self._actions

    @property
    def wake_ns(self) -> int | None:
        """Return when to use an answer that is ready instead of waiting for a better one; None if none is ready."""
        dues = [q.due_ns for q in self.open.values() if q.waited and q.due_ns > self._now_ns and self.has_other(q)]
        return min(dues, default=None)

    def do(self, *actions: Action) -> None:
        """Add actions to the actions of the current event."""
        self._actions += actions

    # -- for subclasses ------------------------------------------------------------------------------------------------

    def info(self, infos: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """Return the lines of the report, made from the lines of the inner hosts."""
        return infos[self.main]

    def requested(self, request: DecisionRequest, now_ns: int) -> None:
        """Ask inner hosts for a decision."""
        raise NotImplementedError

    def replied(self, name: str, reply: DecisionReply, now_ns: int) -> None:
        """Record the answer of an inner host."""
        raise NotImplementedError

    def cancelled(self, tick: int) -> None:
        raise NotImplementedError

    def changed(self, before: Mapping[str, Status], now_ns: int) -> None:
        raise NotImplementedError

    def has_other(self, question: Any) -> bool:
        """Return whether another answer to the question is ready."""
        return True

    def chosen(self, question: Any, now_ns: int) -> DecisionReply | None:
        """Return the reply to the question, or None while it is not known yet."""
        raise NotImplementedError


# -- a standby ---------------------------------------------------------------------------------------------------------

PAIR = ("a", "b")
WARM_REQUESTS, WARM_EVERY_NS = 8, 5_000_000_000
TOOK_OVER = "the standby decides"


class StandbyCore(LayeredCore):
    """Two warm decoders of one session, PAIR; `main` decides. If `main` is lost, the other decoder takes over.

    The session stays with the new `main`, and the lost decoder comes back as the standby. To stay warm, the standby
    also decides the first WARM_REQUESTS requests, and then one request every WARM_EVERY_NS."""

    def __init__(self) -> None:
        super().__init__("ray", PAIR, PAIR[0])
        self._incarnation = 0  # the incarnation of the main decoder
        self._mirrored = self._mirrored_ns = 0

    @property
    def standby(self) -> str:
        return PAIR[1 - PAIR.index(self.main)]

    def info(self, infos: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        return {**infos[self.main], "standby": infos[self.standby].get("pid")}

    def requested(self, request: DecisionRequest, now_ns: int) -> None:
        self.do(Ask(self.main, request))
        is_warm = self._mirrored >= WARM_REQUESTS and now_ns - self._mirrored_ns < WARM_EVERY_NS
        if self.status[self.standby].alive and not is_warm:
            self._mirrored, self._mirrored_ns = self._mirrored + 1, now_ns
            self.do(Ask(self.standby, replace(request, tick=FURTHER + request.tick)))

    def replied(self, name: str, reply: DecisionReply, now_ns: int) -> None:
        if name == self.main and reply.tick < FURTHER // 2:
            self.do(reply)

    def cancelled(self, tick: int) -> None:
        self.do(Withdraw(self.main, tick))

    def changed(self, before: Mapping[str, Status], now_ns: int) -> None:
        """Make the standby the main decoder if that is lost; note the loss, and when a decoder is back."""
        state, main, standby = self.state, self.status[self.main], self.status[self.standby]
        if main.alive and main.incarnation == self._incarnation and state.lost_ns is None:
            return
        if state.lost_ns is None:
            state.lost(next((event.t_ns for event in reversed(main.events) if event.event == "lost"), now_ns))
        if not main.alive and standby.alive:
            self.main = self.standby
            main, standby = standby, main
            self.do(Notify(TOOK_OVER))
        if main.alive:
            self._incarnation = main.incarnation
            state.ready(now_ns)
        else:
            state.gave_up = standby.gave_up and main.gave_up
