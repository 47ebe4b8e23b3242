"""One member of a crowd: its terms, what it saw, what is in force, and its open tick."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from rtcontrol.agents import InvalidCall
from rtcontrol.agents.agent import Agent
from rtcontrol.envs.remote_parts import RemoteData, wire_calls
from rtcontrol.loop.config import RunConfig
from rtcontrol.loop.instructions import echo
from rtcontrol.models.call import Call
from rtcontrol.serve.refusals import illegal_safe_call
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.base import FunctionCall
from rtcontrol_client.wire.crowd import Join, Leave, Member, MemberLook, ObserveMany, PartFault

NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class MemberTerms:
    """What a member is decided by. `ttl_ms` 0 is no limit."""

    instruction: str
    period_ns: int
    deadline_ns: int
    ttl_ms: float
    priority: int
    every_tick: bool
    safe_calls: list[FunctionCall] | None


@dataclass(frozen=True, slots=True)
class CrowdDefaults:
    """What members have that bring nothing else; `hz_max` is the server's."""

    agent: Agent
    config: RunConfig
    ttl_ms: float | None  # the hello's
    instruction: str
    hz_max: float

    def of(self, member: Member) -> MemberTerms:
        """Raises WireError naming the field of the part."""
        hz = self.config.hz if member.hz is None else member.hz
        if hz > self.hz_max:
            raise WireError(Code.INVALID, f"hz {hz:g} is above {self.hz_max:g}.", "Ask for less.", field="hz")
        period_ns = round(1e9 / hz)
        if member.deadline_ms is not None and not 0 < member.deadline_ms <= period_ns / 1e6:
            what = f"deadline_ms {member.deadline_ms:g} is not above 0 and at most the period, {period_ns / 1e6:g} ms."
            raise WireError(Code.INVALID, what, "Leave it out for the period.", field="deadline_ms")
        deadline_ms = self.config.deadline_ms if member.deadline_ms is None else member.deadline_ms
        deadline_ns = period_ns if deadline_ms is None else min(period_ns, round(deadline_ms * 1e6))
        ttl_ms = self.ttl_ms if member.ttl_ms is None else member.ttl_ms
        if ttl_ms is None:
            ttl_ms = max(500.0, (2.5 * period_ns + deadline_ns) / 1e6)
        told = self.instruction if member.instruction is None else member.instruction
        if not told.strip():
            raise WireError(Code.INSTRUCTION, "instruction says nothing.", "Say what to do.", field="instruction")
        safe_calls = wire_calls(self.agent.fallback.safe_calls)
        if member.safe_calls is not None:
            safe_calls = [self._legal(i, call) for i, call in enumerate(member.safe_calls)]
        return MemberTerms(told, period_ns, deadline_ns, ttl_ms, member.priority, member.every_tick, safe_calls)

    def _legal(self, i: int, call: FunctionCall) -> FunctionCall:
        try:
            made = self.agent.tools.validate(Call(call.name, dict(call.arguments)))
        except InvalidCall as error:
            raise illegal_safe_call(error, f"safe_calls[{i}]") from None
        return FunctionCall(name=made.name, arguments=dict(made.arguments))


@dataclass(slots=True, eq=False)
class MemberTick:
    """A tick of a member: released, and not settled yet unless `done`. `look` is what it is decided upon."""

    member: CrowdMember
    k: int
    release_ns: int
    deadline_ns: int
    woke_ns: int
    skipped: int = 0
    look: MemberSight | None = None
    instruction: str = ""
    history: tuple[str, ...] = ()
    asked: bool = False
    done: bool = False


@dataclass(frozen=True, slots=True)
class MemberSight:
    """A look as it is decided upon."""

    seq: int
    t_ns: int  # of the client's clock
    arrived_ns: int
    text: str
    data: Any


@dataclass(slots=True, eq=False)
class CrowdMember:
    """One member. `stretch`: how many of its periods come before the next release; `stamp` of its next instant: older
    ones are void; `served` grows over all members; `standing`: what its client was sent last."""

    id: str
    epoch: int
    terms: MemberTerms
    serial: int
    history: deque[str]
    look: MemberSight | None = None
    seq: int = -1
    superseded: int = 0  # looks since the last one that was decided upon
    taken: bool = True  # the newest look was decided upon
    stamp: int = 0
    released_ns: int | None = None  # last
    phase_ns: int = 0  # its next release comes so much later, once
    stretch: int = 1
    rested: int = 0  # releases that were left out since the last tick
    served: int = 0
    newest_decided: tuple[str, str] | None = None  # text and goal of the active decision
    refused_text: str | None = None  # its client knows
    standing: Literal["none", "call", "safe"] = "none"
    held_until_ns: int = NEVER  # a hold's end
    effect_ns: int = 0  # of its last decision
    tick: MemberTick | None = None

    def blind(self) -> None:
        """Forget what it saw: its client was lost, and that says nothing of now."""
        self.look, self.released_ns, self.tick = None, None, None
        self.standing, self.newest_decided = "none", None

    @property
    def period_ns(self) -> int:
        """Until the next release: its period, or several of them while nothing happens; never beyond half of its
        time-to-live."""
        terms, longest = self.terms, self.terms.period_ns * self.stretch
        if self.stretch > 1 and terms.ttl_ms:
            longest = max(terms.period_ns, min(longest, int(terms.ttl_ms * 5e5)))
        return longest

    @property
    def rests(self) -> bool:
        """Whether nothing has happened since its last decision, which is in force."""
        return (
            not self.terms.every_tick
            and self.standing == "call"
            and self.look is not None
            and self.newest_decided == (self.look.text, self.terms.instruction)
        )


SHOWN = 64  # refused parts of a message are told


class Roster:
    """At most `limit` members. From the crowd's thread."""

    def __init__(self, defaults: CrowdDefaults, limit: int) -> None:
        self.defaults, self.limit = defaults, limit
        self.members: dict[str, CrowdMember] = {}
        self.looks = 0
        self._serials = itertools.count(1)

    def join(self, message: Join, faults: list[PartFault]) -> list[CrowdMember]:
        """Whose terms are new; `faults` takes what is refused."""
        return [one for part in message.members if (one := _part(self._join, part, None, faults)) is not None]

    def _join(self, part: Member) -> CrowdMember:
        terms, there = self.defaults.of(part), self.members.get(part.id)
        if there is not None and part.epoch < there.epoch:
            what = f"epoch {part.epoch} of {echo(part.id)!r} is over: it is in epoch {there.epoch}."
            raise WireError(Code.EPOCH, what, "Count the lives of a member up.", field="epoch")
        if there is not None and part.epoch == there.epoch:
            there.terms, there.stretch = terms, 1
            return there
        if there is None and len(self.members) >= self.limit:
            what = f"The crowd has {self.limit} members, as many as it may."
            raise WireError(Code.BUSY, what, "Let another one leave first.", field="id", retryable=True)
        history = deque[str](maxlen=max(self.defaults.agent.history, 1))
        made = CrowdMember(part.id, part.epoch, terms, next(self._serials), history)
        self.members[part.id] = made
        return made

    def leave(self, message: Leave) -> Iterator[CrowdMember]:
        """Those that are gone now."""
        for name in message.ids:
            if (gone := self.members.pop(name, None)) is not None:
                yield gone

    def observe(self, message: ObserveMany, now_ns: int, faults: list[PartFault]) -> list[CrowdMember]:
        """Who saw something; `faults` takes what is refused."""
        look = partial(self._observe, now_ns=now_ns)
        return [one for part in message.looks if (one := _part(look, part, part.seq, faults)) is not None]

    def _observe(self, part: MemberLook, now_ns: int) -> CrowdMember:
        member = self.members.get(part.id)
        if member is None:
            what = f"There is no member {echo(part.id)!r}."
            raise WireError(Code.STATE, what, "Let it join first.", field="id", retryable=True)
        if part.seq <= member.seq:
            what = f"seq {part.seq} does not grow: the last was {member.seq}."
            raise WireError(Code.SEQUENCE, what, "Count up by one with every look of the member.", field="seq")
        if part.text is None and part.data is None:
            raise WireError(Code.INVALID, "The look shows nothing.", "Give text or data.", field="text")
        data = RemoteData.of(part.data, part.text)
        try:
            text = self.defaults.agent.observe(data)
        except Exception as error:
            what = f"The agent cannot read it ({type(error).__name__}: {error})."
            remedy = "Send the fields of `data` that the agent reads, or `text`."
            raise WireError(Code.INVALID, " ".join(what.split())[:300], remedy, field="data") from None
        self.looks += 1
        member.superseded += not member.taken
        member.seq, member.taken = part.seq, False
        member.look = MemberSight(part.seq, part.t_ns, now_ns, text, data)
        return member


def _part(
    take: Callable[[Any], CrowdMember], part: Any, seq: int | None, faults: list[PartFault]
) -> CrowdMember | None:
    try:
        return take(part)
    except WireError as error:
        faults.append(PartFault(part.id, seq, error))
        return None


def refusal_of_parts(message: Join | ObserveMany, faults: list[PartFault]) -> WireError | None:
    """The parts that came to nothing, as their sender is told."""
    every = [*message.faults, *faults]
    if not every:
        return None
    kinds = {fault.error.code for fault in every}
    what = f"{len(every)} part(s) of {message.type} were refused; the others were taken."
    more = "" if len(every) <= SHOWN else f" The first {SHOWN} of them."
    code = kinds.pop() if len(kinds) == 1 else Code.INVALID
    return WireError(
        code, what, f"`members` says why.{more}", members=[fault.message_part() for fault in every[:SHOWN]]
    )
