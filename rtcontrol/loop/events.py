"""What the loop's core is told (events), and what it wants done (actions): data alone.

Completion, SafeAttempt, Fault, OperatorCommand, HostState and Acknowledgement of `records` are events as they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rtcontrol.envs.base import Acknowledgement, Emission, Episode, Observation
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest
from rtcontrol.models.call import Call
from rtcontrol.records import (
    Command,
    Completion,
    EvidenceSample,
    Fault,
    HostState,
    OperatorCommand,
    PendingApproval,
    SafeAttempt,
)

# -- events -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Started:
    """The world runs: the first release may come. `sample` is what later samples are compared with."""

    sample: EvidenceSample


@dataclass(slots=True)
class Woke:
    """`wake_ns` is reached, or nothing else came meanwhile."""


@dataclass(slots=True)
class Advanced:
    """Answers `Advance`: the next release is due since `due_ns`; None: not yet."""

    due_ns: int | None


@dataclass(slots=True)
class Observed:
    """Answers `Observe`. `runs` are the schedstat files of the threads that count, unread; `sample` where one was asked
    for. `heard` is what a client says became of calls: it may grow at any time, the core alone takes."""

    observation: Observation | None
    finished: bool = False
    runs: tuple[bytes, ...] = ()
    heard: deque[Acknowledgement] | None = None
    sample: EvidenceSample | None = None


@dataclass(slots=True)
class TextRead:
    """Answers `Read`: the agent's text of the observation, or what its code raised. `acknowledged`: calls that the
    world says were executed since the last time; None: one that was sent counts."""

    text: str
    error: BaseException | None = None
    acknowledged: Sequence[Call] | None = None


@dataclass(slots=True)
class Sent:
    """Answers `Ask`."""

    error: Exception | None = None


@dataclass(slots=True)
class Replied:
    """The decider answered."""

    reply: DecisionReply


@dataclass(slots=True)
class GaveWay:
    """The call of tick `k` waited for the world, and was dropped for a newer `call`, or for the `safe` one."""

    k: int
    to: Literal["call", "safe"]


@dataclass(slots=True)
class Withdrawn:
    """Answers `Withdraw`. False: the call of tick `k` does not wait any more."""

    k: int
    dropped: bool


@dataclass(slots=True)
class SafeState:
    """The safe calls: whether one is to be attempted, and whether one that was demanded is not in force yet."""

    attempting: bool
    pending: bool


@dataclass(slots=True)
class Sampled:
    """Answers `TakeSample`."""

    k: int
    sample: EvidenceSample


@dataclass(slots=True)
class Followed:
    """Answers `Follow`: the first sample of the threads that count now."""

    sample: EvidenceSample


@dataclass(slots=True)
class Ended:
    """Answers `ListEpisodes`: all episodes that ended so far."""

    episodes: Sequence[Episode]


@dataclass(slots=True)
class Instructed:
    """Somebody gives an instruction: it is taken at a release, one at each."""

    text: str


@dataclass(slots=True)
class Stopped:
    """The run is to end; the first reason stays."""

    why: str


@dataclass(slots=True)
class Left:
    """The ticks are over: the safe call is to be active, and nothing else acts."""


@dataclass(slots=True)
class Overdue:
    """The ticks were over at `t_ns`: what was due by then, and was never begun, is missed. `sample` is of the time
    since the release that was next."""

    t_ns: int
    sample: EvidenceSample


@dataclass(slots=True)
class Closed:
    """Nothing comes any more: what is open is recorded as it is."""

    episodes: Sequence[Episode]
    heard: deque[Acknowledgement] | None = None


Event = (
    Started
    | Woke
    | Advanced
    | Observed
    | TextRead
    | Sent
    | Replied
    | GaveWay
    | Withdrawn
    | SafeState
    | Sampled
    | Followed
    | Ended
    | Instructed
    | Stopped
    | Left
    | Overdue
    | Closed
    | Completion
    | SafeAttempt
    | Fault
    | OperatorCommand
    | HostState
)

# -- actions ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Advance:
    """Let a world that waits run so long, or wait for the next observation to arrive."""

    dt_ns: int


@dataclass(slots=True)
class Observe:
    """Take the freshest observation; with a sample of the time since `sample_since_ns`, where that is not None."""

    sample_since_ns: int | None = None


@dataclass(slots=True)
class Read:
    """Let the agent read it."""

    observation: Observation


@dataclass(slots=True)
class Ask:
    """Send it to the decider."""

    request: DecisionRequest


@dataclass(slots=True)
class Cancel:
    """Nobody waits for the decision of tick `k` any more."""

    k: int


@dataclass(slots=True)
class Execute:
    """Let the call act as soon as the world allows; a waiting one gives way (`GaveWay`)."""

    command: Command


@dataclass(slots=True)
class Withdraw:
    """Drop the call of tick `k`, if it has not begun."""

    k: int


@dataclass(slots=True)
class Safe:
    """Bring the safe calls in force; an emitting world receives the emission."""

    why: str
    emission: Emission | None


@dataclass(slots=True)
class Retry:
    """Attempt again what is not in force yet."""


@dataclass(slots=True)
class Tell:
    """An emitting world receives it."""

    emission: Emission


@dataclass(slots=True)
class Guard:
    """Where the loop is not back by `until_ns` (None: no limit), the safe calls are demanded without it, and an
    emitting world receives `emission`; also at a person's word."""

    until_ns: int | None
    emission: Emission | None


@dataclass(slots=True)
class Instruct:
    """The world judges by this instruction from now on."""

    text: str


@dataclass(slots=True)
class Question:
    """A call waits for a person's yes; None: no longer, and it was `unanswered`, with this text, or not (empty)."""

    asking: PendingApproval | None
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
    """For whoever listens to the run: `what` is accepted, refused or doubted (an instruction, and why), or changed
    (what the operator may see)."""

    what: Literal["accepted", "refused", "doubted", "changed"]
    text: str = ""
    why: str = ""


@dataclass(slots=True)
class TakeSample:
    """Sample the evidence of tick `k` since this instant."""

    k: int
    since_ns: int


@dataclass(slots=True)
class Follow:
    """Other threads decide now."""


@dataclass(slots=True)
class ListEpisodes:
    """Which episodes have ended?"""


@dataclass(slots=True)
class Stop:
    """The ticks are over."""

    why: str


Action = (
    Advance
    | Observe
    | Read
    | Ask
    | Cancel
    | Execute
    | Withdraw
    | Safe
    | Retry
    | Tell
    | Guard
    | Instruct
    | Question
    | Record
    | Notify
    | LoopReport
    | TakeSample
    | Follow
    | ListEpisodes
    | Stop
)
