"""What becomes of the members' ticks: to the record, and with it to the accounts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from rtcontrol.hosts.crowd import CharacterDecision
from rtcontrol.models.call import Call
from rtcontrol.serve.crowd.member import NEVER, SHOWN, CrowdMember, MemberTick
from rtcontrol.telemetry.account import Account
from rtcontrol.telemetry.causes import Cause
from rtcontrol.telemetry.recorder import Recorder
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.crowd import MemberCall, PartFault

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


class CrowdReplies:
    """Gathers them until `flush`. `k` is the number of the newest tick, or of a safe call between ticks."""

    def __init__(
        self,
        events: CrowdEvents,
        send: Callable[[list[MemberCall]], None],
        refuse: Callable[[WireError], None],
    ) -> None:
        self._events, self._send, self._refuse = events, send, refuse
        self.k = -1
        self._out: list[MemberCall] = []
        self._faults: list[PartFault] = []

    def say(self, tick: MemberTick, status: Literal["fresh", "held"], **fields: Any) -> None:
        """What became of a tick."""
        member, look = tick.member, tick.look
        told: dict[str, Any] = {"id": member.id, "tick": tick.k, "epoch": member.epoch, "status": status, **fields}
        if look is not None:
            told |= {"seq_obs": look.seq, "t_obs_ns": look.t_ns}
        self._out.append(MemberCall(ttl_ms=member.terms.ttl_ms, **told))

    def act_safe(
        self, member: CrowdMember, why: str, now: int, tick: MemberTick | None, cause: str | None = None
    ) -> None:
        """The member's safe calls, for its tick, or between two."""
        if tick is None:
            self.k += 1  # of no release
        if member.standing != "safe" and member.look is not None:
            self._events.safe(member, why, now)
        member.standing, member.held_until_ns, member.newest_decided = "safe", NEVER, None
        calls = member.terms.safe_calls
        made: dict[str, Any] = {"call": calls[0], "calls": calls} if calls else {}
        told: dict[str, Any] = {"id": member.id, "epoch": member.epoch, "status": "safe", **made}
        told |= {"tick": self.k if tick is None else tick.k, "cause": cause or why}
        self._out.append(MemberCall(ttl_ms=member.terms.ttl_ms, **told))

    def trouble(self, tick: MemberTick, found: CharacterDecision) -> None:
        """No decision was made of a look: told once for each text, which may be looked at in many ticks."""
        assert tick.look is not None, "it was decided upon"
        if tick.member.refused_text == tick.look.text:
            return
        tick.member.refused_text = tick.look.text
        what, remedy = found.mistake or (f"No decision was made of it ({found.error}).", "Go on observing.")
        code = Code.TOO_LARGE if found.mistake is not None else Code.DECODER
        self._faults.append(PartFault(tick.member.id, tick.look.seq, WireError(code, what, remedy, field="text")))

    def flush(self) -> None:
        """Tell what was gathered."""
        if self._out:
            out, self._out = self._out, []
            self._send(out)
        if self._faults:
            faults, self._faults = self._faults, []
            what = f"{len(faults)} look(s) could not be decided upon; those of the others were."
            parts = [fault.message_part() for fault in faults[:SHOWN]]
            self._refuse(WireError(faults[0].error.code, what, "`members` says why.", members=parts))
