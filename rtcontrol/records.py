"""The data of a run: ticks, commands, what became of them, and what people say. No behaviour, no clock.

Below them is the vocabulary of the loop's core: what it receives (events), and what it wants done (actions).
Completion, SafeAttempt, Fault, OperatorCommand and HostChanged are events as they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from rtcontrol.envs.base import Acknowledgement, Effect, Emission, Episode, Observation
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, HostEvent
from rtcontrol.models.call import Call
from rtcontrol.telemetry.causes import Cause

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


@dataclass(slots=True, eq=False)
class Command:
    """A valid call to execute, its arguments converted to the annotated types; never begun after `not_after_ns`.

    `fresh` and `void` are what an emitting world is told: that it acted, or that its epoch was over. `asked_ns` is when
    its decision was asked for. It is the `Barrier` of its own call: what was shut once stays shut, whoever resumes.
    """

    tick: int
    call: Call
    epoch: int
    not_after_ns: int | None
    fresh: Emission | None = None
    void: Emission | None = None
    asked_ns: int = 0
    demand: int = 0
    shut: str | None = None


class Event:
    """What the core of a loop receives."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Completion(Event):
    """What became of an order. `stands`: no safe call was demanded since it was given."""

    tick: int
    effect: Effect | Literal["failed"]
    began_ns: int
    ended_ns: int
    stands: bool
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class SafeAttempt(Event):
    """One try to bring one safe call (None: the agent has none) in force. `in_force`: now all that were demanded are;
    `acted`: False where the world is over and takes no calls; `over`: there, or where it makes no step with it."""

    call: Call | None
    why: str
    attempt: int
    ended_ns: int
    in_force: bool
    acted: bool
    error: BaseException | None = None
    over: bool = False


@dataclass(frozen=True, slots=True)
class Fault(Event):
    """The environment raised over what it was told."""

    doing: str
    error: BaseException


KnownCause = tuple[Cause, str | None]


@dataclass(slots=True, eq=False)
class TickOutcome:
    """How a tick ended. `kind` is call, null, held, overtaken, repeated, epoch_over or miss.

    `why` a call was held. Of a miss, `fault` is what the loop itself saw (None: there was no call in time), `doing`
    what raised the `error`.
    """

    tick: Tick
    kind: str
    reply: DecisionReply | None = None
    call: str | None = None
    done: Completion | None = None
    why: str | None = None
    fault: KnownCause | None = None
    error: str | BaseException | None = None
    doing: str = ""


@dataclass(slots=True, eq=False)
class InFlightCall:
    """A tick whose call was given to the actuator. `late`: its deadline was over before the decision came; `overdue`:
    it was over before the call ended, and `settled`: so was the tick, then."""

    tick: Tick
    reply: DecisionReply
    call: Call
    text: str
    late: bool
    overdue: bool = False
    settled: bool = False
    given_ns: int = 0


@dataclass(frozen=True, slots=True)
class OperatorCommand(Event):
    """What a person said, and by what: keyboard, page or wire. `k`: the tick whose call is meant."""

    said: str
    by: str
    t_ns: int
    k: int | None = None


@dataclass(slots=True, eq=False)
class PendingApproval:
    """A call that waits for a person's yes."""

    tick: Tick
    reply: DecisionReply
    call: Call
    asked_ns: int
    expires_ns: int
    denied: bool = False


class Doubt(NamedTuple):
    """What holds a decision back: the head or parameter, its confidence, the least that is accepted. Of a null function
    that says that nothing was understood, `least` is 1."""

    head: str
    confidence: float
    least: float


@dataclass(frozen=True, slots=True)
class ThreadReading:
    """One reading of a thread: its state (a letter; X: it is gone), and since its start its major faults, how long its
    group was throttled, how long it ran and waited for a processor. None where the kernel does not tell."""

    role: str
    state: str | None = None
    major_faults: int | None = None
    throttled_ns: int | None = None
    ran_ns: int | None = None
    delayed_ns: int | None = None


@dataclass(frozen=True, slots=True)
class EvidenceSample:
    """Evidence that only the process itself can give, as of `t_ns`; instants are CLOCK_MONOTONIC nanoseconds.

    `pauses` of this process (begin, end, kind), `acting` of the actuator (begin, end; 0: under way), readings of the
    `threads`: loop, actuator, then those that decide (as of the host's `incarnation`) and carry. `apart`: these are of
    another process.
    """

    t_ns: int = 0
    pauses: Sequence[tuple[int, int, str]] = ()
    acting: Sequence[tuple[int, int]] = ()
    threads: Sequence[ThreadReading] = ()
    apart: bool = False
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class HostChanged(Event):
    """The decoder host at one instant: as `Host` says of each. `sample` is the first of the threads that decide now."""

    alive: bool = True
    incarnation: int = 0
    gave_up: str | None = None
    events: Sequence[HostEvent] = ()
    sample: EvidenceSample = EvidenceSample()


# -- events -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Started(Event):
    """The world runs: the first release may come. `sample` is what later samples are compared with."""

    sample: EvidenceSample


@dataclass(slots=True)
class Woke(Event):
    """`wake_ns` is reached, or nothing else came meanwhile."""


@dataclass(slots=True)
class Advanced(Event):
    """Answers `Advance`."""

    due_ns: int | None  # since when the next release is due; None: not yet


@dataclass(slots=True)
class Observed(Event):
    """Answers `Observe`. `runs` are the schedstat files of the threads that count, unread; `sample` where one was asked
    for. `heard` is what a client says became of calls: it may grow at any time, the core alone takes."""

    observation: Observation | None
    finished: bool = False
    runs: tuple[bytes, ...] = ()
    heard: deque[Acknowledgement] | None = None
    sample: EvidenceSample | None = None


@dataclass(slots=True)
class TextRead(Event):
    """Answers `Read`: the agent's text of the observation, or what its code raised. `acknowledged`: calls that the
    world says were executed since the last time; None: one that was sent counts."""

    text: str
    error: BaseException | None = None
    acknowledged: Sequence[Call] | None = None


@dataclass(slots=True)
class Sent(Event):
    """Answers `Ask`."""

    error: Exception | None = None


@dataclass(slots=True)
class Replied(Event):
    """The decider answered."""

    reply: DecisionReply


@dataclass(slots=True)
class GaveWay(Event):
    """The call of tick `k` waited for the world, and was dropped for a newer `call`, or for the `safe` one."""

    k: int
    to: Literal["call", "safe"]


@dataclass(slots=True)
class Withdrawn(Event):
    """Answers `Withdraw`."""

    k: int
    dropped: bool  # False: the call of tick `k` does not wait any more


@dataclass(slots=True)
class SafeState(Event):
    """The safe calls: whether one is to be attempted, and whether one that was demanded is not in force yet."""

    attempting: bool
    pending: bool


@dataclass(slots=True)
class Sampled(Event):
    """Answers `TakeSample`."""

    k: int
    sample: EvidenceSample


@dataclass(slots=True)
class Ended(Event):
    """Answers `ListEpisodes`."""

    episodes: Sequence[Episode]  # all that ended so far


@dataclass(slots=True)
class Instructed(Event):
    """Somebody gives an instruction: it is taken at a release, one at each."""

    text: str


@dataclass(slots=True)
class Stopped(Event):
    """The run is to end; the first reason stays."""

    why: str


@dataclass(slots=True)
class Left(Event):
    """The ticks are over: the safe call is to be active, and nothing else acts."""


@dataclass(slots=True)
class Overdue(Event):
    """The ticks were over at `t_ns`: what was due by then, and was never begun, is missed. `sample` is of the time
    since the release that was next, `runs` are the schedstat files now."""

    t_ns: int
    sample: EvidenceSample
    runs: tuple[bytes, ...] = ()


@dataclass(slots=True)
class Closed(Event):
    """Nothing comes any more: what is open is recorded as it is."""

    episodes: Sequence[Episode]
    heard: deque[Acknowledgement] | None = None


# -- actions ----------------------------------------------------------------------------------------------------------


class Action:
    """What the shell does for the core, on the loop's thread."""

    __slots__ = ()


@dataclass(slots=True)
class Advance(Action):
    """Let a world that waits run so long, or wait for the next observation to arrive."""

    dt_ns: int


@dataclass(slots=True)
class Observe(Action):
    """Take the freshest observation."""

    sample_since_ns: int | None = None  # with a sample of the time since then


@dataclass(slots=True)
class Read(Action):
    """Let the agent read it."""

    observation: Observation


@dataclass(slots=True)
class Ask(Action):
    """Send it to the decider."""

    request: DecisionRequest


@dataclass(slots=True)
class Cancel(Action):
    """Nobody waits for the decision of tick `k` any more."""

    k: int


@dataclass(slots=True)
class Execute(Action):
    """Let the call act as soon as the world allows; a waiting one gives way (`GaveWay`)."""

    command: Command


@dataclass(slots=True)
class Withdraw(Action):
    """Drop the call of tick `k`, if it has not begun."""

    k: int


@dataclass(slots=True)
class Safe(Action):
    """Bring the safe calls in force; an emitting world receives the emission."""

    why: str
    emission: Emission | None


@dataclass(slots=True)
class Retry(Action):
    """Attempt again what is not in force yet."""


@dataclass(slots=True)
class Tell(Action):
    """An emitting world receives it."""

    emission: Emission


@dataclass(slots=True)
class Guard(Action):
    """Where the loop is not back by `until_ns` (None: no limit), the safe calls are demanded without it, and an
    emitting world receives `emission`; also at a person's word."""

    until_ns: int | None
    emission: Emission | None


@dataclass(slots=True)
class Instruct(Action):
    """The world judges by this instruction from now on."""

    text: str


@dataclass(slots=True)
class Question(Action):
    """A call waits for a person's yes; None: no longer, and it was `unanswered`, with this text, or not (empty)."""

    asking: PendingApproval | None
    unanswered: str = ""


@dataclass(slots=True)
class Record(Action):
    """A line for the record."""

    line: dict[str, Any]


@dataclass(slots=True)
class Notify(Action):
    """A line for people."""

    text: str


@dataclass(slots=True)
class LoopReport(Action):
    """For whoever listens to the run: `what` is accepted, refused or doubted (an instruction, and why), or changed
    (what the operator may see)."""

    what: Literal["accepted", "refused", "doubted", "changed"]
    text: str = ""
    why: str = ""


@dataclass(slots=True)
class TakeSample(Action):
    """Sample the evidence of tick `k` since this instant."""

    k: int
    since_ns: int


@dataclass(slots=True)
class ListEpisodes(Action):
    """Which episodes have ended?"""


@dataclass(slots=True)
class Stop(Action):
    """The ticks are over."""

    why: str
