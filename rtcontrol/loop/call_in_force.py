"""The call in force: how long it is held, what acts after it, and what hysteresis compares with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from rtcontrol.envs.base import Acknowledgement
from rtcontrol.models.call import Call
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

    def expire(self, now_ns: int, called: bool = False) -> Action:
        """Return what to do where the hold limit is reached.

        `called`: a call was ordered since the safe call was demanded. It may have failed and acted in part, so the safe
        call is demanded again, although it is active by what is known here.
        """
        if self.expires_ns is None or now_ns < self.expires_ns:
            return "none"
        action = self._take_over()
        return "safe" if called else action

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

    def acted(self, tick: Tick, call: Call) -> None:
        """The tick's call is in force."""
        self._call = tick.k, (tick.epoch, tick.request.instruction), call

    def carried_out(self, words: Iterable[Acknowledgement]) -> None:
        """What a client says became of calls."""
        for one in words:
            if self._call is not None and self._call[0] == one.tick and one.status != "executed" and one.why != "safe":
                self._call = None

    def standing(self, epoch: int, instruction: str) -> Call | None:
        """For a decision of this epoch, by this instruction."""
        if self._policy.safe:
            self._call = None
        if self._call is None or self._call[1] != (epoch, instruction):
            return None
        return self._call[2]
