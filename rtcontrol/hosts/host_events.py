"""Events and actions of the hosts that are made of other hosts (backup, plans, standby). Data only, but the mailbox.

A core takes one event with its instant, and returns actions; `layered.LayeredHost` does them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, Host, HostEvent


@dataclass(frozen=True, slots=True)
class HostView:
    """The state of an inner host, as the `Host` protocol shows it."""

    alive: bool = True
    incarnation: int = 0
    gave_up: str | None = None
    events: list[HostEvent] = field(default_factory=list)


@dataclass(slots=True)
class Requested:
    """The loop asks for a decision."""

    request: DecisionRequest


@dataclass(slots=True)
class Replied:
    """The inner host of this name answered."""

    host: str
    reply: DecisionReply


@dataclass(slots=True)
class Cancelled:
    """The loop does not wait for this tick any more."""

    tick: int


@dataclass(slots=True)
class Changed:
    """At least one inner host is not as it was before."""

    views: dict[str, HostView]


@dataclass(slots=True)
class Woke:
    """The core's `wake_ns` has come."""


Event = Requested | Replied | Cancelled | Changed | Woke


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
class Remember:
    """The inner host of this name is not asked; it warms up with this request after a restart."""

    host: str
    request: DecisionRequest


@dataclass(slots=True)
class Reply:
    """Answer the loop."""

    reply: DecisionReply


@dataclass(slots=True)
class Report:
    """A line for the record: its instant (CLOCK_MONOTONIC) and its fields."""

    t_ns: int
    fields: dict[str, Any]


@dataclass(slots=True)
class Notify:
    """A line for people."""

    text: str


Action = Submit | Cancel | Remember | Reply | Report | Notify


class HostListener(Protocol):
    """Receives what a host reports besides its replies; on the loop's thread, must not block."""

    def report(self, report: Report | Notify) -> None: ...


class HostMailbox:
    """Keeps reports until the loop that runs the host takes them."""

    MOST = 4096

    def __init__(self) -> None:
        self.waiting: deque[Report | Notify] = deque(maxlen=self.MOST)

    def report(self, report: Report | Notify) -> None:
        self.waiting.append(report)


def mailbox_of(host: Host) -> deque[Report | Notify]:
    """Return what a host reports to the loop that runs it; of one that reports nothing, or elsewhere, always empty."""
    listener = getattr(host, "listener", None)
    return listener.waiting if isinstance(listener, HostMailbox) else deque()


class HostCore(Protocol):
    """Decides for a host that is made of others. Names are those of the inner hosts.

    The shell sleeps in `main`, no longer than until `wake_ns` (None: nothing becomes due by itself), and polls those of
    `polled`: often while `watching`, else before each event. `sleepers`: all that may ever be `main`.
    """

    @property
    def sleepers(self) -> Sequence[str]: ...

    @property
    def events(self) -> list[HostEvent]: ...

    @property
    def incarnation(self) -> int: ...

    @property
    def gave_up(self) -> str | None: ...

    @property
    def main(self) -> str: ...

    @property
    def polled(self) -> Sequence[str]: ...

    @property
    def watching(self) -> bool: ...

    @property
    def alive(self) -> bool: ...

    @property
    def wake_ns(self) -> int | None: ...

    def advance(self, event: Event, now_ns: int) -> list[Action]: ...
