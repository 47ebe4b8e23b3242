"""What was agreed with a crowd's client, and what each of its members is decided by."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rtcontrol.agents import InvalidCall
from rtcontrol.agents.agent import Agent
from rtcontrol.envs.remote_parts import wire_calls
from rtcontrol.hosts.crowd import crowd_source
from rtcontrol.hosts.policy_api import PolicySource
from rtcontrol.hosts.remote_api import EndpointSource
from rtcontrol.loop.call_in_force import FallbackPolicy
from rtcontrol.loop.config import RunConfig
from rtcontrol.models.call import Call
from rtcontrol.serve.negotiate import EXECUTED, Terms
from rtcontrol.serve.refusals import illegal_safe_call
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.base import FunctionCall
from rtcontrol_client.wire.crowd import MEMBERS, PARTS, CrowdTerms, Member
from rtcontrol_client.wire.pictures import PICTURES


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
    """What members have that bring nothing else; `ttl_ms` is the hello's, `hz_max` the server's."""

    agent: Agent
    config: RunConfig
    ttl_ms: float | None
    instruction: str
    hz_max: float

    def policy(self) -> FallbackPolicy:
        """Return a member's policy. A run that would end with a miss holds: the others' go on."""
        hold_ms = self.agent.fallback.hold_ms if self.config.hold_ms is None else self.config.hold_ms
        return FallbackPolicy("safe" if self.config.on_miss == "safe" else "hold", round(hold_ms * 1e6))

    def of(self, member: Member) -> MemberTerms:
        """Return a member's terms. Raises WireError naming the field of the part."""
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
        goal = self.instruction if member.instruction is None else member.instruction
        if not goal.strip():
            raise WireError(Code.INSTRUCTION, "instruction says nothing.", "Say what to do.", field="instruction")
        safe_calls = wire_calls(self.agent.fallback.safe_calls)
        if member.safe_calls is not None:
            safe_calls = [self._legal(i, call) for i, call in enumerate(member.safe_calls)]
        return MemberTerms(goal, period_ns, deadline_ns, ttl_ms, member.priority, member.every_tick, safe_calls)

    def _legal(self, i: int, call: FunctionCall) -> FunctionCall:
        try:
            legal = self.agent.tools.validate(Call(call.name, dict(call.arguments)))
        except InvalidCall as error:
            raise illegal_safe_call(error, f"safe_calls[{i}]") from None
        return FunctionCall(name=legal.name, arguments=dict(legal.arguments))


def crowd_terms(terms: Terms) -> Terms:
    """Return what of a session's terms is a crowd's. Raises WireError."""
    if isinstance(terms.source, EndpointSource | PolicySource):
        remedy = "Name a model that this server has."
        raise WireError(Code.MODEL, "A crowd is not decided elsewhere.", remedy, field="model", fatal=True)
    hello, warnings = terms.hello, list(terms.warnings)
    for name, wanted in (("pacing", hello.pacing == "client"), ("calls_per_tick", hello.calls_per_tick)):
        if wanted:
            what, remedy = f"A crowd has no {name} {getattr(hello, name)!r}.", "Leave it out: the server sets the pace."
            raise WireError(Code.INVALID, what, remedy, field=name, fatal=True)
    if unused := sorted({EXECUTED, PICTURES} & {*hello.capabilities}):
        warnings.append(f"A crowd has no {', '.join(unused)}: its history is of calls that were sent.")
    if terms.config.interpreter is not None:
        warnings.append("Instructions of a crowd are taken as they are said.")
    if terms.config.hysteresis is not None:
        warnings.append("A crowd has no hysteresis: each value follows its decision.")
    if named := sorted({*terms.config.confirm, *terms.agent.confirm}):
        warnings.append(f"Nobody is asked for a crowd: calls of {', '.join(named)} are held back.")
    config = replace(terms.config, hysteresis=None, interpreter=None)
    crowd = CrowdTerms(members=min(MEMBERS, (hello.crowd and hello.crowd.members) or MEMBERS), parts=PARTS)
    return replace(terms, config=config, source=crowd_source(terms.source), warnings=tuple(warnings), crowd=crowd)
