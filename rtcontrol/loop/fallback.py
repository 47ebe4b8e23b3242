"""The active call: how long it is held, what acts after it, and what hysteresis compares with it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from rtcontrol.envs.base import Acknowledgement, Emission
from rtcontrol.hosts.protocol import DecisionReply
from rtcontrol.models.call import Call
from rtcontrol.records import Tick

# What to do where no fresh call acts.
Measure = Literal["none", "hold", "safe", "stop"]
Status = Literal["fresh", "held", "safe"]


class FallbackPolicy:
    """Keeps the age of the active call. Times are the world's (`ReleaseGrid.world_ns`), in nanoseconds.

    Under `hold`, a miss leaves the call active until it has not been renewed for `hold_ns`; then the safe call is
    demanded, also between two ticks: at `expires_ns` (None: no call is being held). It is not demanded again until a
    fresh call acted or a new epoch started; whether it is active is the actuator's to say.
    """

    def __init__(self, on_miss: str, hold_ns: int) -> None:
        self._on_miss, self.hold_ns = on_miss, hold_ns
        self.limit_ns = hold_ns  # until then the active call may be held
        self.expires_ns: int | None = None
        self.safe = False  # the safe call took over
        self.suspended = False  # people hold the calls back: the safe call is active, whatever is missed

    def renew(self, now_ns: int) -> None:
        """A fresh decision was made: its call, or the null function's consent to the active call."""
        self.limit_ns, self.expires_ns = now_ns + self.hold_ns, None

    def fresh_call(self, now_ns: int) -> None:
        """A fresh call was executed; the safe call is no longer active."""
        self.limit_ns, self.expires_ns, self.safe = now_ns + self.hold_ns, None, False

    epoch = fresh_call  # a new world: nothing is active, and the hold limit runs from here

    def suspend(self, now_ns: int, lasting: bool) -> None:
        """The safe call took over at a person's word, which still holds (`lasting`) or not any more; after a resume
        nothing older may be held."""
        self.suspended, self.safe = lasting, True
        self.limit_ns, self.expires_ns = now_ns, None

    def miss(self, now_ns: int) -> Measure:
        """Return what to do where there is no fresh call."""
        if self.suspended:
            return self._take_over()  # in a new epoch; else it has
        if self._on_miss == "stop":
            return "stop"
        return self.unsure(now_ns) if self._on_miss == "hold" else self._take_over()

    def unsure(self, now_ns: int) -> Measure:
        """Return what to do where the confidence gate withholds a call: the active one is held, but not renewed."""
        if now_ns < self.limit_ns:
            self.expires_ns = self.limit_ns
            return "hold"
        return self._take_over()

    def expire(self, now_ns: int) -> Measure:
        """Return what to do where the hold limit may be reached."""
        return self._take_over() if self.expires_ns is not None and now_ns >= self.expires_ns else "none"

    def _take_over(self) -> Measure:
        self.expires_ns = None
        if self.safe:
            return "none"
        self.safe = True
        return "safe"


class FallbackState:
    """The policy, and what an emitting world (`emits`) receives of each tick. `last`: the last tick emitted."""

    def __init__(self, policy: FallbackPolicy, emits: bool, safe_calls: tuple[Call, ...]) -> None:
        self.policy = policy
        self.emits = emits
        self.last: Tick | None = None
        self._safe_calls = safe_calls

    def emission(
        self,
        tick: Tick,
        status: Status,
        call: Call | None = None,
        reply: DecisionReply | None = None,
        cause: str | None = None,
        error: str | None = None,
        more: bool = False,
    ) -> Emission | None:
        """Return a tick's emission; None where the world takes none. `more`: another one of the tick may follow."""
        self.last = tick
        if not self.emits:
            return None
        decision = None if reply is None else reply.decision
        safe_calls = self._safe_calls if status == "safe" else ()
        return Emission(
            tick=tick.k,
            epoch=tick.epoch,
            seq=tick.seq,
            deadline_ns=tick.deadline_ns,
            status=status,
            call=next(iter(safe_calls), call),
            confidence=None if decision is None else min(decision.confidence.values(), default=None),
            decide_ns=None if reply is None else reply.decide_ns,
            cause=cause,
            error=error,
            safe_calls=safe_calls,
            mistake=None if reply is None else reply.mistake,
            waited_ns=tick.waited_ns + (0 if reply is None else reply.ahead_ns),
            n=len(tick.calls),
            more=more,
        )

    def parting(self, tick: Tick | None = None) -> Emission | None:
        """Return the emission of a safe call between two ticks: it is of the last tick, else of this one."""
        last = self.last or tick
        return None if last is None else self.emission(last, "safe")


class ActiveCall:
    """The call that hysteresis compares with. None before a call acted, in another epoch, by another instruction, where
    a client did not carry the call out, and where the safe call took over."""

    def __init__(self, policy: FallbackPolicy) -> None:
        self._policy = policy
        self._call: tuple[int, tuple[int, str], Call] | None = None  # tick, epoch and instruction

    def acted(self, tick: Tick, call: Call) -> None:
        """The tick's call is active."""
        self._call = tick.k, (tick.epoch, tick.request.instruction), call

    def carried_out(self, acks: Iterable[Acknowledgement]) -> None:
        """A client acknowledged calls."""
        for ack in acks:
            if self._call is not None and self._call[0] == ack.tick and ack.status != "executed" and ack.why != "safe":
                self._call = None

    def standing(self, epoch: int, instruction: str) -> Call | None:
        """Return the active call for a decision of this epoch, by this instruction."""
        if self._policy.safe:
            self._call = None
        if self._call is None or self._call[1] != (epoch, instruction):
            return None
        return self._call[2]
