"""What is in force at the client now: the time-to-live rule (docs/protocol.md, section 7). Pure: the caller brings the
time, and carries out what begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rtcontrol.bridges.wire.messages import CallMessage, FunctionCall

Kind = Literal["none", "call", "safe"]


@dataclass(frozen=True)
class Standing:
    """What to do now. `call` is None where there is no safe call: stop in your own way.

    `status`: `fresh` (the last decision's call is in force), `held` (the last tick brought none, the call before is
    still in force) or `safe`, with the `cause`. `age_ms` is since the observation that the call answers was captured,
    `left_ms` until it expires (None: never). `tick` names it to `executed()`; None: the client began it itself. `more`:
    further safe calls, where there are several actuators; `before`: calls of the same observation that came before,
    where it may have several. What is to be done are all `calls`, not `call` alone.
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
    before: tuple[FunctionCall, ...] = ()

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
        """All that is to be done, in order: one call, or several of one observation, or all safe ones, or nothing."""
        return () if self.call is None else (*self.before, self.call, *self.more)


def expired(t_obs_ns: int | None, ttl_ms: float, now_ns: int) -> bool:
    """Whether a call that answers an observation of `t_obs_ns` (the client's clock) is too old at `now_ns`. One without
    a stamp, or of the future, answers no observation of this client: too old. A `ttl_ms` of 0 is no limit."""
    return t_obs_ns is None or now_ns < t_obs_ns or (ttl_ms != 0 and now_ns > t_obs_ns + int(ttl_ms * 1e6))


def all_of(several: Sequence[FunctionCall] | None, one: FunctionCall | None) -> tuple[FunctionCall, ...]:
    """The safe calls that a message tells; one of 1.0 has one at most."""
    return tuple(several or ([] if one is None else [one]))


class InForce:
    """`kind` is `none` (nothing yet), `call` or `safe`. Methods that return a bool tell whether something begins now:
    then `at()` is to be carried out. Not thread-safe; `look` is called at `expires_ns`, or at least every 50 ms."""

    def __init__(self, epoch: int, safe_calls: Sequence[FunctionCall] = ()) -> None:
        self.kind: Kind = "none"
        self.expires_ns: int | None = None
        self._now: Standing  # without its age
        self._stamp_ns = 0  # of the observation that the call in force was last renewed for
        self.begin(epoch, safe_calls)

    def begin(self, epoch: int, safe_calls: Sequence[FunctionCall]) -> bool:
        """The welcome of a new session (not of a resumed one): ticks begin anew, and a call of the session before ends,
        since nobody would end it later."""
        ended = self.kind == "call"
        self.safe_calls, self.last_tick = tuple(safe_calls), -1
        self._goes_on = False  # the last message said that another one of its tick follows
        self.reset(epoch, "no_call_yet")
        return ended

    def reset(self, epoch: int, cause: str = "reset") -> None:
        """A new episode, whose world is at rest: nothing is in force in it yet."""
        self.epoch = epoch
        self._set("none", self.safe(cause))

    def receive(self, message: CallMessage, now_ns: int) -> tuple[bool, bool]:
        """A call message arrived at `now_ns` of the client's clock: whether something begins, and whether the message's
        call is to be acknowledged as expired."""
        if message.epoch != self.epoch or message.tick <= self.last_tick:
            return self.look(now_ns), False
        self.last_tick = message.tick
        further, self._goes_on = self._goes_on and self.kind == "call", bool(message.more)
        if message.status == "safe":
            return self.ends(message.cause or "safe", message.tick, all_of(message.calls, message.call)), False
        fresh, call = message.status == "fresh", message.call
        too_old = fresh and expired(message.t_obs_ns, message.ttl_ms, now_ns)
        begins = fresh and not too_old and call is not None
        if begins:
            assert call is not None, "it begins"
            before = tuple(self._now.calls) if further else ()
            told = Standing(call, "fresh", None, message.tick, message.seq_obs, message.confidence, before=before)
            self._set("call", told)
        else:  # first: a decision to go on does not revive what has run out
            begins = self.look(now_ns)
        if self.kind == "call" and fresh and not too_old:
            self._now = replace(self._now, status="fresh", cause=None)
            self._stamp_ns = message.t_obs_ns or 0
            self.expires_ns = self._stamp_ns + int(message.ttl_ms * 1e6) if message.ttl_ms else None
        elif self.kind == "call" and not further:  # else its tick brought one
            self._now = replace(self._now, status="held", cause=message.cause or "late")
        return begins, too_old and call is not None

    def look(self, now_ns: int) -> bool:
        """Nothing arrived: has what is in force run out?"""
        return self._over(now_ns) and self.ends("expired")

    def lost(self) -> bool:
        """The server is dead: a call with a time-to-live lives on for it, one without ends now."""
        return self.kind == "call" and self.expires_ns is None and self.ends("server_lost")

    def at(self, now_ns: int) -> Standing:
        """What is in force at this instant, whether or not anybody has looked since."""
        if self._over(now_ns):
            return self.safe("expired")
        if self.kind != "call":
            return self._now if self.kind == "safe" else self.safe(self._now.cause)
        left_ms = None if self.expires_ns is None else (self.expires_ns - now_ns) / 1e6
        return replace(self._now, age_ms=(now_ns - self._stamp_ns) / 1e6, left_ms=left_ms)

    def safe(self, cause: str | None, tick: int | None = None, told: tuple[FunctionCall, ...] = ()) -> Standing:
        """To act safe: by the calls that were told with it, or the session's."""
        calls = told or self.safe_calls
        return Standing(calls[0] if calls else None, "safe", cause=cause, tick=tick, more=calls[1:])

    def _over(self, now_ns: int) -> bool:
        return self.expires_ns is not None and now_ns > self.expires_ns

    def ends(self, cause: str, tick: int | None = None, told: tuple[FunctionCall, ...] = ()) -> bool:
        """It is safe from now on, unless it is already."""
        begins = self.kind != "safe"
        if begins:
            self._set("safe", self.safe(cause, tick, told))
        return begins

    def _set(self, kind: Kind, now: Standing) -> None:
        self.kind, self._now, self.expires_ns = kind, now, None
