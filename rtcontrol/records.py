"""The data of a run: ticks, commands and their results, without behaviour or a clock.

The second part has the events that the loop's core takes, and the actions that the core returns. Completion,
SafeAttempt, Fault, OperatorCommand, HostChanged and DecisionReply also serve as events. Three types also serve as
actions: the call of a Command must act as soon as the world allows (and replaces a waiting one), a DecisionRequest goes
to the decider, and an Emission goes to a world that receives emissions. Instants are CLOCK_MONOTONIC nanoseconds.
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

# The stamps of a tick, in order; `spans_ms` of a line has the known ones.
SPANS = ("captured", "woke", "text", "submitted", "received", "begun", "decided", "replied", "executing", "executed")
NOTHING = DecisionRequest(-1, -1, "", "")
KnownCause = tuple[Cause, str | None]


@dataclass(slots=True)
class Tick:
    """A tick and its stamps. An instant is 0 if the tick did not get so far.

    `skip`: the record's fields about skipped releases before this tick. `runs`: contents of schedstat files of the
    loop's, the actuator's and the deciding threads when the tick woke, and at the previous release. `behind`: the host
    was busy with older requests. `calls`: earlier calls of this tick that acted (each further call has its own copy of
    the tick). `requested_ns`: if an older observation decides the tick, when that observation was made.
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
    request: DecisionRequest = field(default_factory=lambda: NOTHING)
    calls: tuple[str, ...] = ()
    runs: tuple[bytes, ...] = ()
    runs_before: tuple[bytes, ...] = ()
    waited_ns: int = 0
    requested_ns: int = 0


@dataclass(slots=True, eq=False)
class Command:
    """A legal call to execute, with arguments of the annotated types. The call must not start after `not_after_ns`.

    `fresh` and `void`: emissions for a call that acted, and for one whose epoch was over. `requested_ns`: when the
    decision was requested. A command is also the `Barrier` of its call, and cannot open again once it is `shut`.
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
    """The result of a command that ended. `current`: no safe call was demanded since the command was ordered."""

    tick: int
    effect: Effect | Literal["failed"]
    began_ns: int
    ended_ns: int
    current: bool
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class SafeAttempt:
    """The result of one attempt of a safe call (None: the agent has none). `active`: all demanded safe calls are active
    now. `over`: the world takes no calls any more (if not `acted`), or makes no step with this call."""

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
    """An error that the environment raised for an emission or an instruction."""

    doing: str
    error: BaseException


@dataclass(slots=True, eq=False)
class TickOutcome:
    """The outcome of a tick. `kind`: call, null, held, overtaken, repeated, epoch_over or miss; `why`: the reason of a
    held call.

    For a miss, `fault` is what the loop itself detected (None: no call in time), and `doing` names the operation that
    raised the `error`.
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
    """A tick whose call was passed to the actuator. `late`: the tick was over before that; `overdue`: the deadline
    passed before the call ended; `settled`: the tick was over after that."""

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
    """A command of an operator, by keyboard, page or wire. `k`: the tick whose call the command answers."""

    word: str
    by: str
    t_ns: int
    k: int | None = None


@dataclass(slots=True, eq=False)
class PendingApproval:
    """A call that waits for an operator's yes."""

    tick: Tick
    reply: DecisionReply
    call: Call
    requested_ns: int
    expires_ns: int
    denied: bool = False


class Doubt(NamedTuple):
    """The reason why a decision is withheld: a head or parameter, its confidence, and the least accepted confidence (1:
    the instruction was not understood)."""

    head: str
    confidence: float
    least: float


@dataclass(frozen=True, slots=True)
class ThreadReading:
    """The state of a thread (a letter; X: the thread is gone), and how long it ran and waited for a processor since its
    start. Major faults, and throttled time of its group, count since the previous sample. None: not reported."""

    role: str
    state: str | None = None
    ran_ns: int | None = None
    delayed_ns: int | None = None
    major_faults: int | None = None
    throttled_ns: int | None = None


@dataclass(frozen=True, slots=True)
class EvidenceSample:
    """A sample at `t_ns` of evidence that only the process itself has. The previous sample is from `before_ns`.

    `pauses`: pauses of the process (start, end, kind); `acting`: the actuator's calls (start, end; 0: not ended).
    `threads`: loop, actuator, deciding threads (of this `incarnation`; `apart`: in another process) and messaging
    threads.
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
    """The state of the decoder's host at one instant, with the fields of `Host`."""

    alive: bool = True
    incarnation: int = 0
    gave_up: str | None = None
    events: Sequence[HostEvent] = ()


# -- events -----------------------------------------------------------------------------------------------------------

Event = Any  # one of the types in `HANDLERS` of loop/core.py


class Woke:
    """The event that `wake_ns` is reached, or that no other event came. After the first one the world runs, and the
    first release may be due."""


@dataclass(slots=True)
class Advanced:
    """The answer to `Advance`: since when the next release is due; None: not due yet."""

    due_ns: int | None


@dataclass(slots=True)
class Observed:
    """The answer to `Observe`, with the agent's `text`, or the `error` that the agent's code raised.

    `acks`: acknowledgements of a client, which may grow at any time and which only the core removes. `episodes`: in a
    new epoch, all episodes that ended so far. `acknowledged`: calls that were executed since the last time according to
    the world; None: a sent call counts as executed.
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
    """The answer to a DecisionRequest that was sent or failed."""

    error: Exception | None = None


@dataclass(slots=True)
class GaveWay:
    """The event that the call of tick `k` waited for the world, and was dropped for a newer `call` or the `safe`
    one."""

    k: int
    to: Literal["call", "safe"]


@dataclass(slots=True)
class Withdrawn:
    """The answer to `Withdraw`. `dropped` is False if the call of tick `k` was not waiting any more."""

    k: int
    dropped: bool


@dataclass(slots=True)
class SafeState:
    """The state of the safe calls: whether an attempt is to come, and whether a demanded one is inactive."""

    attempting: bool
    pending: bool


@dataclass(slots=True)
class Sampled:
    """The answer to `TakeSample`."""

    k: int
    sample: EvidenceSample


@dataclass(slots=True)
class Instructed:
    """The event of a new instruction. The core takes one instruction at each release."""

    text: str


@dataclass(slots=True)
class Stopped:
    """The event that the run must end. The first reason stays."""

    why: str


class Left:
    """The event that the ticks are over. From then on only the safe call may act."""


@dataclass(slots=True)
class Overdue:
    """The event that the ticks ended at `t_ns`. A release that was due by then and never started counts as missed.
    `sample` covers the time since that release."""

    t_ns: int
    sample: EvidenceSample
    runs: tuple[bytes, ...] = ()


@dataclass(slots=True)
class Closed:
    """The last event. Open ticks are recorded in their current state."""

    episodes: Sequence[Episode]
    acks: deque[Acknowledgement] | None = None


# -- actions ----------------------------------------------------------------------------------------------------------

Action = Any  # one of the types in `DO` of loop/runner.py


@dataclass(slots=True)
class Advance:
    """The action to let a lockstep world run for a time, or to wait for the next observation to arrive."""

    dt_ns: int


@dataclass(slots=True)
class Observe:
    """The action to take the newest observation and let the agent read it, and to sample the time since then, if
    given."""

    sample_since_ns: int | None = None


@dataclass(slots=True)
class Cancel:
    """The action to stop waiting for the decision of tick `k`."""

    k: int


@dataclass(slots=True)
class Withdraw:
    """The action to drop the call of tick `k` if the call has not started."""

    k: int


@dataclass(slots=True)
class Safe:
    """The action to make the safe calls active. An emitting world receives the emission first."""

    why: str
    emission: Emission | None


class Retry:
    """The action to attempt again the safe calls that are not active yet."""


@dataclass(slots=True)
class Guard:
    """The action to demand the safe calls without the loop if it is not back by `until_ns` (None: no limit), or if an
    operator demands them. An emitting world then receives the emission."""

    until_ns: int | None
    emission: Emission | None


@dataclass(slots=True)
class Instruct:
    """The action to give the world a new instruction to judge by."""

    text: str


@dataclass(slots=True)
class Question:
    """The action to show a call that waits for an operator's yes; None: no call waits any more. `unanswered`: the text
    of a call that got no answer."""

    approval: PendingApproval | None
    unanswered: str = ""


@dataclass(slots=True)
class Record:
    """The action to write a line to the record."""

    line: dict[str, Any]


@dataclass(slots=True)
class Notify:
    """The action to show a line to people."""

    text: str


@dataclass(slots=True)
class LoopReport:
    """The action to inform the run's listener that an instruction (`text`) is accepted, refused or in doubt (`why`), or
    that the operator's view changed."""

    kind: Literal["accepted", "refused", "doubted", "changed"]
    text: str = ""
    why: str = ""


@dataclass(slots=True)
class TakeSample:
    """The action to sample the evidence for tick `k` since an instant."""

    k: int
    since_ns: int


@dataclass(slots=True)
class Stop:
    """The action to end the ticks."""

    why: str
