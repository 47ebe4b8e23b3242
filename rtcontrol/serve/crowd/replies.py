"""What the client of a crowd is told: what members are to do, and what could not be decided upon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from rtcontrol.hosts.crowd import CharacterDecision
from rtcontrol.serve.crowd.accounts import CrowdEvents
from rtcontrol.serve.crowd.member import NEVER, CrowdMember, MemberTick
from rtcontrol.serve.crowd.roster import SHOWN
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.crowd import MemberCall, PartFault


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
