"""The call in force: how long it is held, what acts after it, and what hysteresis compares with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from rtcontrol.envs.base import Acknowledgement
from rtcontrol.hosts.protocol import DecisionReply
from rtcontrol.models.call import Call, Decision, Preferred, StandingCall
from rtcontrol.records import Tick

Action = Literal["none", "hold", "safe", "stop"]


class FallbackPolicy:
    """Keeps the age of the call in force. Times are the world's (`LoopClock.effective_ns`), in nanoseconds.

    Under `hold`, a miss leaves the call in force until it has not been renewed for `hold_ns`; then the safe call is
    demanded, also between two ticks: at `expires_ns` (None: no call is being held). It is not demanded again until a
    fresh call acted or a new epoch began; whether it is in force is the actuator's to say.
    """

    def __init__(self, on_miss: str, hold_ns: int) -> None:
        self._on_miss, self.hold_ns = on_miss, hold_ns
        self.limit_ns = hold_ns  # until then the call in force may be held
        self.expires_ns: int | None = None
        self.safe = False  # the safe call took over
        self.suspended = False  # people hold the calls back: the safe call is in force, whatever is missed

    def epoch(self, now_ns: int) -> None:
        """A new world: nothing is in force, and the hold limit runs from here."""
        self.fresh_call(now_ns)

    def renew(self, now_ns: int) -> None:
        """A fresh decision was made: its call, or the null function's consent to the call in force."""
        self.limit_ns, self.expires_ns = now_ns + self.hold_ns, None

    def fresh_call(self, now_ns: int) -> None:
        """A fresh call was executed; the safe call is no longer in force."""
        self.limit_ns, self.expires_ns, self.safe = now_ns + self.hold_ns, None, False

    def suspend(self, now_ns: int, lasting: bool) -> None:
        """The safe call took over at a person's word, which is in force still (`lasting`) or not any more; when it goes
        on, nothing older may be held."""
        self.suspended, self.safe = lasting, True
        self.limit_ns, self.expires_ns = now_ns, None

    def miss(self, now_ns: int) -> Action:
        """No fresh call: what to do about it."""
        if self.suspended:
            return self._take_over()  # in a new epoch; else it has
        if self._on_miss == "stop":
            return "stop"
        return self.unsure(now_ns) if self._on_miss == "hold" else self._take_over()

    def unsure(self, now_ns: int) -> Action:
        """A call held back by the confidence gate leaves the call in force, but does not renew it."""
        if now_ns < self.limit_ns:
            self.expires_ns = self.limit_ns
            return "hold"
        return self._take_over()

    def expire(self, now_ns: int) -> Action:
        """The hold limit, if it is reached."""
        return self._take_over() if self.expires_ns is not None and now_ns >= self.expires_ns else "none"

    def _take_over(self) -> Action:
        self.expires_ns = None
        if self.safe:
            return "none"
        self.safe = True
        return "safe"


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
