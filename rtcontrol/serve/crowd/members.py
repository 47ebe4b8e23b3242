"""The members of a crowd: each with settings, the newest observation, the active call and an open tick."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rtcontrol.envs.remote_core import RemoteData, wire_calls
from rtcontrol.hosts.deciders import crowd_source
from rtcontrol.hosts.policy_api import PolicySource
from rtcontrol.hosts.remote_api import EndpointSource
from rtcontrol.loop.active import FallbackPolicy, echo
from rtcontrol.records import NOTHING, Tick
from rtcontrol.serve.negotiate import EXECUTED, Terms, legal_calls
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.messages import (
    MEMBERS,
    PARTS,
    CrowdTerms,
    FunctionCall,
    Join,
    Leave,
    Member,
    MemberLook,
    ObserveMany,
    PartFault,
)
from rtcontrol_client.wire.pictures import PICTURES

LONGEST = 8  # most periods between releases of a member to whom nothing happens


@dataclass(frozen=True, slots=True)
class MemberTerms:
    """The negotiated settings of a member. A `ttl_ms` of 0 is no limit."""

    instruction: str
    period_ns: int
    deadline_ns: int
    ttl_ms: float
    priority: int
    every_tick: bool
    safe_calls: list[FunctionCall] | None


@dataclass(frozen=True, slots=True)
class MemberSight:
    """A member's observation for a decision; `t_ns` is by the client's clock."""

    seq: int
    t_ns: int
    arrived_ns: int
    text: str
    data: Any


@dataclass(slots=True, eq=False)
class MemberTick(Tick):
    """A released tick of a member; `done`: the tick is settled. `look`: the observation for the decision."""

    member: CrowdMember = field(kw_only=True)
    look: MemberSight | None = None
    done: bool = False

    @property
    def requested(self) -> bool:
        """Whether a decision was requested."""
        return self.request is not NOTHING

    def see(self, look: MemberSight) -> None:
        """Set the observation that the tick is decided upon."""
        self.look, self.seq, self.capture_ns = look, look.seq, look.arrived_ns


@dataclass(slots=True, eq=False)
class CrowdMember:
    """The state of a member in one epoch. `serial` numbers all members; `served` numbers the last requested tick,
    counted over all members. `decided`: text and goal of the active decision.

    `newest` is the newest observation, with number `seq`; `taken`: a tick has used it; `superseded`: unused
    observations since the last used one; `refused`: the text that was last reported as undecidable. `due_ns`: the next
    release (None: not known yet), `periods` after `released_ns` (plus `phase_ns`, once); `rested`: left-out releases.
    """

    id: str
    epoch: int
    terms: MemberTerms
    serial: int
    policy: FallbackPolicy
    history: deque[str]
    newest: MemberSight | None = None
    seq: int = -1
    superseded: int = 0
    taken: bool = True
    refused: str | None = None
    due_ns: int | None = None
    released_ns: int | None = None
    phase_ns: int = 0
    periods: int = 1
    rested: int = 0
    served: int = 0
    decided: tuple[str, str] | None = None
    tick: MemberTick | None = None

    def end(self) -> None:
        """Stop deciding for the member: an open tick does not count as a release."""
        if self.tick is not None:
            self.tick.done = True
        self.tick = self.due_ns = None

    def blind(self) -> None:
        """Forget observations and active calls: after a lost connection they are outdated."""
        self.end()
        self.newest = self.decided = self.released_ns = None
        self.policy.epoch(-self.policy.hold_ns)

    @property
    def period_ns(self) -> int:
        """The time until the next release: one period, or several while nothing happens, but at most half of the
        time-to-live."""
        terms, longest = self.terms, self.terms.period_ns * self.periods
        if self.periods > 1 and terms.ttl_ms:
            longest = max(terms.period_ns, min(longest, int(terms.ttl_ms * 5e5)))
        return longest

    @property
    def rests(self) -> bool:
        """Whether observation and instruction are the same as for the active decision."""
        look = self.newest
        if self.terms.every_tick or look is None:
            return False
        return self.decided == (look.text, self.terms.instruction)

    def stretch(self, unchanged: bool) -> None:
        """Set the periods until the next tick; `unchanged`: the last tick ended with a call or null."""
        self.periods = min(2 * self.periods, LONGEST) if unchanged and self.rests else 1

    def see(self, look: MemberLook, text: str, data: Any, now_ns: int) -> None:
        """Store a newer observation."""
        self.superseded += not self.taken
        self.seq, self.taken = look.seq, False
        self.newest = MemberSight(look.seq, look.t_ns, now_ns, text, data)


class Members:
    """All members. `terms` and `goal` apply to members without their own; `looks` counts observations."""

    def __init__(self, terms: Terms) -> None:
        assert terms.crowd is not None, "a crowd was negotiated"
        self.terms, self.limit = terms, terms.crowd.members
        self.goal = terms.config.instruction or terms.agent.instruction
        self.by_id: dict[str, CrowdMember] = {}
        self.looks = 0
        self._serials = itertools.count(1)

    def __iter__(self) -> Iterator[CrowdMember]:
        return iter(list(self.by_id.values()))

    def join(self, message: Join) -> tuple[list[CrowdMember], list[PartFault]]:
        """Return the members with new settings, and the refused parts of the message."""
        return _each(self._join, message.members, message.faults)

    def _join(self, part: Member) -> CrowdMember:
        terms, known = self._terms_of(part), self.by_id.get(part.id)
        if known is not None and part.epoch < known.epoch:
            problem = f"epoch {part.epoch} of {echo(part.id)!r} has ended: the member is in epoch {known.epoch}."
            raise WireError(Code.EPOCH, problem, "Count up the epochs of a member.", field="epoch")
        if known is not None and part.epoch == known.epoch:
            known.terms = terms
            return known
        if known is None and len(self.by_id) >= self.limit:
            problem = f"The crowd has {self.limit} members, as many as it may."
            raise WireError(Code.BUSY, problem, "Let another one leave first.", field="id", retryable=True)
        if known is not None:
            known.end()  # a new epoch starts
        history = deque[str](maxlen=max(self.terms.agent.history, 1))
        member = CrowdMember(part.id, part.epoch, terms, next(self._serials), self._policy(), history)
        member.blind()
        self.by_id[part.id] = member
        return member

    def _policy(self) -> FallbackPolicy:
        """Return a member's fallback policy: hold the call where a miss would end a run with one agent."""
        on_miss = self.terms.config.on_miss
        return FallbackPolicy("safe" if on_miss == "safe" else "hold", round(self.terms.hold_ms * 1e6))

    def _terms_of(self, member: Member) -> MemberTerms:
        """Return the settings of a member. Raises WireError naming the invalid field."""
        config, hz_max = self.terms.config, self.terms.options.hz_max
        hz = config.hz if member.hz is None else member.hz
        if hz > hz_max:
            raise WireError(Code.INVALID, f"hz {hz:g} is above {hz_max:g}.", "Ask for less.", field="hz")
        period_ns = round(1e9 / hz)
        if member.deadline_ms is not None and not 0 < member.deadline_ms <= period_ns / 1e6:
            problem = f"deadline_ms {member.deadline_ms:g} is not in its period of {period_ns / 1e6:g} ms."
            raise WireError(Code.INVALID, problem, "Leave it out for the period.", field="deadline_ms")
        deadline_ms = config.deadline_ms if member.deadline_ms is None else member.deadline_ms
        deadline_ns = period_ns if deadline_ms is None else min(period_ns, round(deadline_ms * 1e6))
        ttl_ms = self.terms.hello.ttl_ms if member.ttl_ms is None else member.ttl_ms
        if ttl_ms is None:
            ttl_ms = max(500.0, (2.5 * period_ns + deadline_ns) / 1e6)
        goal = self.goal if member.instruction is None else member.instruction
        if not goal.strip():
            raise WireError(Code.INSTRUCTION, "The instruction is empty.", "Say what to do.", field="instruction")
        safe_calls = self._safe_calls(member)
        return MemberTerms(goal, period_ns, deadline_ns, ttl_ms, member.priority, member.every_tick, safe_calls)

    def _safe_calls(self, member: Member) -> list[FunctionCall] | None:
        agent = self.terms.agent
        if member.safe_calls is None:
            return wire_calls(agent.fallback.safe_calls)
        legal_calls(agent.tools, member.safe_calls)
        return member.safe_calls

    def leave(self, message: Leave) -> None:
        """Remove members that leave the crowd."""
        for name in message.ids:
            if (member := self.by_id.pop(name, None)) is not None:
                member.end()

    def observe(self, message: ObserveMany, now_ns: int) -> tuple[list[CrowdMember], list[PartFault]]:
        """Return the members with new observations, and the refused parts of the message."""
        return _each(partial(self._observe, now_ns=now_ns), message.looks, message.faults)

    def _observe(self, part: MemberLook, now_ns: int) -> CrowdMember:
        member = self.by_id.get(part.id)
        if member is None:
            problem = f"There is no member {echo(part.id)!r}."
            raise WireError(Code.STATE, problem, "Let it join first.", field="id", retryable=True)
        if part.seq <= member.seq:
            problem = f"seq {part.seq} does not grow: the last was {member.seq}."
            raise WireError(
                Code.SEQUENCE, problem, "Count up by one with every observation of the member.", field="seq"
            )
        if part.text is None and part.data is None:
            raise WireError(Code.INVALID, "The observation is empty.", "Give text or data.", field="text")
        data = RemoteData.of(part.data, part.text)
        try:
            text = self.terms.agent.observe(data)
        except Exception as error:
            problem = f"The agent cannot read it ({type(error).__name__}: {error})."
            hint = "Send the fields of `data` that the agent reads, or `text`."
            raise WireError(Code.INVALID, " ".join(problem.split())[:300], hint, field="data") from None
        self.looks += 1
        member.see(part, text, data, now_ns)
        return member


def _each(
    take: Callable[[Any], CrowdMember], parts: Sequence[Member] | Sequence[MemberLook], faults: Sequence[PartFault]
) -> tuple[list[CrowdMember], list[PartFault]]:
    """Process each part of a message; return the members and the refused parts, with the undecodable `faults`."""
    taken, refused = list[CrowdMember](), [*faults]
    for part in parts:
        try:
            taken.append(take(part))
        except WireError as error:
            refused.append(PartFault(part.id, getattr(part, "seq", None), error))
    return taken, refused


def crowd_terms(terms: Terms) -> Terms:
    """Return the session's settings without those that a crowd cannot have. Raises WireError."""
    if isinstance(terms.source, EndpointSource | PolicySource):
        hint = "Name a model that this server has."
        raise WireError(Code.MODEL, "A remote model cannot decide for a crowd.", hint, field="model", fatal=True)
    hello, warnings = terms.hello, list(terms.warnings)
    wishes = {"pacing": hello.pacing == "client", "calls_per_tick": hello.calls_per_tick}
    for name in (name for name, wished in wishes.items() if wished):
        hint = "Leave it out: the server sets the pace."
        raise WireError(Code.INVALID, f"A crowd has no {name} {getattr(hello, name)!r}.", hint, field=name, fatal=True)
    missing = sorted({EXECUTED, PICTURES} & {*hello.capabilities})
    missing += [name for name in ("interpreter", "hysteresis") if getattr(terms.config, name) is not None]
    if missing:
        warnings.append(f"A crowd has no {', '.join(missing)}.")
    if confirmed := sorted({*terms.config.confirm, *terms.agent.confirm}):
        warnings.append(f"A crowd has no confirmation: calls of {', '.join(confirmed)} are held back.")
    config = replace(terms.config, hysteresis=None, interpreter=None)
    crowd = CrowdTerms(members=min(MEMBERS, (hello.crowd and hello.crowd.members) or MEMBERS), parts=PARTS)
    return replace(terms, config=config, source=crowd_source(terms.source), warnings=tuple(warnings), crowd=crowd)
