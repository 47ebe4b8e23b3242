"""What is in force at the client, as its user sees it; the rule itself is bridges/wire/inforce.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rtcontrol.bridges.wire.inforce import InForce, Step
from rtcontrol.bridges.wire.messages import CallMessage, FunctionCall


@dataclass(frozen=True)
class Standing:
    """What to do now. `call` is None where there is no safe call: stop in your own way.

    `status`: `fresh` (the last decision's call is in force), `held` (the last tick brought none, the call before is
    still in force) or `safe`, with the `cause`. `age_ms` is since the observation that the call answers was captured,
    `left_ms` until it expires (None: never). `tick` names it to `executed()`; None: the client began it itself.
    """

    call: FunctionCall | None
    status: Literal["fresh", "held", "safe"]
    cause: str | None = None
    tick: int | None = None
    seq_obs: int | None = None
    confidence: float | None = None
    age_ms: float | None = None
    left_ms: float | None = None

    @property
    def name(self) -> str | None:
        """The function's name."""
        return self.call.name if self.call else None

    @property
    def arguments(self) -> dict[str, Any]:
        """The function's arguments by name."""
        return self.call.arguments if self.call else {}


def _all(safe_call: FunctionCall | None) -> tuple[FunctionCall, ...]:
    return () if safe_call is None else (safe_call,)


class Rule:
    """InForce, and where what is in force came from."""

    def __init__(self, safe_call: FunctionCall | None) -> None:
        self._in_force = InForce(0, _all(safe_call))
        self._origin: CallMessage | None = None  # of the call in force
        self._stamp_ns = 0  # of the observation that it was last renewed for
        self._held: str | None = None
        self._safe_tick: int | None = None
        self._cause = "no_call_yet"

    @property
    def epoch(self) -> int:
        return self._in_force.epoch

    @property
    def safe_call(self) -> FunctionCall | None:
        return next(iter(self._in_force.safe_calls), None)

    @property
    def last_tick(self) -> int:
        return self._in_force.last_tick

    @property
    def expires_ns(self) -> int | None:
        return self._in_force.expires_ns

    def begin(self, epoch: int, safe_call: FunctionCall | None) -> Step:
        """The welcome of a new session. A call of the one before ends now: nobody would end it later."""
        step = self._in_force.new_session(epoch, _all(safe_call))
        self._cause, self._safe_tick = "no_call_yet", None
        return step

    def resume(self, safe_call: FunctionCall | None) -> None:
        self._in_force.safe_calls = _all(safe_call)

    def reset(self, epoch: int) -> None:
        self._in_force.reset(epoch)
        self._cause = "reset"

    def receive(self, message: CallMessage, now_ns: int) -> Step:
        step = self._in_force.receive(message, now_ns)
        if step.act == "call":
            self._origin = message
        if step.act == "call" or (message.status == "fresh" and not step.expired and self._in_force.kind == "call"):
            self._stamp_ns, self._held = message.t_obs_ns or 0, None
        elif self._in_force.kind == "call":
            self._held = message.cause or "late"
        if step.act == "safe":
            self._cause = "expired" if step.tick is None or step.expired else message.cause or "safe"
            self._safe_tick = None if step.expired else step.tick
        return step

    def look(self, now_ns: int) -> Step:
        return self._began(self._in_force.look(now_ns), "expired")

    def lost(self) -> Step:
        return self._began(self._in_force.server_lost(), "server_lost")

    def left(self) -> Step:
        return self._began(self._in_force.server_left(), "session_ended")

    def _began(self, step: Step, cause: str) -> Step:
        if step.act == "safe":
            self._cause, self._safe_tick = cause, None
        return step

    def at(self, now_ns: int) -> Standing:
        """What is in force at this instant, whether or not anybody has looked since."""
        rule, origin = self._in_force, self._origin
        over = rule.expires_ns is not None and now_ns > rule.expires_ns
        if rule.kind != "call" or origin is None or over:
            call = rule.call if rule.kind == "safe" else self.safe_call
            tick = self._safe_tick if rule.kind == "safe" else None
            return Standing(call, "safe", cause="expired" if over else self._cause, tick=tick)
        return Standing(
            rule.call,
            "held" if self._held else "fresh",
            cause=self._held,
            tick=origin.tick,
            seq_obs=origin.seq_obs,
            confidence=origin.confidence,
            age_ms=(now_ns - self._stamp_ns) / 1e6,
            left_ms=(rule.expires_ns - now_ns) / 1e6 if rule.expires_ns is not None else None,
        )
