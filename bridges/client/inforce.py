"""What is in force at the client now: the time-to-live rule (docs/protocol.md, section 7). Pure: the caller brings the
time, and carries out what begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rtcontrol.bridges.wire.messages import CallMessage, FunctionCall, Welcome


@dataclass(frozen=True)
class Standing:
    """What to do now. `call` is None where there is no safe call: stop in your own way.

    `status`: `fresh` (the last decision's call is in force), `held` (the last tick brought none, the call before is
    still in force) or `safe`, with the `cause`. `age_ms` is since the observation that the call answers was captured,
    `left_ms` until it expires (None: never). `tick` names it to `executed()`; None: the client began it itself. `more`:
    further safe calls, where there are several actuators: what is to be done are all `calls`, not `call` alone.
    """

    call: FunctionCall | None
    status: Literal["fresh", "held", "safe"]
    cause: str | None = None
    tick: int | None = None
    seq_obs: int | None = None
    confidence: float | None = None
    age_ms: float | None = None
    left_ms: float | None = None
    more: tuple[FunctionCall, ...] = ()

    @property
    def name(self) -> str | None:
        """The function's name."""
        return self.call.name if self.call else None

    @property
    def arguments(self) -> dict[str, Any]:
        """The function's arguments by name."""
        return self.call.arguments if self.call else {}

    @property
    def calls(self) -> tuple[FunctionCall, ...]:
        """All that is to be done: one call, or all safe ones, or nothing."""
        return () if self.call is None else (self.call, *self.more)


def expired(t_obs_ns: int | None, ttl_ms: float, now_ns: int) -> bool:
    """Whether a call that answers an observation of `t_obs_ns` (the client's clock) is too old at `now_ns`. One without
    a stamp, or of the future, answers no observation of this client: too old. A `ttl_ms` of 0 is no limit."""
    return t_obs_ns is None or now_ns < t_obs_ns or (ttl_ms != 0 and now_ns > _until_ns(t_obs_ns, ttl_ms))


def safe_calls(told: CallMessage | Welcome) -> tuple[FunctionCall, ...]:
    """Those that a `safe` message, or the welcome, tells: 1.0 has one at most."""
    several = told.calls if isinstance(told, CallMessage) else told.safe_calls
    one = told.call if isinstance(told, CallMessage) else told.safe_call
    return tuple(several or ([] if one is None else [one]))


def _until_ns(t_obs_ns: int, ttl_ms: float) -> int:
    return t_obs_ns + int(ttl_ms * 1e6)


class InForce:
    """`kind` is `none` (nothing yet), `call` or `safe`. Methods that return a bool tell whether something begins now:
    then `at()` is to be carried out. Not thread-safe; `look` is called at `expires_ns`, or at least every 50 ms."""

    def __init__(self, epoch: int, safe_calls: Sequence[FunctionCall] = ()) -> None:
        self._origin: CallMessage | None = None  # of the call in force
        self._stamp_ns = 0  # of the observation that it was last renewed for
        self.begin(epoch, safe_calls)

    def begin(self, epoch: int, safe_calls: Sequence[FunctionCall]) -> bool:
        """The welcome of a new session (not of a resumed one): ticks begin anew, and a call of the session before ends,
        since nobody would end it later."""
        ended = self._origin is not None and self.kind == "call"
        self.safe_calls, self.last_tick = tuple(safe_calls), -1
        self.reset(epoch, "no_call_yet")
        return ended

    def reset(self, epoch: int, cause: str = "reset") -> None:
        """A new episode, whose world is at rest: nothing is in force in it yet."""
        self.epoch = epoch
        self._set("none", (), None, cause, None)

    def receive(self, message: CallMessage, now_ns: int) -> tuple[bool, bool]:
        """A call message arrived at `now_ns` of the client's clock: whether something begins, and whether the message's
        call is to be acknowledged as expired."""
        if message.epoch != self.epoch or message.tick <= self.last_tick:
            return self.look(now_ns), False
        self.last_tick = message.tick
        if message.status == "safe":
            return self._safe(message.cause or "safe", message.tick, safe_calls(message)), False
        fresh = message.status == "fresh"
        too_old = fresh and expired(message.t_obs_ns, message.ttl_ms, now_ns)
        stamp_ns = message.t_obs_ns or 0
        until_ns = _until_ns(stamp_ns, message.ttl_ms) if message.ttl_ms else None
        if fresh and not too_old and message.call is not None:
            self._set("call", (message.call,), until_ns, None, message.tick)
            self._origin, self._stamp_ns = message, stamp_ns
            return True, False
        begins = self.look(now_ns)  # first: a decision to go on does not revive what has run out
        if self.kind == "call":
            if fresh and not too_old:
                self.expires_ns, self._cause, self._stamp_ns = until_ns, None, stamp_ns
            else:
                self._cause = message.cause or "late"
        return begins, too_old and message.call is not None

    def look(self, now_ns: int) -> bool:
        """Nothing arrived: has what is in force run out?"""
        return self.expires_ns is not None and now_ns > self.expires_ns and self._safe("expired")

    def lost(self) -> bool:
        """The server is dead: a call with a time-to-live lives on for it, one without ends now."""
        return self.kind == "call" and self.expires_ns is None and self._safe("server_lost")

    def left(self) -> bool:
        """The session has ended (bye, or a fatal error)."""
        return self._safe("session_ended")

    def at(self, now_ns: int) -> Standing:
        """What is in force at this instant, whether or not anybody has looked since."""
        over = self.expires_ns is not None and now_ns > self.expires_ns
        if self.kind != "call" or self._origin is None or over:
            calls = self._calls if self.kind == "safe" else self.safe_calls
            cause, tick = ("expired", None) if over else (self._cause, self._tick)
            return Standing(calls[0] if calls else None, "safe", cause=cause, tick=tick, more=calls[1:])
        return Standing(
            self._calls[0],
            "held" if self._cause else "fresh",
            cause=self._cause,
            tick=self._tick,
            seq_obs=self._origin.seq_obs,
            confidence=self._origin.confidence,
            age_ms=(now_ns - self._stamp_ns) / 1e6,
            left_ms=None if self.expires_ns is None else (self.expires_ns - now_ns) / 1e6,
        )

    def _safe(self, cause: str, tick: int | None = None, calls: tuple[FunctionCall, ...] = ()) -> bool:
        begins = self.kind != "safe"
        if begins:
            self._set("safe", calls or self.safe_calls, None, cause, tick)
        return begins

    def _set(
        self,
        kind: Literal["none", "call", "safe"],
        calls: tuple[FunctionCall, ...],
        until_ns: int | None,
        cause: str | None,
        tick: int | None,
    ) -> None:
        self.kind, self._calls, self.expires_ns, self._cause, self._tick = kind, calls, until_ns, cause, tick
