"""What the loop's core is told (events), and what it wants done (actions): data alone.

Completion, SafeAttempt, Fault, OperatorCommand and HostState of `records` are events as they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rtcontrol.envs.base import Acknowledgement, Emission, Episode, Observation
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest
from rtcontrol.models.call import Call
from rtcontrol.records import Command, EvidenceSample, PendingApproval
from rtcontrol.records import Event as Event

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
