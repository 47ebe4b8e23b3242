"""What is in force at the client now: its time-to-live rule (docs/protocol.md, section 7). Pure; the caller brings the
time and carries out what is returned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rtcontrol.bridges.wire.messages import CallMessage, FunctionCall, Welcome

Kind = Literal["none", "call", "safe"]
Calls = tuple[FunctionCall, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """What to do after an event.

    `act`: something begins now: execute all of `calls` in order, or stop in your own way where there are none (`safe`
    without a safe call). `tick` is to be acknowledged: as expired where `expired`, else as the act turns out. None:
    nothing is.
    """

    act: Literal["call", "safe"] | None = None
    calls: Calls = ()
    expired: bool = False
    tick: int | None = None

    @property
    def execute(self) -> FunctionCall | None:
        """The first of them."""
        return next(iter(self.calls), None)


NOTHING = Step()


def safe_calls(told: CallMessage | Welcome) -> Calls:
    """Those that a `safe` message, or the welcome, tells: 1.0 has one at most."""
    several = told.calls if isinstance(told, CallMessage) else told.safe_calls
    one = told.call if isinstance(told, CallMessage) else told.safe_call
    return tuple(several or ([] if one is None else [one]))


def expired(t_obs_ns: int | None, ttl_ms: float, now_ns: int) -> bool:
    """Whether a call that answers an observation of `t_obs_ns` (the client's clock) is too old at `now_ns`. One without
    a stamp, or of the future, answers no observation of this client: too old. A `ttl_ms` of 0 is no limit."""
    if t_obs_ns is None or now_ns < t_obs_ns:
        return True
    return ttl_ms != 0 and now_ns > expires_ns(t_obs_ns, ttl_ms)


def expires_ns(t_obs_ns: int, ttl_ms: float) -> int:
    """The last instant at which such a call is in force."""
    return t_obs_ns + int(ttl_ms * 1e6)


class InForce:
    """Of one client. `safe_calls` are its own, or the welcome's; none: it stops in its own way.

    Not thread-safe: one thread calls `receive`, and `look` at least every 50 ms (or at `expires_ns`).
    """

    def __init__(self, epoch: int, safe_calls: Calls = ()) -> None:
        self.epoch, self.safe_calls = epoch, safe_calls
        self.kind: Kind = "none"
        self.calls: Calls = ()
        self.expires_ns: int | None = None
        self.last_tick = -1

    @property
    def call(self) -> FunctionCall | None:
        """What is in force; the first one where there are several."""
        return next(iter(self.calls), None)

    def new_session(self, epoch: int, safe_calls: Calls = ()) -> Step:
        """The welcome of a new session (not of a resumed one): ticks begin anew, and a call of the session before ends,
        since nobody would end it later."""
        self.safe_calls = safe_calls
        step = self._safe() if self.kind == "call" else NOTHING
        self.reset(epoch)
        self.last_tick = -1
        return step

    def reset(self, epoch: int) -> None:
        """A new episode, whose world is at rest: nothing is in force in it yet."""
        self.epoch = epoch
        self._set("none", (), None)

    def receive(self, message: CallMessage, now_ns: int) -> Step:
        """A call message arrived at `now_ns` of the client's clock."""
        if message.epoch != self.epoch or message.tick <= self.last_tick:
            return self.look(now_ns)
        self.last_tick = message.tick
        if message.status == "safe":
            return NOTHING if self.kind == "safe" else self._safe(safe_calls(message), message.tick)
        if message.status == "held":
            return self.look(now_ns)
        if expired(message.t_obs_ns, message.ttl_ms, now_ns):
            safe = self.look(now_ns)
            return safe if message.call is None else Step(safe.act, safe.calls, True, message.tick)
        assert message.t_obs_ns is not None
        until = expires_ns(message.t_obs_ns, message.ttl_ms) if message.ttl_ms else None
        if message.call is not None:
            self._set("call", (message.call,), until)
            return Step("call", self.calls, tick=message.tick)
        # A decision to go on does not revive what has run out.
        if (step := self.look(now_ns)) is NOTHING and self.kind == "call":
            self.expires_ns = until
        return step

    def look(self, now_ns: int) -> Step:
        """Nothing arrived: has what is in force run out?"""
        return self._safe() if self.expires_ns is not None and now_ns > self.expires_ns else NOTHING

    def server_lost(self) -> Step:
        """The server is dead: a call with a time-to-live lives on for it, one without ends now."""
        return self._safe() if self.kind == "call" and self.expires_ns is None else NOTHING

    def server_left(self) -> Step:
        """The session has ended (bye, or a fatal error): act safe."""
        return NOTHING if self.kind == "safe" else self._safe()

    def _safe(self, calls: Calls = (), tick: int | None = None) -> Step:
        self._set("safe", calls or self.safe_calls, None)
        return Step("safe", self.calls, tick=tick)

    def _set(self, kind: Kind, calls: Calls, until: int | None) -> None:
        self.kind, self.calls, self.expires_ns = kind, calls, until
