"""What is in force at the client now: its time-to-live rule (docs/protocol.md, section 7). Pure; the caller brings the
time and carries out what is returned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rtcontrol.bridges.wire.messages import CallMessage, FunctionCall

Kind = Literal["none", "call", "safe"]


@dataclass(frozen=True, slots=True)
class Step:
    """What to do after an event.

    `act`: something begins now: execute `execute`, or stop in your own way where it is None (`safe` without a safe
    call). `tick` is to be acknowledged: as expired where `expired`, else as the act turns out. None: nothing is.
    """

    act: Literal["call", "safe"] | None = None
    execute: FunctionCall | None = None
    expired: bool = False
    tick: int | None = None


NOTHING = Step()


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
    """Of one client. `safe_call` is its own, or the welcome's; None: it stops in its own way.

    Not thread-safe: one thread calls `receive`, and `look` at least every 50 ms (or at `expires_ns`).
    """

    def __init__(self, epoch: int, safe_call: FunctionCall | None = None) -> None:
        self.epoch, self.safe_call = epoch, safe_call
        self.kind: Kind = "none"
        self.call: FunctionCall | None = None
        self.expires_ns: int | None = None
        self.last_tick = -1

    def new_session(self, epoch: int, safe_call: FunctionCall | None = None) -> Step:
        """The welcome of a new session (not of a resumed one): ticks begin anew, and a call of the session before ends,
        since nobody would end it later."""
        self.safe_call = safe_call
        step = self._safe(None, None) if self.kind == "call" else NOTHING
        self.reset(epoch)
        self.last_tick = -1
        return step

    def reset(self, epoch: int) -> None:
        """A new episode, whose world is at rest: nothing is in force in it yet."""
        self.epoch = epoch
        self._set("none", None, None)

    def receive(self, message: CallMessage, now_ns: int) -> Step:
        """A call message arrived at `now_ns` of the client's clock."""
        if message.epoch != self.epoch or message.tick <= self.last_tick:
            return self.look(now_ns)
        self.last_tick = message.tick
        if message.status == "safe":
            return NOTHING if self.kind == "safe" else self._safe(message.call, message.tick)
        if message.status == "held":
            return self.look(now_ns)
        if expired(message.t_obs_ns, message.ttl_ms, now_ns):
            safe = self.look(now_ns)
            return safe if message.call is None else Step(safe.act, safe.execute, True, message.tick)
        assert message.t_obs_ns is not None
        until = expires_ns(message.t_obs_ns, message.ttl_ms) if message.ttl_ms else None
        if message.call is not None:
            self._set("call", message.call, until)
            return Step("call", message.call, tick=message.tick)
        # A decision to go on does not revive what has run out.
        if (step := self.look(now_ns)) is NOTHING and self.kind == "call":
            self.expires_ns = until
        return step

    def look(self, now_ns: int) -> Step:
        """Nothing arrived: has what is in force run out?"""
        return self._safe(None, None) if self.expires_ns is not None and now_ns > self.expires_ns else NOTHING

    def server_lost(self) -> Step:
        """The server is dead: a call with a time-to-live lives on for it, one without ends now."""
        return self._safe(None, None) if self.kind == "call" and self.expires_ns is None else NOTHING

    def server_left(self) -> Step:
        """The session has ended (bye, or a fatal error): act safe."""
        return NOTHING if self.kind == "safe" else self._safe(None, None)

    def _safe(self, call: FunctionCall | None, tick: int | None) -> Step:
        call = call or self.safe_call
        self._set("safe", call, None)
        return Step("safe", call, tick=tick)

    def _set(self, kind: Kind, call: FunctionCall | None, until: int | None) -> None:
        self.kind, self.call, self.expires_ns = kind, call, until
