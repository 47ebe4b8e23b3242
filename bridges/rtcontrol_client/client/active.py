"""What is active at a client: a call within its time-to-live, or the safe call; and what is handed to handlers."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rtcontrol_client.wire.messages import CallFields, FunctionCall

KEPT = 1024  # ticks and observations that are remembered


@dataclass(frozen=True)
class Standing:
    """What to do now. `call` is None where there is no safe call: stop in your own way.

    `status`: `fresh` (the last decision's call is active), `held` (the last tick brought none, the call before is still
    active) or `safe`, with the `cause`. `age_ms` is since the observation that the call answers was captured, `left_ms`
    until it expires (None: never). `tick` names it to `executed()`; None: the client started it by itself. `more`:
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
    """Return whether a call that answers an observation of `t_obs_ns` (the client's clock) is too old at `now_ns`.

    One without a stamp, or of the future, answers no observation of this client: too old. A `ttl_ms` of 0 is no limit.
    """
    return t_obs_ns is None or now_ns < t_obs_ns or (ttl_ms != 0 and now_ns > t_obs_ns + int(ttl_ms * 1e6))


def all_of(several: Sequence[FunctionCall] | None, single: FunctionCall | None) -> tuple[FunctionCall, ...]:
    """Return the safe calls of a message, which may have `several`, or a `single` one."""
    return tuple(several or ([] if single is None else [single]))


class ActiveStanding:
    """The call that may act. `kind` is `none` (nothing yet), `call` or `safe`.

    Methods that return a bool return whether something starts to act now: then `at()` is to be carried out. No call
    outlives its arrival by more than `own_ttl_ms`, whatever its message says (None or 0: no such limit). Pure: the
    caller brings the time, and calls `expire` at `expires_ns`, or every 50 ms.
    """

    def __init__(self, epoch: int, safe_calls: Sequence[FunctionCall] = (), own_ttl_ms: float | None = None) -> None:
        self.own_ttl_ms = own_ttl_ms
        self.kind: Literal["none", "call", "safe"] = "none"
        self.expires_ns: int | None = None
        self._now: Standing  # without its age
        self._stamp_ns = 0  # of the observation that the active call was last renewed for
        self.start(epoch, safe_calls)

    def start(self, epoch: int, safe_calls: Sequence[FunctionCall]) -> bool:
        """Start a new session, not a resumed one: ticks count from 0, and the call of the session before ends."""
        ended = self.kind == "call"
        self.safe_calls, self.last_tick = tuple(safe_calls), -1
        self._more_follows = False  # by the last message, another one of its tick comes
        self.reset(epoch, "no_call_yet")
        return ended

    def reset(self, epoch: int, cause: str = "reset") -> None:
        """Start an episode, whose world is at rest: nothing is active in it yet."""
        self.epoch = epoch
        self._set("none", self.safe(cause))

    def reason_to_ignore(self, message: CallFields, stamps: Mapping[int, int]) -> str | None:
        """Return why a call is void; `stamps` are those of the newest observations, by seq."""
        if message.epoch != self.epoch:
            return "epoch"
        if message.tick <= self.last_tick:
            return "order"
        stamp_ns = stamps.get(message.seq_obs or -1, message.t_obs_ns)
        # With another stamp it would live longer, or shorter, than its observation allows.
        return "stamp" if message.status == "fresh" and stamp_ns != message.t_obs_ns else None

    def receive(self, message: CallFields, now_ns: int) -> tuple[bool, bool]:
        """Take a call message that arrived at `now_ns` of the client's clock.

        Return whether something starts, and whether the message's call is to be acknowledged as expired.
        """
        if message.epoch != self.epoch or message.tick <= self.last_tick:
            return self.expire(now_ns), False
        self.last_tick = message.tick
        further, self._more_follows = self._more_follows and self.kind == "call", bool(message.more)
        if message.status == "safe":
            return self.end(message.cause or "safe", message.tick, all_of(message.calls, message.call)), False
        fresh, call = message.status == "fresh", message.call
        too_old = fresh and expired(message.t_obs_ns, message.ttl_ms, now_ns)
        starts = False
        if fresh and not too_old and call is not None:
            before = self._now.calls if further else ()
            standing = Standing(call, "fresh", None, message.tick, message.seq_obs, message.confidence, before=before)
            self._set("call", standing)
            starts = True
        else:  # first: a decision to continue does not revive what has run out
            starts = self.expire(now_ns)
        if self.kind == "call" and fresh and not too_old:
            self._now = replace(self._now, status="fresh", cause=None)
            self._stamp_ns = message.t_obs_ns or 0
            self.expires_ns = self._end_ns(message.ttl_ms, now_ns)
        elif self.kind == "call" and not further:  # else its tick brought one
            self._now = replace(self._now, status="held", cause=message.cause or "late")
        return starts, too_old and call is not None

    def expire(self, now_ns: int) -> bool:
        """End the active call if its time-to-live is over."""
        return self._over(now_ns) and self.end("expired")

    def disconnect(self) -> bool:
        """End a call without a time-to-live: the server is dead. One that has it lives until then."""
        return self.kind == "call" and self.expires_ns is None and self.end("server_lost")

    def at(self, now_ns: int) -> Standing:
        """Return what is active at this instant, whether or not `expire` was called since."""
        if self._over(now_ns):
            return self.safe("expired")
        if self.kind != "call":
            return self._now if self.kind == "safe" else self.safe(self._now.cause)
        left_ms = None if self.expires_ns is None else (self.expires_ns - now_ns) / 1e6
        return replace(self._now, age_ms=(now_ns - self._stamp_ns) / 1e6, left_ms=left_ms)

    def safe(self, cause: str | None, tick: int | None = None, calls: tuple[FunctionCall, ...] = ()) -> Standing:
        """Return what is safe: these calls, else the session's."""
        calls = calls or self.safe_calls
        return Standing(calls[0] if calls else None, "safe", cause=cause, tick=tick, more=calls[1:])

    def end(self, cause: str, tick: int | None = None, calls: tuple[FunctionCall, ...] = ()) -> bool:
        """Be safe from now on, unless it is already."""
        starts = self.kind != "safe"
        if starts:
            self._set("safe", self.safe(cause, tick, calls))
        return starts

    def _end_ns(self, ttl_ms: float, arrived_ns: int) -> int | None:
        ends = [self._stamp_ns + int(ttl_ms * 1e6)] if ttl_ms else []
        if self.own_ttl_ms:
            ends.append(arrived_ns + int(self.own_ttl_ms * 1e6))
        return min(ends, default=None)

    def _over(self, now_ns: int) -> bool:
        return self.expires_ns is not None and now_ns > self.expires_ns

    def _set(self, kind: Literal["none", "call", "safe"], now: Standing) -> None:
        self.kind, self._now, self.expires_ns = kind, now, None


class CallQueue:
    """Calls on their way to the handlers, and those that the server waits to hear of.

    `on_call`, `on_safe`: whether there is such a handler; without `on_safe` the other one gets safe calls too.
    """

    def __init__(self, on_call: bool, on_safe: bool) -> None:
        self._on_call, self._on_safe = on_call, on_safe
        self.next: dict[bool, Standing] = {}  # by whether it is for the handler of safe calls alone
        self._further: deque[Standing] = deque()  # of the same observation, after what waits for `on_call`
        self.owed: dict[int, FunctionCall | None] = {}  # of this epoch, by tick: not acknowledged yet

    def offer(self, standing: Standing) -> list[Standing]:
        """Queue what starts to act; return what it supersedes."""
        of_safe = self._on_safe and standing.status == "safe"
        if not (of_safe or self._on_call):
            return []
        waiting = self.next.get(of_safe)
        if waiting is not None and any(waiting.call is call for call in standing.before):
            self._further.append(standing)
            return []
        superseded = [] if waiting is None else [waiting, *self._further]
        self._further.clear()
        self.next[of_safe] = standing
        return superseded

    def take(self, of_safe: bool, now: Standing) -> tuple[Standing | None, Standing | None]:
        """Return what a handler is to do, and what is too late for it; `now` is active."""
        waiting = self.next.pop(of_safe, None)
        if waiting is None:
            return None, None
        if self._further and not of_safe:
            self.next[of_safe] = self._further.popleft()
        continues = now.status != "safe" and any(waiting.call is call for call in now.calls)
        if now.status == "safe" if waiting.status == "safe" else continues:
            return replace(waiting, before=()), None
        return None, waiting

    def owe(self, tick: int, call: FunctionCall | None) -> None:
        """Note that the server waits for the outcome of a call."""
        keep(self.owed, tick, call)

    def settle(self, tick: int, call: FunctionCall | None) -> bool:
        """Return whether the server waits for the outcome of this very call, once."""
        if tick not in self.owed or self.owed[tick] is not call:
            return False  # acknowledged already, or the number of another call, of a session before
        del self.owed[tick]
        return True


def keep(newest: dict[int, Any], key: int, value: Any) -> None:
    """Remember a value; forget the oldest beyond `KEPT`."""
    newest[key] = value
    if len(newest) > KEPT:
        del newest[next(iter(newest))]
