"""A tick, and the names of what makes one miss."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rtcontrol.hosts.base import LOSSES, DecisionRequest


class Cause(StrEnum):
    """Why a tick missed, in order of precedence: the first that applies is the cause."""

    PAUSE = "pause"  # the loop's process stood still
    HOST = "host"  # decoder dead, restarting, given up
    WAKE = "wake"  # the loop's thread was woken late
    NO_OBSERVATION = "no_observation"
    STALE_OBSERVATION = "stale_observation"
    DECIDE = "decide"  # the decision took too long, or failed
    INVALID = "invalid"  # a call that the tools do not allow
    EXECUTE = "execute"  # the executor raised, or ended after the deadline
    UNKNOWN = "unknown"  # nothing explains at least half of the lateness


# What each is made of, as docs/report.md publishes it.
SUBCAUSES: dict[Cause, tuple[str, ...]] = {
    Cause.PAUSE: ("gc", "stall", "disk"),
    Cause.HOST: ("lost", "restarting", "gave_up"),
    Cause.WAKE: ("scheduler", "gc", "stall", "disk", "executor"),
    Cause.NO_OBSERVATION: ("none_yet", "unreadable"),
    Cause.STALE_OBSERVATION: ("frozen", "late"),
    Cause.DECIDE: ("observe", "send", "queued", "decoder_stopped", "decoder_slow", "error", *LOSSES),
    Cause.INVALID: (),
    Cause.EXECUTE: ("raised", "slow", "busy", "expired", "refused", "failed"),
    Cause.UNKNOWN: (),
}
# The stamps of a tick, in order; the event's `spans_ms` has those that are known.
SPANS = (
    "captured",
    "woke",
    "text",
    "submitted",
    "received",
    "begun",
    "decided",
    "replied",
    "executing",
    "executed",
)


NOTHING = DecisionRequest(-1, -1, "", "")


@dataclass(slots=True)
class Tick:
    """One tick under way; instants are CLOCK_MONOTONIC nanoseconds, 0 where it did not come so far.

    `skip` is what the event says of releases that were skipped before it; `runs` are the schedstat files of the loop's
    thread, the actuator's and the deciding ones, read when it woke, `runs_before` at the release before; `behind`
    says that the host was still busy with older requests; `fresh` that the world had made an observation since the
    release before; `request` is what is asked. Where a tick takes several calls each further one has a copy of it:
    `calls` are those that acted before. `asked_ns` is when the observation was made whose answer decides it, where that
    is an older one.
    """

    k: int
    release_ns: int
    deadline_ns: int
    woke_ns: int
    skip: dict[str, Any] = field(default_factory=dict)
    seq: int = -1
    epoch: int = -1
    capture_ns: int = 0
    superseded: int = 0
    fresh: bool = True
    text_ns: int = 0
    submitted_ns: int = 0
    replied_ns: int = 0
    incarnation: int = 0
    behind: bool = False
    request: DecisionRequest = NOTHING
    calls: tuple[str, ...] = ()
    runs: tuple[bytes, ...] = ()
    runs_before: tuple[bytes, ...] = ()
    waited_ns: int = 0
    asked_ns: int = 0

    def answer(self, older: DecisionRequest) -> None:
        """What decides it is the answer to an older observation: its call is of that one."""
        self.seq, self.capture_ns, self.asked_ns = older.seq, older.captured_ns, older.captured_ns
