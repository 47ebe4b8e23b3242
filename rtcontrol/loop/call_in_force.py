"""What hysteresis compares with: the call that is in force in the world, and what was preferred to it lately."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rtcontrol.envs.base import Acknowledgement
from rtcontrol.hosts.protocol import DecisionReply
from rtcontrol.loop.command import Tick
from rtcontrol.loop.fallback import FallbackPolicy
from rtcontrol.models.call import Call, Decision, Preferred, StandingCall

Scope = tuple[int, str]  # an epoch, and an instruction


class CallInForce:
    """Of one session, and its loop's alone. Nothing is in force before a call acted, in another epoch, by another
    instruction, where a client did not carry the call out, and where the safe call took over."""

    def __init__(self, policy: FallbackPolicy) -> None:
        self._policy = policy
        self._call: tuple[int, Scope, Call] | None = None
        self._preferred: tuple[int, Scope, Preferred] | None = None

    def acted(self, tick: Tick, call: Call) -> None:
        """The tick's call is in force."""
        self._call = tick.k, _scope(tick), call

    def decided(self, tick: Tick, decision: Decision | None) -> None:
        """What the tick's decision preferred, whether or not it acts."""
        if decision is not None and (self._preferred is None or tick.k >= self._preferred[0]):
            preferred = {} if decision.steadied is None else decision.steadied.preferred
            self._preferred = tick.k, _scope(tick), preferred

    def carried_out(self, words: Iterable[Acknowledgement]) -> None:
        """What a client says became of calls."""
        for one in words:
            if self._call is not None and self._call[0] == one.tick and one.status != "executed" and one.why != "safe":
                self._call = None

    def standing(self, epoch: int, instruction: str) -> StandingCall | None:
        """For a decision of this epoch, by this instruction."""
        if self._policy.safe:
            self._call = self._preferred = None
        if self._call is None or self._call[1] != (epoch, instruction):
            return None
        before = self._preferred
        return StandingCall(self._call[2], before[2] if before is not None and before[1] == self._call[1] else {})


def _scope(tick: Tick) -> Scope:
    return tick.epoch, tick.request.instruction


def what_was_kept(reply: DecisionReply | None) -> dict[str, Any]:
    """What a tick's event says of values that hysteresis kept."""
    decision = None if reply is None else reply.decision
    if decision is None or decision.steadied is None or not decision.steadied.kept:
        return {}
    return {"kept": {head: decision.steadied.preferred[head][0] for head in decision.steadied.kept}}
