"""The data of a run: ticks, commands and their results. No behaviour, no clock.

Below them are the events that the loop's core takes and the actions that it returns. Completion, SafeAttempt, Fault,
OperatorCommand, HostChanged and DecisionReply are events as they are. Three are actions as they are: the call of a
Command is to act as soon as the world allows (a waiting one gives way), a DecisionRequest is to be sent to the decider,
an Emission to a world that receives them. Instants are CLOCK_MONOTONIC nanoseconds.
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

# The stamps of a tick, in order; a line's `spans_ms` has those that are known.
SPANS = ("captured", "woke", "text", "submitted", "received", "begun", "decided", "replied", "executing", "executed")
NOTHING = DecisionRequest(-1, -1, "", "")
KnownCause = tuple[Cause, str | None]


@dataclass(slots=True)
class Tick:
    """A tick and its stamps; an instant is 0 where the tick did not get so far.

    `skip`: the record's fields about releases skipped before it. `runs`: schedstat files of the loop's, the actuator's
    and the deciding threads when it woke, and at the release before. `behind`: the host was busy with older requests.
    `calls`: those of this tick that acted before (each further call has its own copy of the tick). `requested_ns`: when
    the observation was made that decides the tick, where it is an older one.
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
    requested_ns: int = 0


@dataclass(slots=True, eq=False)
class Command:
    """A legal call to execute, its arguments converted to the annotated types; not started after `not_after_ns`.

    `fresh` and `void`: emissions for a call that acted, and for one whose epoch was over. `requested_ns`: when its
    decision was requested. It is the `Barrier` of its own call: once `shut`, it stays so.
    """

    tick: int
    call: Call
    epoch: int
    not_after_ns: int | None
    fresh: Emission | None = None
    void: Emission | None = None
    requested_ns: int = 0
    demand: int = 0
    shut: str | None = None


@dataclass(slots=True)
class Completion:
    """A command ended. `current`: no safe call was demanded since it was ordered."""

    tick: int
    effect: Effect | Literal["failed"]
    began_ns: int
    ended_ns: int
    current: bool
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class SafeAttempt:
    """One attempt of a safe call (None: the agent has none). `active`: now all that were demanded are. `over`: the
    world takes no calls (not `acted`), or makes no step with it."""

    call: Call | None
    why: str
    attempt: int
    ended_ns: int
    active: bool
    acted: bool
    error: BaseException | None = None
    over: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """The environment raised over an emission or an instruction."""

    doing: str
    error: BaseException


@dataclass(slots=True, eq=False)
class TickOutcome:
    """How a tick ended. `kind`: call, null, held, overtaken, repeated, epoch_over or miss; `why` it was held.

    Of a miss, `fault` is what the loop itself saw (None: no call in time), `doing` what raised the `error`.
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
class OrderedCall:
    """A tick whose call the actuator has. `late`: the tick was over before; `overdue`: its deadline passed before the
    call ended, and `settled`: the tick is over since."""

    tick: Tick
    reply: DecisionReply
    call: Call
    text: str
    late: bool
    overdue: bool = False
    settled: bool = False
    ordered_ns: int = 0


@dataclass(frozen=True, slots=True)
class OperatorCommand:
    """A word of a person, by keyboard, page or wire. `k`: the tick whose call is meant."""

    word: str
    by: str
    t_ns: int
    k: int | None = None


@dataclass(slots=True, eq=False)
class PendingApproval:
    """A call that waits for a person's yes."""

    tick: Tick
    reply: DecisionReply
    call: Call
    requested_ns: int
    expires_ns: int
    denied: bool = False


class Doubt(NamedTuple):
    """Why a decision is withheld: head or parameter, its confidence, and the least that is accepted (1: nothing was
    understood)."""

    head: str
    confidence: float
    least: float


@dataclass(frozen=True, slots=True)
class ThreadReading:
    """A thread's state (a letter; X: it is gone), and how long it ran and waited for a processor since its start. Since
    the sample before: major faults, and how long its group was throttled. None where the kernel does not say."""

    role: str
    state: str | None = None
    ran_ns: int | None = None
    delayed_ns: int | None = None
    major_faults: int | None = None
    throttled_ns: int | None = None


@dataclass(frozen=True, slots=True)
class EvidenceSample:
    """Evidence that only the process itself has, as of `t_ns`; the sample before was of `before_ns`.

    `pauses` of the process (start, end, kind), `acting` of the actuator (start, end; 0: it goes on). `threads`: loop,
    actuator, those that decide (of this `incarnation`; `apart`: in another process) and those that carry messages.
    """

    t_ns: int = 0
    pauses: Sequence[tuple[int, int, str]] = ()
    acting: Sequence[tuple[int, int]] = ()
    threads: Sequence[ThreadReading] = ()
    apart: bool = False
    incarnation: int = 0
    before_ns: int = 0


@dataclass(frozen=True, slots=True)
class HostChanged:
    """The decoder's host at one instant, as `Host` says."""

    alive: bool = True
    incarnation: int = 0
    gave_up: str | None = None
    events: Sequence[HostEvent] = ()


# -- events -----------------------------------------------------------------------------------------------------------

Event = Any  # of a type in `HANDLERS` of loop/core.py


class Woke:
    """`wake_ns` is reached, or nothing else came. With the first one the world runs: the first release may come."""


@dataclass(slots=True)
class Advanced:
    """Answers `Advance`: the next release is due since then; None: not yet."""

    due_ns: int | None


@dataclass(slots=True)
class Observed:
    """Answers `Observe`, with the agent's `text`, or the `error` that its code raised.

    `acks`: a client's acknowledgements, which may grow at any time and which the core alone takes. `episodes`: all that
    ended so far, in a new epoch. `acknowledged`: calls that the world says were executed since the last time; None: one
    that was sent counts.
    """

    observation: Observation | None
    finished: bool = False
    runs: tuple[bytes, ...] = ()
    acks: deque[Acknowledgement] | None = None
    sample: EvidenceSample = EvidenceSample()
    episodes: Sequence[Episode] = ()
    text: str = ""
    error: BaseException | None = None
    acknowledged: Sequence[Call] | None = None


@dataclass(slots=True)
class Sent:
    """Answers a DecisionRequest."""

    error: Exception | None = None


@dataclass(slots=True)
class GaveWay:
    """The call of tick `k` waited for the world, and was dropped for a newer `call`, or for the `safe` one."""

    k: int
    to: Literal["call", "safe"]


@dataclass(slots=True)
class Withdrawn:
    """Answers `Withdraw`. `dropped`: False where the call of tick `k` does not wait any more."""

    k: int
    dropped: bool


@dataclass(slots=True)
class SafeState:
    """Whether a safe call is to be attempted, and whether one that was demanded is not active yet."""

    attempting: bool
    pending: bool


@dataclass(slots=True)
class Sampled:
    """Answers `TakeSample`."""

    k: int
    sample: EvidenceSample


@dataclass(slots=True)
class Instructed:
    """A new instruction: it is taken at a release, one at each."""

    text: str


@dataclass(slots=True)
class Stopped:
    """The run is to end; the first reason stays."""

    why: str


class Left:
    """The ticks are over: the safe call is to be active, and nothing else acts."""


@dataclass(slots=True)
class Overdue:
    """The ticks were over at `t_ns`: a release that was due by then and never started is missed. `sample`: of the time
    since that release."""

    t_ns: int
    sample: EvidenceSample
    runs: tuple[bytes, ...] = ()


@dataclass(slots=True)
class Closed:
    """Nothing comes any more: what is open is recorded as it is."""

    episodes: Sequence[Episode]
    acks: deque[Acknowledgement] | None = None


# -- actions ----------------------------------------------------------------------------------------------------------

Action = Any  # of a type in `DO` of loop/runner.py


@dataclass(slots=True)
class Advance:
    """Let a world that waits run so long, or wait for the next observation to arrive."""

    dt_ns: int


@dataclass(slots=True)
class Observe:
    """Take the freshest observation and let the agent read it, with a sample of the time since then, if any."""

    sample_since_ns: int | None = None


@dataclass(slots=True)
class Cancel:
    """The decision of tick `k` is not waited for any more."""

    k: int


@dataclass(slots=True)
class Withdraw:
    """Drop the call of tick `k`, if it has not started."""

    k: int


@dataclass(slots=True)
class Safe:
    """Make the safe calls active; an emitting world receives the emission first."""

    why: str
    emission: Emission | None


class Retry:
    """Attempt again the safe calls that are not active yet."""


@dataclass(slots=True)
class Guard:
    """Demand the safe calls without the loop where it is not back by `until_ns` (None: no limit), or at a person's
    word; an emitting world receives the emission then."""

    until_ns: int | None
    emission: Emission | None


@dataclass(slots=True)
class Instruct:
    """The world judges by this instruction from now on."""

    text: str


@dataclass(slots=True)
class Question:
    """A call waits for a person's yes; None: no longer. `unanswered`: its text, where no answer came."""

    approval: PendingApproval | None
    unanswered: str = ""


@dataclass(slots=True)
class Record:
    """A line for the record."""

    line: dict[str, Any]


@dataclass(slots=True)
class Notify:
    """A line for people."""

    text: str


@dataclass(slots=True)
class LoopReport:
    """For the run's listener: an instruction (`text`) is accepted, refused or doubted (`why`), or the operator's view
    changed."""

    kind: Literal["accepted", "refused", "doubted", "changed"]
    text: str = ""
    why: str = ""


@dataclass(slots=True)
class TakeSample:
    """Sample the evidence of tick `k` since this instant."""

    k: int
    since_ns: int


@dataclass(slots=True)
class Stop:
    """The ticks are over."""

    why: str
