"""A tick, and the one cause that is named for each that gave no fresh call in time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rtcontrol.hosts.base import DecisionReply, Host
from rtcontrol.loop.pause import PauseWatch


class Cause(StrEnum):
    """Why a tick missed, in order of precedence: the first that applies is the cause."""

    PAUSE = "pause"  # garbage collection, or the machine stood still
    HOST = "host"  # decoder dead, restarting, unreachable
    WAKE = "wake"  # the scheduler woke the loop's thread late
    NO_OBSERVATION = "no_observation"
    STALE_OBSERVATION = "stale_observation"
    DECIDE = "decide"  # the decision took too long, or failed
    INVALID = "invalid"  # a call that the tools do not allow
    EXECUTE = "execute"  # the executor raised, or ended after the deadline


@dataclass(slots=True)
class Tick:
    """One tick under way. `late_start` is why the loop's thread was not there at the release; `queued` says that the
    host was still busy with older requests; `instruction` is the one it is decided by."""

    k: int
    release_ns: int
    deadline_ns: int
    woke_ns: int
    late_start: Cause = Cause.WAKE
    skipped: int = 0
    skip_cause: Cause | None = None
    seq: int = -1
    epoch: int = -1
    capture_ns: int = 0
    superseded: int = 0
    submitted_ns: int = 0
    incarnation: int = 0
    queued: bool = False
    instruction: str = ""
    waited_ns: int = 0

    @property
    def wake_ns(self) -> int:
        """Wake-up latency, comparable with cyclictest's."""
        return self.woke_ns - self.release_ns


def late_share_ns(tick: Tick) -> int:
    """What counts as late to wake: a quarter of the time to the deadline, at least 1 ms."""
    return max((tick.deadline_ns - tick.release_ns) // 4, 1_000_000)


def pause_share_ns(tick: Tick) -> int:
    """A pause explains a miss from an eighth of the time to the deadline on, at least 1 ms."""
    return max((tick.deadline_ns - tick.release_ns) // 8, 1_000_000)


def attribute(
    tick: Tick, now_ns: int, watch: PauseWatch, host: Host, fault: Cause | None, reply: DecisionReply | None
) -> Cause:
    """The cause of a miss that is being settled at `now_ns`.

    `fault` is what the loop itself saw (None: there was no call at the deadline). A decision that came in time but
    failed, was illegal or could not be executed is not blamed on a pause, a host or a late wake-up: without them it
    would have failed just the same.
    """
    in_time = now_ns <= tick.deadline_ns
    if fault in (Cause.DECIDE, Cause.INVALID, Cause.EXECUTE) and in_time:
        return fault
    if watch.paused_ns(tick.release_ns, now_ns) >= pause_share_ns(tick):
        return Cause.PAUSE
    if reply is None and (not host.alive() or host.incarnation != tick.incarnation):
        return Cause.HOST
    if tick.wake_ns >= late_share_ns(tick):
        return tick.late_start
    if fault is not None:
        return fault
    if reply is not None and reply.error is None and not tick.queued and _was_in_time(tick, reply):
        return Cause.WAKE
    return Cause.DECIDE


def _was_in_time(tick: Tick, reply: DecisionReply) -> bool:
    # The decision itself would have been in time: the thread was not woken for its arrival.
    return tick.submitted_ns + reply.decide_ns <= tick.deadline_ns
