"""State machines ("cores") of hosts that combine other hosts: the base class and StandbyCore. BackupCore is in
`backup.py`, PlanCore in `plans.py`.

`advance` takes an event and its instant, and returns the actions to execute in order. A core uses no thread, lock or
clock. LayeredHost (`layered.py`) executes the actions in real time, and the simulation in simulated time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, HostBase, HostEvent

# A reply is due before the deadline: 1/RESERVE of the time, but at least LEAST_NS, is reserved to execute the call.
RESERVE, LEAST_NS = 8, 1_000_000
MOST_OPEN = 256  # maximum number of stored open requests; the oldest are dropped
RECENT = 16  # the last 16 answers decide whether the next answer is expected in time
# This offset, larger than any tick number, is added to the tick number in each further request of the same tick.
FURTHER = 1 << 40


class Status(NamedTuple):
    """The status of an inner host."""

    alive: bool = True
    incarnation: int = 0
    gave_up: str | None = None
    events: tuple[HostEvent, ...] = ()


# -- events; the loop's requests (`DecisionRequest`) are also events ---------------------------------------------------


class ReplyReceived(NamedTuple):
    """The event that the inner host `name` returned a reply."""

    name: str
    reply: DecisionReply


class RequestCancelled(NamedTuple):
    """The event that the loop does not wait for the reply to this tick any more."""

    tick: int


class StatusChanged(NamedTuple):
    """The event that the status of an inner host has changed. `status`: the new status of all inner hosts, by name."""

    status: Mapping[str, Status]


class TimerFired(NamedTuple):
    """The event that the clock has reached `LayeredCore.wake_ns`."""


Event = DecisionRequest | ReplyReceived | RequestCancelled | StatusChanged | TimerFired


# -- actions -----------------------------------------------------------------------------------------------------------


class SubmitRequest(NamedTuple):
    """The action to submit a request to an inner host. If that raises an error, the error becomes the host's reply."""

    name: str
    request: DecisionRequest


class CancelRequest(NamedTuple):
    """The action to cancel the request of a tick at an inner host."""

    name: str
    tick: int


class RecordFields(NamedTuple):
    """The action to write a line with these fields to the record. `t_ns`: the line's time by CLOCK_MONOTONIC."""

    t_ns: int
    fields: dict[str, Any]


class Notify(NamedTuple):
    """The action to show a line of text to the user."""

    text: str


# The action DecisionReply returns this reply to the loop.
Action = SubmitRequest | CancelRequest | DecisionReply | RecordFields | Notify


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request of the loop, and the inner host's `answer`. `due_ns`: when the loop must get a reply (0: no limit).
    `awaited`: whether the loop still waits for the reply."""

    request: DecisionRequest
    sent_ns: int
    due_ns: int
    answer: DecisionReply | None = None
    awaited: bool = True


def usually_in_time(recent: Sequence[bool]) -> bool:
    """Return whether at least half of a decider's recent answers were in time."""
    return 2 * sum(recent) >= len(recent)


def reply_due_ns(now_ns: int, within_ns: int) -> int:
    """Return the latest time of a reply to a request whose deadline is in `within_ns`, or 0 without a deadline."""
    return now_ns + within_ns - max(within_ns // RESERVE, LEAST_NS) if within_ns else 0


def add_bounded(entries: dict[int, Any], number: int, entry: Any) -> None:
    """Add an entry. If there are then more than MOST_OPEN entries, remove the oldest entry."""
    entries[number] = entry
    if len(entries) > MOST_OPEN:
        del entries[next(iter(entries))]


class LayeredCore:
    """Base class of cores that choose between the replies of inner hosts (`names`). `state`: the status of the
    combined host, as its users see it.

    LayeredHost sleeps in the `wait` of the inner host `main` until `wake_ns`. If `polls_often`, LayeredHost also polls
    the other inner hosts every POLL_NS."""

    polls_often = False

    def __init__(self, name: str, names: Collection[str], main: str) -> None:
        self.main = main
        self.state = HostBase(name, up=True)
        self.status: Mapping[str, Status] = dict.fromkeys(names, Status())
        self.open: dict[int, Any] = {}  # by number: requests without a reply
        self._actions: list[Action] = []
        self._now_ns = 0  # time of the last event

    def advance(self, event: Event, now_ns: int) -> list[Action]:
        """Handle an event that happened at `now_ns`. Return the actions to execute."""
        self._actions, self._now_ns = [], now_ns
        match event:
            case DecisionRequest():
                self.on_request(event, now_ns)
            case ReplyReceived():
                self.on_reply(event.name, event.reply, now_ns)
            case RequestCancelled():
                self.on_cancel(event.tick)
            case StatusChanged():
                before, self.status = self.status, event.status
                self.on_status(before, now_ns)
        for number, pending in tuple(self.open.items()):
            reply = self.choose_reply(pending, now_ns)
            if reply is not None:
                pending.awaited = False
                del self.open[number]
                self._actions.append(reply)
        return self._actions

    @property
    def wake_ns(self) -> int | None:
        """Return when to stop waiting for a better answer and use a ready answer, or None if no answer is ready."""
        dues = [
            q.due_ns for q in self.open.values() if q.awaited and q.due_ns > self._now_ns and self.has_other_answer(q)
        ]
        return min(dues, default=None)

    def add_actions(self, *actions: Action) -> None:
        """Add actions to the result of `advance`."""
        self._actions += actions

    # -- for subclasses ------------------------------------------------------------------------------------------------

    def info(self, infos: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """Return the combined host's fields for the report. `infos`: the fields of the inner hosts, by name."""
        return infos[self.main]

    def on_request(self, request: DecisionRequest, now_ns: int) -> None:
        """Handle a request of the loop: submit it to inner hosts."""
        raise NotImplementedError

    def on_reply(self, name: str, reply: DecisionReply, now_ns: int) -> None:
        """Handle a reply of an inner host."""
        raise NotImplementedError

    def on_cancel(self, tick: int) -> None:
        raise NotImplementedError

    def on_status(self, before: Mapping[str, Status], now_ns: int) -> None:
        raise NotImplementedError

    def has_other_answer(self, pending: Any) -> bool:
        """Return whether another answer to this request could be used instead of waiting."""
        return True

    def choose_reply(self, pending: Any, now_ns: int) -> DecisionReply | None:
        """Return the reply to this request, or None to wait."""
        raise NotImplementedError


# -- a standby ---------------------------------------------------------------------------------------------------------

PAIR = ("a", "b")
WARM_REQUESTS, WARM_EVERY_NS = 8, 5_000_000_000
TOOK_OVER = "the standby decides"


class StandbyCore(LayeredCore):
    """The core of StandbyHost: two decoders, PAIR, of which `main` decides. If `main` is lost, the other becomes
    `main`.

    The lost decoder is restarted, and becomes the standby. To stay warm, the standby gets copies of the first
    WARM_REQUESTS requests, and then of one request every WARM_EVERY_NS. The standby's replies are dropped."""

    def __init__(self) -> None:
        super().__init__("ray", PAIR, PAIR[0])
        self._incarnation = 0  # incarnation of the main decoder
        self._mirrored = self._mirrored_ns = 0  # number of requests to the standby, and time of the last

    @property
    def standby(self) -> str:
        return PAIR[1 - PAIR.index(self.main)]

    def info(self, infos: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        return {**infos[self.main], "standby": infos[self.standby].get("pid")}

    def on_request(self, request: DecisionRequest, now_ns: int) -> None:
        self.add_actions(SubmitRequest(self.main, request))
        is_warm = self._mirrored >= WARM_REQUESTS and now_ns - self._mirrored_ns < WARM_EVERY_NS
        if self.status[self.standby].alive and not is_warm:
            self._mirrored, self._mirrored_ns = self._mirrored + 1, now_ns
            self.add_actions(SubmitRequest(self.standby, replace(request, tick=FURTHER + request.tick)))

    def on_reply(self, name: str, reply: DecisionReply, now_ns: int) -> None:
        if name == self.main and reply.tick < FURTHER // 2:
            self.add_actions(reply)

    def on_cancel(self, tick: int) -> None:
        self.add_actions(CancelRequest(self.main, tick))

    def on_status(self, before: Mapping[str, Status], now_ns: int) -> None:
        """Switch to the standby if the main decoder is lost. Record the loss, and when a decoder is ready again."""
        state, main, standby = self.state, self.status[self.main], self.status[self.standby]
        if main.alive and main.incarnation == self._incarnation and state.lost_ns is None:
            return
        if state.lost_ns is None:
            state.mark_lost(next((event.t_ns for event in reversed(main.events) if event.event == "lost"), now_ns))
        if not main.alive and standby.alive:
            self.main = self.standby
            main, standby = standby, main
            self.add_actions(Notify(TOOK_OVER))
        if main.alive:
            self._incarnation = main.incarnation
            state.mark_ready(now_ns)
        else:
            state.gave_up = standby.gave_up and main.gave_up
