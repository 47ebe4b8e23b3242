"""The active call of a client (a decided call within its time-to-live, or the safe call), and the handlers' queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rtcontrol_client.wire.messages import CallFields, FunctionCall

KEPT = 1024  # how many ticks and observations are remembered


@dataclass(frozen=True)
class Standing:
    """The active call: what to do now. Without a safe call, `call` is None while safe: stop in your own way.

    `status`: `fresh` (the last decision's call is active), `held` (the last tick brought no call, the previous one is
    still active) or `safe`, with the `cause`. `age_ms`: time since the observation that the call answers was captured;
    `left_ms`: time until the call expires (None: never). `tick` identifies the call in `executed()`; None: the client
    started the call by itself. `more`: further safe calls, if there are several actuators; `before`: earlier calls for
    the same observation, if there may be several. Carry out all `calls`, not `call` alone.
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
        """All calls to carry out, in order: those for one observation, or all safe calls, or none."""
        return () if self.call is None else (*self.before, self.call, *self.more)


def expired(t_obs_ns: int | None, ttl_ms: float, now_ns: int) -> bool:
    """Return whether a call that answers an observation of `t_obs_ns` (the client's clock) is too old at `now_ns`.

    A call without a stamp, or with a stamp in the future, counts as too old. A `ttl_ms` of 0 is no limit.
    """
    return t_obs_ns is None or now_ns < t_obs_ns or (ttl_ms != 0 and now_ns > t_obs_ns + int(ttl_ms * 1e6))


def all_of(several: Sequence[FunctionCall] | None, single: FunctionCall | None) -> tuple[FunctionCall, ...]:
    """Return the safe calls of a message, which has either `several` or a `single` one."""
    return tuple(several or ([] if single is None else [single]))


class ActiveStanding:
    """The state of the active call. `kind` is `none` (nothing yet), `call` or `safe`.

    Methods that return a bool return whether something starts to act now: then carry out `at()`. No call stays active
    for more than `own_ttl_ms` after it arrived, whatever its message says (None or 0: no such limit). The caller
    passes the time, and calls `expire` at `expires_ns`, or every 50 ms.
    """

    def __init__(self, epoch: int, safe_calls: Sequence[FunctionCall] = (), own_ttl_ms: float | None = None) -> None:
        self.own_ttl_ms = own_ttl_ms
        self.kind: Literal["none", "call", "safe"] = "none"
        self.expires_ns: int | None = None
        self._now: Standing  # without the age of the call
        self._stamp_ns = 0  # the capture instant of the observation that last renewed the active call
        self.start(epoch, safe_calls)

    def start(self, epoch: int, safe_calls: Sequence[FunctionCall]) -> bool:
        """Start a new (not a resumed) session: ticks count from 0, and the previous session's call ends."""
        ended = self.kind == "call"
        self.safe_calls, self.last_tick = tuple(safe_calls), -1
        self._more_follows = False  # the last message announced another message of the same tick
        self.reset(epoch, "no_call_yet")
        return ended

    def reset(self, epoch: int, cause: str = "reset") -> None:
        """Start an episode, in which no call is active yet, as the world is at rest."""
        self.epoch = epoch
        self._set("none", self.safe(cause))

    def reason_to_ignore(self, message: CallFields, stamps: Mapping[int, int]) -> str | None:
        """Return why to ignore a call, or None; `stamps` are the newest observations' capture instants, by seq."""
        if message.epoch != self.epoch:
            return "epoch"
        if message.tick <= self.last_tick:
            return "order"
        stamp_ns = stamps.get(message.seq_obs or -1, message.t_obs_ns)
        # With another stamp the call would stay active longer or shorter than its observation allows.
        return "stamp" if message.status == "fresh" and stamp_ns != message.t_obs_ns else None

    def receive(self, message: CallFields, now_ns: int) -> tuple[bool, bool]:
        """Apply a call message that arrived at `now_ns` of the client's clock.

        Return whether something starts to act, and whether to acknowledge the message's call as expired.
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
        else:  # expire first: a decision to continue must not revive an expired call
            starts = self.expire(now_ns)
        if self.kind == "call" and fresh and not too_old:
            self._now = replace(self._now, status="fresh", cause=None)
            self._stamp_ns = message.t_obs_ns or 0
            self.expires_ns = self._end_ns(message.ttl_ms, now_ns)
        elif self.kind == "call" and not further:  # otherwise this tick has brought a call already
            self._now = replace(self._now, status="held", cause=message.cause or "late")
        return starts, too_old and call is not None

    def expire(self, now_ns: int) -> bool:
        """End the active call if its time-to-live is over."""
        return self._over(now_ns) and self.end("expired")

    def disconnect(self) -> bool:
        """End the active call if it has no time-to-live (the server is gone); other calls run until they expire."""
        return self.kind == "call" and self.expires_ns is None and self.end("server_lost")

    def at(self, now_ns: int) -> Standing:
        """Return what is active at `now_ns`, even if `expire` has not been called yet."""
        if self._over(now_ns):
            return self.safe("expired")
        if self.kind != "call":
            return self._now if self.kind == "safe" else self.safe(self._now.cause)
        left_ms = None if self.expires_ns is None else (self.expires_ns - now_ns) / 1e6
        return replace(self._now, age_ms=(now_ns - self._stamp_ns) / 1e6, left_ms=left_ms)

    def safe(self, cause: str | None, tick: int | None = None, calls: tuple[FunctionCall, ...] = ()) -> Standing:
        """Return a safe standing: of the given calls, or of the session's safe calls if there are none."""
        calls = calls or self.safe_calls
        return Standing(calls[0] if calls else None, "safe", cause=cause, tick=tick, more=calls[1:])

    def end(self, cause: str, tick: int | None = None, calls: tuple[FunctionCall, ...] = ()) -> bool:
        """Make the safe call active; return False if it already was."""
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
    """A queue of calls for the handlers, and the calls whose outcome the server waits for.

    `on_call`, `on_safe`: whether there is such a handler; without `on_safe` the other handler gets safe calls too.
    """

    def __init__(self, on_call: bool, on_safe: bool) -> None:
        self._on_call, self._on_safe = on_call, on_safe
        self.next: dict[bool, Standing] = {}  # the next entry for `on_safe` (True) and for `on_call` (False)
        self._further: deque[Standing] = deque()  # further calls for the same observation as `next[False]`
        self.owed: dict[int, FunctionCall | None] = {}  # calls of this epoch, by tick, not acknowledged yet

    def offer(self, standing: Standing) -> list[Standing]:
        """Queue a call that starts to act; return the queued calls that it supersedes."""
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
        """Return what a handler must do now, and what came too late; `now` is the active call."""
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
        """Return whether the server waits for the outcome of exactly this call, and forget the call."""
        if tick not in self.owed or self.owed[tick] is not call:
            return False  # acknowledged already, or the tick number of another call, from an earlier session
        del self.owed[tick]
        return True


def keep(newest: dict[int, Any], key: int, value: Any) -> None:
    """Add a value, and forget the oldest one if there are more than `KEPT`."""
    newest[key] = value
    if len(newest) > KEPT:
        del newest[next(iter(newest))]
