"""Dataclasses of a run: ticks, commands, results, and the events and actions of the control loop (`LoopCore`).

An event is an input of `LoopCore.advance`, an action is an output. Some classes of the first part are events, too:
Completion, SafeAttempt, EnvironmentFault, OperatorCommand, HostChanged and DecisionReply. Three classes are also
actions: a Command (execute its call in place of a waiting Command), a DecisionRequest (send it to the decider), and an
Emission (send it to the environment). All instants (`..._ns`) are nanoseconds of CLOCK_MONOTONIC.
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

# Names of a tick's timestamps, in order. The record's field `spans_ms` has the timestamps that the tick reached.
SPANS = ("captured", "woke", "text", "submitted", "received", "begun", "decided", "replied", "executing", "executed")
NOTHING = DecisionRequest(-1, -1, "", "")
KnownCause = tuple[Cause, str | None]


@dataclass(slots=True)
class Tick:
    """A tick, which is a period of the loop from its scheduled start (release) on. A timestamp is 0 if not reached.

    `skip` has record fields about releases that were skipped before this tick. `schedstats` has the contents of the
    schedstat files of the loop's, actuator's and decider's threads when the tick started, `schedstats_before` those at
    the previous tick. `decoder_busy` is True if the decoder still had older requests. `calls` has the texts of the
    calls that already acted in this tick; each further call has a separate copy of the Tick. `requested_ns` is the
    capture time of an older observation whose plan decides this tick, or 0."""

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
    decoder_busy: bool = False
    request: DecisionRequest = field(default_factory=lambda: NOTHING)
    calls: tuple[str, ...] = ()
    schedstats: tuple[bytes, ...] = ()
    schedstats_before: tuple[bytes, ...] = ()
    waited_ns: int = 0
    requested_ns: int = 0


@dataclass(slots=True, eq=False)
class Command:
    """A valid call that the actuator must execute. The call must not start after `not_after_ns` (None: no limit).

    `fresh` is the emission (message to the environment) to send if the call acted, `void` the emission if the call's
    epoch was over. `requested_ns` is when the decision was requested. `demand` counts the demands for safe calls before
    this command. `block_reason` is the reason why the call must not act, or None; it is never reset to None."""

    tick: int
    call: Call
    epoch: int
    not_after_ns: int | None
    fresh: Emission | None = None
    void: Emission | None = None
    requested_ns: int = 0
    demand: int = 0
    block_reason: str | None = None


@dataclass(slots=True)
class Completion:
    """The result of a finished command. `current` is False if safe calls were demanded after the command was queued."""

    tick: int
    effect: Effect | Literal["failed"]
    started_ns: int
    ended_ns: int
    current: bool
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class SafeAttempt:
    """The result of one attempt to execute a safe call. `call` is None if the agent has no safe call.

    `active` is True if all demanded safe calls are active now. `world_over` is True if the environment has ended: it
    did not accept the call (`acted` is False), or it will not step any more (`acted` is True)."""

    call: Call | None
    why: str
    attempt: int
    ended_ns: int
    active: bool
    acted: bool
    error: BaseException | None = None
    world_over: bool = False


@dataclass(frozen=True, slots=True)
class EnvironmentFault:
    """An exception that the environment raised when it received an emission or an instruction (`doing` says which)."""

    doing: str
    error: BaseException


@dataclass(slots=True, eq=False)
class TickOutcome:
    """The outcome of a tick. `kind` is one of: call, null, held, overtaken, repeated, epoch_over, miss.

    `why` is the reason why a held call must not act, `done` the result of the call. For a miss, `fault` is the cause
    that the loop detected itself (None if no call came in time), and `doing` names the operation that failed with
    `error`."""

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
    """A call that was passed to the actuator, and its tick. `late` is True if the tick was already over at that time,
    `overdue` if the deadline passed while the call was queued or running, `settled` if the tick ended before the
    call."""

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
    """A command of an operator by keyboard, web page or client. `k` is the tick whose call is confirmed or denied."""

    word: str
    by: str
    t_ns: int
    k: int | None = None


@dataclass(slots=True, eq=False)
class PendingApproval:
    """A call that waits for the operator's approval until `expires_ns`. `denied` is True if the operator refused."""

    tick: Tick
    reply: DecisionReply
    call: Call
    requested_ns: int
    expires_ns: int
    denied: bool = False


class LowConfidence(NamedTuple):
    """The reason why a decision is withheld: the `confidence` of a head (the function or an argument) is below the
    minimum `least`. A `least` of 1 means that the instruction was not understood."""

    head: str
    confidence: float
    least: float


@dataclass(frozen=True, slots=True)
class ThreadReading:
    """Scheduler statistics of one thread. `state` is the kernel's one-letter state code, or X if the thread has ended.
    `ran_ns` is the thread's time on a processor, `delayed_ns` its time waiting for one, both since its start.
    `major_faults`, and `throttled_ns` of its control group, are since the previous sample. Unknown values are None."""

    role: str
    state: str | None = None
    ran_ns: int | None = None
    delayed_ns: int | None = None
    major_faults: int | None = None
    throttled_ns: int | None = None


@dataclass(frozen=True, slots=True)
class EvidenceSample:
    """Measurements at `t_ns` that help to find the cause of a miss. `before_ns` is the time of the previous sample.

    `pauses` has this process's pauses (start, end, kind), `acting` the actuator's calls (start, end; 0 as the end of a
    call that still runs), `threads` readings of the loop's, actuator's, decider's and sockets' threads. `apart` is True
    if the decider runs in another process, and `incarnation` counts the restarts of that process."""

    t_ns: int = 0
    pauses: Sequence[tuple[int, int, str]] = ()
    acting: Sequence[tuple[int, int]] = ()
    threads: Sequence[ThreadReading] = ()
    apart: bool = False
    incarnation: int = 0
    before_ns: int = 0


@dataclass(frozen=True, slots=True)
class HostChanged:
    """The event that the state of the decoder's host changed. The fields are those of `hosts.protocol.Host`."""

    alive: bool = True
    incarnation: int = 0
    gave_up: str | None = None
    events: Sequence[HostEvent] = ()


# -- events -----------------------------------------------------------------------------------------------------------

Event = Any  # one of the types in `EVENT_HANDLERS` of loop/core.py


class TimerFired:
    """The event that `LoopCore.wake_ns` is reached, or a wait ended without an event. The first one starts ticks."""


@dataclass(slots=True)
class AdvanceResult:
    """The result of `AdvanceWorld`. `due_ns` is when the next release became due, or None if it is not due yet."""

    due_ns: int | None


@dataclass(slots=True)
class ObserveResult:
    """The result of `Observe`: the newest observation, and the agent's `text` or the `error` that the agent raised.

    `finished` is True if the environment has no further episode. `acks` is a queue of a client's acknowledgements:
    other threads append to it, and only the core removes entries. `episodes` has, in a new epoch, all episodes that
    have ended. `acknowledged` has the calls that the environment reported as executed since the previous ObserveResult;
    it is None if the environment does not report calls, so that each sent call counts as executed."""

    observation: Observation | None
    finished: bool = False
    schedstats: tuple[bytes, ...] = ()
    acks: deque[Acknowledgement] | None = None
    sample: EvidenceSample = EvidenceSample()
    episodes: Sequence[Episode] = ()
    text: str = ""
    error: BaseException | None = None
    acknowledged: Sequence[Call] | None = None


@dataclass(slots=True)
class SendResult:
    """The result of sending a DecisionRequest to the decider. `error` is why sending failed, or None."""

    error: Exception | None = None


@dataclass(slots=True)
class CallPreempted:
    """The event that the queued call of tick `k` was dropped because a newer `call` or the `safe` call replaced it."""

    k: int
    to: Literal["call", "safe"]


@dataclass(slots=True)
class WithdrawResult:
    """The result of `WithdrawCall`. `dropped` is False if the call of tick `k` had already started or ended."""

    k: int
    dropped: bool


@dataclass(slots=True)
class SafeState:
    """The state of the safe calls. `attempting` is True if an attempt is running or due, `pending` if a demanded safe
    call is not active yet."""

    attempting: bool
    pending: bool


@dataclass(slots=True)
class SampleResult:
    """The result of `TakeSample`: the evidence about the missed tick `k`."""

    k: int
    sample: EvidenceSample


@dataclass(slots=True)
class NewInstruction:
    """The event that a new instruction arrived. The core activates one waiting instruction at each release."""

    text: str


@dataclass(slots=True)
class StopRequested:
    """The event that the run must end. `why` is the reason."""

    why: str


class ExitStarted:
    """The event that the last tick is over and the run is ending. From now on only the safe calls may act."""


@dataclass(slots=True)
class OverdueRelease:
    """The event that the ticks ended at `t_ns`. A tick that was due by `t_ns` but never started counts as missed.
    `sample` has the evidence since the tick was due."""

    t_ns: int
    sample: EvidenceSample
    schedstats: tuple[bytes, ...] = ()


@dataclass(slots=True)
class RunClosed:
    """The last event of a run. The core then records all ticks and misses that are not recorded yet."""

    episodes: Sequence[Episode]
    acks: deque[Acknowledgement] | None = None


# -- actions ----------------------------------------------------------------------------------------------------------

Action = Any  # one of the types in `ACTION_HANDLERS` of loop/runner.py


@dataclass(slots=True)
class AdvanceWorld:
    """The action to let a lockstep world run for `dt_ns`, or to wait for the next observation to arrive."""

    dt_ns: int


@dataclass(slots=True)
class Observe:
    """The action to take the newest observation and turn it into the agent's text. If `sample_since_ns` is set, also
    sample the evidence since that instant."""

    sample_since_ns: int | None = None


@dataclass(slots=True)
class CancelRequest:
    """The action to cancel the decision request of tick `k`."""

    k: int


@dataclass(slots=True)
class WithdrawCall:
    """The action to drop the queued call of tick `k`, unless the call has already started."""

    k: int


@dataclass(slots=True)
class DemandSafeCalls:
    """The action to make the safe calls active. A world that takes emissions receives `emission` first."""

    why: str
    emission: Emission | None


class RetrySafeCalls:
    """The action to retry immediately the safe calls that are not active yet."""


@dataclass(slots=True)
class ArmGuard:
    """The action to arm the guard (a watchdog): the actuator demands the safe calls, with `emission`, if the loop does
    not arm the guard again by `until_ns` (None: no limit), or if an operator pauses or stops the run."""

    until_ns: int | None
    emission: Emission | None


@dataclass(slots=True)
class Instruct:
    """The action to pass a new instruction to the environment, which may use it to judge success."""

    text: str


@dataclass(slots=True)
class ShowApproval:
    """The action to show the operator a call that waits for approval. `approval` is None if no call waits any more."""

    approval: PendingApproval | None


@dataclass(slots=True)
class RecordLine:
    """The action to write a line to the record."""

    line: dict[str, Any]


@dataclass(slots=True)
class Notify:
    """The action to show a line of text to the user."""

    text: str


@dataclass(slots=True)
class LoopReport:
    """The action to call the run's `Listener`: the instruction `text` was accepted, refused or doubted for the
    reason `why`, or the view of the operator has changed."""

    kind: Literal["accepted", "refused", "doubted", "unfamiliar", "changed"]
    text: str = ""
    why: str = ""


@dataclass(slots=True)
class TakeSample:
    """The action to sample the evidence since `since_ns` for the missed tick `k`."""

    k: int
    since_ns: int


@dataclass(slots=True)
class StopRun:
    """The action to stop the run: no further tick starts. `why` is the reason."""

    why: str
