"""What becomes of the members' ticks: to the record, and with it to the accounts."""

from __future__ import annotations

from typing import Any

from rtcontrol.hosts.crowd import CharacterDecision
from rtcontrol.models.call import Call
from rtcontrol.serve.crowd.member import CrowdMember, MemberTick
from rtcontrol.telemetry.account import Account
from rtcontrol.telemetry.causes import Cause
from rtcontrol.telemetry.recorder import Recorder

KnownCause = tuple[Cause, str | None]


class CrowdEvents:
    """Emits the events of a run; `t_s` counts from the first release. The `account` is of what was emitted."""

    def __init__(self, recorder: Recorder, observations: bool) -> None:
        self.recorder, self.account = recorder, Account()
        recorder.fold = self.account.add
        self.account.add({"header": recorder.header})
        self.emit, self._observations = recorder.write, observations
        self.t0_ns = 0

    def t_s(self, t_ns: int) -> float:
        """Seconds since the first release."""
        return round((t_ns - self.t0_ns) / 1e9, 6)

    def released(self, t_ns: int) -> None:
        """The first release of all was then, unless there was one before."""
        if not self.t0_ns:
            self.t0_ns = t_ns
            self.emit({"origin_ns": t_ns})

    def settled(
        self,
        tick: MemberTick,
        kind: str,
        now_ns: int,
        found: CharacterDecision | None = None,
        decide_ns: int = 0,
        cause: KnownCause | None = None,
        **more: Any,
    ) -> None:
        """One tick is over."""
        member, look, t_s = tick.member, tick.look, self.t_s(tick.release_ns)
        if self._observations and look is not None and tick.asked:
            seen: dict[str, Any] = {"k": tick.k, "seq": look.seq, "epoch": member.epoch, "member": member.id}
            seen |= {"t_s": self.t_s(look.arrived_ns), "observation": look.text, "instruction": tick.instruction}
            self.emit(seen | {"history": list(tick.history)})
        line: dict[str, Any] = {"k": tick.k, "t_s": t_s, "kind": kind, "member": member.id, "epoch": member.epoch}
        line["superseded"], member.superseded = member.superseded, 0
        line["wake_ms"] = _ms(max(0, tick.woke_ns - tick.release_ns))
        if cause is not None:
            line["cause"] = cause[0].value
            line |= {} if cause[1] is None else {"subcause": cause[1]}
        if look is not None:
            line |= {"seq": look.seq, "age_ms": _ms(now_ns - look.arrived_ns)}
        decision = None if found is None else found.decision
        if decision is not None:
            line |= {"decide_ms": _ms(decide_ns), "passes": decision.forward_passes, "tokens": decision.tokens}
            line |= {"reused": decision.reused_tokens, "latency_ms": _ms(now_ns - tick.release_ns)}
            if decision.confidence:
                line["confidence"] = round(min(decision.confidence.values()), 6)
            if decision.call is not None:
                line["call"] = decision.call.text()
        if member.rested:
            line["rested"], member.rested = member.rested, 0
        if tick.skipped:
            line |= {"skipped": tick.skipped, "skip_cause": Cause.WAKE.value, "skip_subcause": "scheduler"}
        self.emit(line | more)

    def called(self, tick: MemberTick, call: Call, now_ns: int) -> None:
        """A fresh call left."""
        told = {"called": call.name, "arguments": dict(call.arguments), "k": tick.k, "epoch": tick.member.epoch}
        self.emit({**told, "why": "fresh", "t_s": self.t_s(now_ns), "member": tick.member.id})

    def safe(self, member: CrowdMember, why: str, now_ns: int) -> None:
        """The safe calls of a member left."""
        calls = member.terms.safe_calls or []
        text = "; ".join(Call(call.name, call.arguments).text() for call in calls) or None
        line = {"safe": text, "why": why, "t_s": self.t_s(now_ns), "attempt": 1, "in_force": True}
        self.emit({**line, "member": member.id})


def _ms(ns: int) -> float:
    return round(ns / 1e6, 4)
