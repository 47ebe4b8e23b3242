"""The members of a crowd (agents that share one client), with their settings, observations, active calls and ticks."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rtcontrol.envs.remote_core import RemoteData, memory_bytes, to_wire_calls
from rtcontrol.hosts.deciders import crowd_source
from rtcontrol.hosts.policy_api import PolicySource
from rtcontrol.hosts.remote_api import EndpointSource
from rtcontrol.loop.active import FallbackPolicy, echo
from rtcontrol.records import NOTHING, Tick
from rtcontrol.serve.negotiate import EXECUTED, SessionTerms, validated_calls
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.messages import (
    MEMBERS,
    PARTS,
    CrowdTerms,
    FunctionCall,
    Join,
    Leave,
    Member,
    ObservationPart,
    ObserveMany,
    RefusedPart,
)
from rtcontrol_client.wire.pictures import PICTURES

MAX_BYTES = 32 << 20  # maximum bytes of the newest observations and settings of all members
MAX_PERIODS = 8  # a member whose observation does not change still gets a tick every 8 periods


@dataclass(frozen=True, slots=True)
class MemberTerms:
    """The negotiated settings of a member. If `ttl_ms` is 0, calls do not expire."""

    instruction: str
    period_ns: int
    deadline_ns: int
    ttl_ms: float
    priority: int
    every_tick: bool
    safe_calls: list[FunctionCall] | None


@dataclass(frozen=True, slots=True)
class MemberObservation:
    """A member's observation. `t_ns` is the client's time, `arrived_ns` the server's."""

    seq: int
    t_ns: int
    arrived_ns: int
    text: str
    data: Any


@dataclass(slots=True, eq=False)
class MemberTick(Tick):
    """A tick of a member. `done`: whether the tick has ended."""

    member: CrowdMember = field(kw_only=True)
    observation: MemberObservation | None = None  # the observation for which the decision was requested
    done: bool = False

    @property
    def is_requested(self) -> bool:
        """Return whether a decision was requested for this tick."""
        return self.request is not NOTHING

    def set_observation(self, observation: MemberObservation) -> None:
        """Set the observation on which the tick's decision is based."""
        self.observation, self.seq, self.capture_ns = observation, observation.seq, observation.arrived_ns


@dataclass(slots=True, eq=False)
class CrowdMember:
    """The state of a crowd's member in one epoch. A new epoch of the member gets a new object."""

    id: str
    epoch: int
    terms: MemberTerms
    serial: int  # a number that is unique in the crowd
    policy: FallbackPolicy
    history: deque[str]  # the member's newest calls, as texts
    newest: MemberObservation | None = None
    seq: int = -1  # sequence number of the newest observation
    superseded: int = 0  # number of observations since the last tick that were replaced unused
    used: bool = True  # whether a tick used the newest observation
    reported_text: str | None = None  # text of the last observation about which an error was sent
    due_ns: int | None = None  # when the next tick is due; None if no tick is scheduled
    released_ns: int | None = None  # when the last tick was released
    phase_ns: int = 0  # delay of the second tick, which spreads the members' ticks over the period
    periods: int = 1  # number of periods from one tick to the next
    rested: int = 0  # number of ticks omitted since the last tick because of an unchanged observation
    served: int = 0  # the crowd's count of requested ticks at this member's last request
    decided: tuple[str, str] | None = None  # (observation text, instruction) of the active decision
    tick: MemberTick | None = None  # the unfinished tick
    bytes: tuple[int, int] = (0, 0)  # (bytes of the settings, bytes of the newest observation)

    def end_ticks(self) -> None:
        """Drop the member's scheduled tick and its open tick. The open tick is not counted."""
        if self.tick is not None:
            self.tick.done = True
        self.tick = self.due_ns = None

    def forget_observations(self) -> None:
        """Remove the newest observation and the active call, which are outdated after a lost connection."""
        self.end_ticks()
        self.newest = self.decided = self.released_ns = None
        self.policy.start_epoch(-self.policy.hold_ns)

    @property
    def period_ns(self) -> int:
        """Return the time between two ticks: `periods` periods, but at most half of a call's time to live."""
        terms, longest = self.terms, self.terms.period_ns * self.periods
        if self.periods > 1 and terms.ttl_ms:
            longest = max(terms.period_ns, min(longest, int(terms.ttl_ms * 5e5)))
        return longest

    @property
    def is_unchanged(self) -> bool:
        """Return whether the newest observation and instruction are those of the active decision."""
        observation = self.newest
        if self.terms.every_tick or observation is None:
            return False
        return self.decided == (observation.text, self.terms.instruction)

    def update_rate(self, has_decision: bool) -> None:
        """Set the number of periods until the next tick. `has_decision`: whether the last tick got a decision."""
        self.periods = min(2 * self.periods, MAX_PERIODS) if has_decision and self.is_unchanged else 1

    def store_observation(self, observation: ObservationPart, text: str, data: Any, now_ns: int) -> None:
        """Store an observation, with its `text` and `data`, as the newest observation."""
        self.superseded += not self.used
        self.seq, self.used = observation.seq, False
        self.newest = MemberObservation(observation.seq, observation.t_ns, now_ns, text, data)


class Members:
    """All members of a crowd. `terms` and `goal`: the settings and the instruction of members that set no others."""

    def __init__(self, terms: SessionTerms) -> None:
        assert terms.crowd is not None, "these are the terms of a crowd"
        self.terms, self.limit = terms, terms.crowd.members
        self.goal = terms.config.instruction or terms.agent.instruction
        self.by_id: dict[str, CrowdMember] = {}
        self.observations = 0  # number of accepted observations
        self._bytes = 0  # bytes of all members' observations and settings
        self._serials = itertools.count(1)

    def __iter__(self) -> Iterator[CrowdMember]:
        return iter(list(self.by_id.values()))

    def join_members(self, message: Join) -> tuple[list[CrowdMember], list[RefusedPart]]:
        """Add members or change their settings. Return these members, and the refused parts of the message."""
        return _process_parts(self._join_member, message.members, message.faults)

    def _join_member(self, part: Member) -> CrowdMember:
        terms, member = self._negotiate_member(part), self.by_id.get(part.id)
        size = memory_bytes(*(value for value in (part.instruction, part.safe_calls) if value is not None))
        if member is not None and part.epoch < member.epoch:
            problem = f"Epoch {part.epoch} of {echo(part.id)!r} has ended. The member is in epoch {member.epoch}."
            raise WireError(Code.EPOCH, problem, "Increase the epoch number each time.", field="epoch")
        if member is not None and part.epoch == member.epoch:
            self._reserve_memory(member, (size, member.bytes[1]), "instruction")
            member.terms = terms
            return member
        if member is None and len(self.by_id) >= self.limit:
            problem = f"The crowd already has {self.limit} members, which is the maximum."
            raise WireError(Code.BUSY, problem, "Let another member leave first.", field="id", retryable=True)
        history = deque[str](maxlen=max(self.terms.agent.history, 1))
        joined = CrowdMember(part.id, part.epoch, terms, next(self._serials), self._new_policy(), history)
        joined.forget_observations()
        self._reserve_memory(joined, (size, 0), "instruction")
        self._remove(part.id)  # a member that joins again starts a new epoch
        self.by_id[part.id] = joined
        return joined

    def _reserve_memory(self, member: CrowdMember, size: tuple[int, int], field: str) -> None:
        """Record the memory of a member. Raises WireError (too_large) if all members would have too much."""
        more = sum(size) - sum(member.bytes)
        if more > 0 and self._bytes + more > MAX_BYTES:
            problem = f"The members' instructions and observations together take more than {MAX_BYTES >> 20} MiB."
            raise WireError(Code.TOO_LARGE, problem, "Send shorter instructions and observations.", field=field)
        self._bytes += more
        member.bytes = size

    def _remove(self, name: str) -> None:
        if (member := self.by_id.pop(name, None)) is not None:
            member.end_ticks()
            self._bytes -= sum(member.bytes)

    def _new_policy(self) -> FallbackPolicy:
        """Return a new fallback policy. If `on_miss` is "stop", use "hold": a member's miss cannot stop the run."""
        on_miss = self.terms.config.on_miss
        return FallbackPolicy("safe" if on_miss == "safe" else "hold", round(self.terms.hold_ms * 1e6))

    def _negotiate_member(self, member: Member) -> MemberTerms:
        """Check what a member requests, and return the terms for it. Raises WireError with the invalid field."""
        config, hz_max = self.terms.config, self.terms.options.hz_max
        hz = config.hz if member.hz is None else member.hz
        if hz > hz_max:
            problem = f"hz {hz:g} is above the server's limit of {hz_max:g}."
            raise WireError(Code.INVALID, problem, "Send a smaller hz.", field="hz")
        period_ns = round(1e9 / hz)
        if member.deadline_ms is not None and not 0 < member.deadline_ms <= period_ns / 1e6:
            problem = f"deadline_ms {member.deadline_ms:g} is not within the period of {period_ns / 1e6:g} ms."
            raise WireError(Code.INVALID, problem, "Omit it to use the period.", field="deadline_ms")
        deadline_ms = config.deadline_ms if member.deadline_ms is None else member.deadline_ms
        deadline_ns = period_ns if deadline_ms is None else min(period_ns, round(deadline_ms * 1e6))
        ttl_ms = self.terms.hello.ttl_ms if member.ttl_ms is None else member.ttl_ms
        if ttl_ms is None:
            ttl_ms = max(500.0, (2.5 * period_ns + deadline_ns) / 1e6)
        goal = self.goal if member.instruction is None else member.instruction
        if not goal.strip():
            raise WireError(Code.INSTRUCTION, "The instruction is empty.", "Describe the task.", field="instruction")
        safe_calls = self._safe_calls(member)
        return MemberTerms(goal, period_ns, deadline_ns, ttl_ms, member.priority, member.every_tick, safe_calls)

    def _safe_calls(self, member: Member) -> list[FunctionCall] | None:
        agent = self.terms.agent
        if member.safe_calls is None:
            return to_wire_calls(agent.fallback.safe_calls)
        validated_calls(agent.tools, member.safe_calls)
        return member.safe_calls

    def remove_members(self, message: Leave) -> None:
        """Remove the members that the message names."""
        for name in message.ids:
            self._remove(name)

    def store_observations(self, message: ObserveMany, now_ns: int) -> tuple[list[CrowdMember], list[RefusedPart]]:
        """Store the observations of a message. Return their members, and the refused parts of the message."""
        return _process_parts(partial(self._store_part, now_ns=now_ns), message.looks, message.faults)

    def _store_part(self, part: ObservationPart, now_ns: int) -> CrowdMember:
        member = self.by_id.get(part.id)
        if member is None:
            problem = f"The crowd has no member {echo(part.id)!r}."
            raise WireError(Code.STATE, problem, "Send a join for this member first.", field="id", retryable=True)
        if part.seq <= member.seq:
            problem = f"seq {part.seq} is not higher than the member's last seq, {member.seq}."
            hint = "Increase seq by one with every observation of the member."
            raise WireError(Code.SEQUENCE, problem, hint, field="seq")
        if part.text is None and part.data is None:
            raise WireError(Code.INVALID, "The observation is empty.", "Send text or data.", field="text")
        data = RemoteData.of(part.data, part.text)
        try:
            text = self.terms.agent.observe(data)
        except Exception as error:
            problem = f"The agent cannot read the observation ({type(error).__name__}: {error})."
            hint = "Send the fields of `data` that the agent reads, or `text`."
            raise WireError(Code.INVALID, " ".join(problem.split())[:300], hint, field="data") from None
        size = member.bytes[0], memory_bytes(text, data)
        self._reserve_memory(member, size, "text" if part.data is None else "data")
        self.observations += 1
        member.store_observation(part, text, data, now_ns)
        return member


def _process_parts(
    process: Callable[[Any], CrowdMember], parts: Sequence[Member | ObservationPart], faults: Sequence[RefusedPart]
) -> tuple[list[CrowdMember], list[RefusedPart]]:
    """Call `process` with each part of a message. Return the resulting members, and the refused parts: `faults`, and
    those for which `process` raised a WireError."""
    members, refused = list[CrowdMember](), [*faults]
    for part in parts:
        try:
            members.append(process(part))
        except WireError as error:
            refused.append(RefusedPart(part.id, getattr(part, "seq", None), error))
    return members, refused


def crowd_terms(terms: SessionTerms) -> SessionTerms:
    """Return the session's settings, adapted to a crowd. Settings that a crowd cannot have raise WireError, or are
    removed with a warning."""
    if isinstance(terms.source, EndpointSource | PolicySource):
        hint = "Choose a model that runs on this server."
        raise WireError(Code.MODEL, "A remote model cannot decide for a crowd.", hint, field="model", fatal=True)
    hello, warnings = terms.hello, list(terms.warnings)
    unsupported = {"pacing": hello.pacing == "client", "calls_per_tick": hello.calls_per_tick}
    for name in (name for name, requested in unsupported.items() if requested):
        problem, hint = f"A crowd cannot have {name} {getattr(hello, name)!r}.", f"Send hello without {name}."
        raise WireError(Code.INVALID, problem, hint, field=name, fatal=True)
    missing = sorted({EXECUTED, PICTURES} & {*hello.capabilities})
    missing += [name for name in ("interpreter", "hysteresis") if getattr(terms.config, name) is not None]
    if missing:
        warnings.append(f"Not available for a crowd: {', '.join(missing)}.")
    if confirmed := sorted({*terms.config.confirm, *terms.agent.confirm}):
        warnings.append(f"A crowd cannot confirm calls: those of {', '.join(confirmed)} are withheld.")
    config = replace(terms.config, hysteresis=None, interpreter=None)
    crowd = CrowdTerms(members=min(MEMBERS, (hello.crowd and hello.crowd.members) or MEMBERS), parts=PARTS)
    return replace(terms, config=config, source=crowd_source(terms.source), warnings=tuple(warnings), crowd=crowd)
