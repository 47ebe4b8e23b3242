"""Track the active call of a client (a decided call within its time-to-live, or the safe call), and queue calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rtcontrol_client.wire.messages import CallFields, FunctionCall

MOST_CALLS = 7  # maximum number of calls for one observation
KEPT = 1024  # number of stored ticks and of stored observations; older ones are dropped


@dataclass(frozen=True)
class Standing:
    """The active call. Execute all `calls`, not only `call`. If the status is `safe` and `call` is None, the client has
    no safe call: stop the world in another way.

    `status` is `fresh` (the last decision's call), `held` (the last tick had no decision, so the previous call
    continues) or `safe`; `cause` is the reason for `held` and `safe`. `age_ms` is the age of the observation that led
    to the call, `left_ms` the time until the call expires (None: never), `tick` the call's number for `executed()`
    (None: the client itself activated the safe call), `more` further safe calls for other actuators, `before` earlier
    calls for the same observation.
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
        """Return the function's name."""
        return self.call.name if self.call else None

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the function's arguments by name."""
        return self.call.arguments if self.call else {}

    @property
    def calls(self) -> tuple[FunctionCall, ...]:
        """Return all calls to execute, in order: all calls for an observation, or all safe calls."""
        return () if self.call is None else (*self.before, self.call, *self.more)


def is_expired(t_obs_ns: int | None, ttl_ms: float, now_ns: int) -> bool:
    """Return whether a call is too old at `now_ns`. `t_obs_ns` is the capture time of its observation (client's clock).

    Return True if `t_obs_ns` is None or in the future. A `ttl_ms` of 0 means no limit.
    """
    return t_obs_ns is None or now_ns < t_obs_ns or (ttl_ms != 0 and now_ns > t_obs_ns + int(ttl_ms * 1e6))


def all_safe_calls(several: Sequence[FunctionCall] | None, single: FunctionCall | None) -> tuple[FunctionCall, ...]:
    """Return a message's safe calls, which are in its field `safe_calls` (`several`) or `safe_call` (`single`)."""
    return tuple(several or ([] if single is None else [single]))


class ActiveStanding:
    """The state of the active call. `kind` is `none` (no call yet), `call` or `safe`.

    Methods that return a bool return True if another call has become active, which the caller must then execute. A call
    expires at the latest `max_ttl_ms` after its arrival, even if its message allows more (None or 0: no limit). The
    caller passes the time, and must call `expire` at `expires_ns`, or every 50 ms.
    """

    def __init__(self, epoch: int, safe_calls: Sequence[FunctionCall] = (), max_ttl_ms: float | None = None) -> None:
        self.max_ttl_ms = max_ttl_ms
        self.kind: Literal["none", "call", "safe"] = "none"
        self.expires_ns: int | None = None
        self._standing: Standing  # the active call, without its age
        self._captured_ns = 0  # when the newest observation that led to the active call was captured
        self.start(epoch, safe_calls)

    def start(self, epoch: int, safe_calls: Sequence[FunctionCall]) -> bool:
        """Start a new (not resumed) session, whose ticks start at 0; return whether this ended an active call."""
        ended = self.kind == "call"
        self.safe_calls, self.last_tick = tuple(safe_calls), -1
        self._more_follows = False  # whether the last message announced another message for the same tick
        self.reset(epoch, "no_call_yet")
        return ended

    def reset(self, epoch: int, cause: str = "reset") -> None:
        """Start an episode: no call is active until the first call message."""
        self.epoch = epoch
        self._activate("none", self.safe_state(cause))

    def reason_to_ignore(self, message: CallFields, stamps: Mapping[int, int]) -> str | None:
        """Return the reason to ignore a call, or None; `stamps` maps newest observations (`seq`) to capture times."""
        if message.epoch != self.epoch:
            return "epoch"
        if message.tick <= self.last_tick:
            return "order"
        stamp_ns = stamps.get(message.seq_obs or -1, message.t_obs_ns)
        # The call's time-to-live starts at `t_obs_ns`, so a wrong time stamp would make it expire too early or late.
        return "stamp" if message.status == "fresh" and stamp_ns != message.t_obs_ns else None

    def receive(self, message: CallFields, now_ns: int) -> tuple[bool, bool]:
        """Process a call message that arrived at `now_ns` (client's clock) and has no `reason_to_ignore`.

        Return whether another call has become active, and whether to acknowledge the message's call as expired.
        """
        self.last_tick = message.tick
        is_further = self._more_follows and self.kind == "call" and len(self._standing.before) < MOST_CALLS - 1
        self._more_follows = bool(message.more)
        if message.status == "safe":
            return self.end(message.cause or "safe", message.tick, all_safe_calls(message.calls, message.call)), False
        is_fresh, call = message.status == "fresh", message.call
        too_old = is_fresh and is_expired(message.t_obs_ns, message.ttl_ms, now_ns)
        starts = False
        if is_fresh and not too_old and call is not None:
            before = self._standing.calls if is_further else ()
            standing = Standing(call, "fresh", None, message.tick, message.seq_obs, message.confidence, before=before)
            self._activate("call", standing)
            starts = True
        else:  # first expire the active call, so that a decision to continue cannot reactivate an expired call
            starts = self.expire(now_ns)
        if self.kind == "call" and is_fresh and not too_old:
            self._standing = replace(self._standing, status="fresh", cause=None)
            # A message without a call extends the active call only if its observation is newer: repeats must not.
            if message.t_obs_ns is not None and (starts or message.t_obs_ns > self._captured_ns):
                self._captured_ns = message.t_obs_ns
                self.expires_ns = self._expiry_ns(message.ttl_ms, now_ns)
        elif self.kind == "call" and not is_further:  # otherwise this tick already had a call
            self._standing = replace(self._standing, status="held", cause=message.cause or "late")
        return starts, too_old and call is not None

    def expire(self, now_ns: int) -> bool:
        """If the active call's time-to-live has ended, activate the safe call and return True."""
        return self._has_expired(now_ns) and self.end("expired")

    def disconnect(self) -> bool:
        """Handle a lost server: end an active call without a time-to-live now; other calls expire later."""
        return self.kind == "call" and self.expires_ns is None and self.end("server_lost")

    def standing_at(self, now_ns: int) -> Standing:
        """Return the active call at `now_ns`, or the safe call if its time-to-live has ended."""
        if self._has_expired(now_ns):
            return self.safe_state("expired")
        if self.kind != "call":
            return self._standing if self.kind == "safe" else self.safe_state(self._standing.cause)
        left_ms = None if self.expires_ns is None else (self.expires_ns - now_ns) / 1e6
        return replace(self._standing, age_ms=(now_ns - self._captured_ns) / 1e6, left_ms=left_ms)

    def safe_state(self, cause: str | None, tick: int | None = None, calls: tuple[FunctionCall, ...] = ()) -> Standing:
        """Return a Standing with the safe calls in `calls`, or with the session's safe calls if `calls` is empty."""
        calls = calls or self.safe_calls
        return Standing(calls[0] if calls else None, "safe", cause=cause, tick=tick, more=calls[1:])

    def end(self, cause: str, tick: int | None = None, calls: tuple[FunctionCall, ...] = ()) -> bool:
        """Activate the safe call; return False if it was already active."""
        starts = self.kind != "safe"
        if starts:
            self._activate("safe", self.safe_state(cause, tick, calls))
        return starts

    def _expiry_ns(self, ttl_ms: float, arrived_ns: int) -> int | None:
        ends = [self._captured_ns + int(ttl_ms * 1e6)] if ttl_ms else []
        if self.max_ttl_ms:
            ends.append(arrived_ns + int(self.max_ttl_ms * 1e6))
        return min(ends, default=None)

    def _has_expired(self, now_ns: int) -> bool:
        return self.expires_ns is not None and now_ns > self.expires_ns

    def _activate(self, kind: Literal["none", "call", "safe"], standing: Standing) -> None:
        self.kind, self._standing, self.expires_ns = kind, standing, None


class CallQueue:
    """The next calls for the user's handlers `on_call` and `on_safe`, and the calls to acknowledge to the server.

    The arguments tell whether these handlers exist. Without `on_safe`, `on_call` also gets safe calls.
    """

    def __init__(self, on_call: bool, on_safe: bool) -> None:
        self._on_call, self._on_safe = on_call, on_safe
        self.next_calls: dict[bool, Standing] = {}  # key True: the next call for `on_safe`, False: for `on_call`
        self._further_calls: deque[Standing] = deque()  # further calls for the observation of `next_calls[False]`
        self.unacknowledged: dict[int, FunctionCall | None] = {}  # the unacknowledged calls of this epoch, by tick

    def enqueue(self, standing: Standing) -> list[Standing]:
        """Queue a call that has become active; return the queued calls that it replaces."""
        safe_only = self._on_safe and standing.status == "safe"
        if not (safe_only or self._on_call):
            return []
        waiting = self.next_calls.get(safe_only)
        if waiting is not None and any(waiting.call is call for call in standing.before):
            self._further_calls.append(standing)
            return []
        superseded = [] if waiting is None else [waiting, *self._further_calls]
        self._further_calls.clear()
        self.next_calls[safe_only] = standing
        return superseded

    def dequeue(self, safe_only: bool, active: Standing) -> tuple[Standing | None, Standing | None]:
        """Pop the next call. Return (call, None) if it is still active, else (None, call); `active` is the active
        call."""
        waiting = self.next_calls.pop(safe_only, None)
        if waiting is None:
            return None, None
        if self._further_calls and not safe_only:
            self.next_calls[safe_only] = self._further_calls.popleft()
        continues = active.status != "safe" and any(waiting.call is call for call in active.calls)
        if active.status == "safe" if waiting.status == "safe" else continues:
            return replace(waiting, before=()), None
        return None, waiting

    def store_unacknowledged(self, tick: int, call: FunctionCall | None) -> None:
        """Store a call that must be acknowledged to the server."""
        store_newest(self.unacknowledged, tick, call)

    def mark_acknowledged(self, tick: int, call: FunctionCall | None) -> bool:
        """Return whether this call must still be acknowledged to the server; if so, count it as acknowledged."""
        if tick not in self.unacknowledged or self.unacknowledged[tick] is not call:
            return False  # the call is already acknowledged, or belongs to an earlier session
        del self.unacknowledged[tick]
        return True


def store_newest(newest: dict[int, Any], key: int, value: Any) -> None:
    """Store a value by its key; delete the oldest value if more than KEPT are stored."""
    newest[key] = value
    if len(newest) > KEPT:
        del newest[next(iter(newest))]
