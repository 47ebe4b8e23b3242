"""What the client holds of a session: what waits to be said, what is in force, and what became of each call."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rtcontrol_client.client.errors import ClientError
from rtcontrol_client.client.options import Options
from rtcontrol_client.wire import Message
from rtcontrol_client.wire.messages import (
    CallFields,
    Executed,
    FunctionCall,
    Instruct,
    Observe,
    Outcome,
    Outcomes,
    Reset,
)

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
    then `at()` is to be carried out. Not thread-safe; `look` is called at `expires_ns`, or at least every 50 ms.
    No call outlives its arrival by more than `own_ttl_ms`, whatever its message says (None or 0: no such limit)."""

    def __init__(self, epoch: int, safe_calls: Sequence[FunctionCall] = (), own_ttl_ms: float | None = None) -> None:
        self.own_ttl_ms = own_ttl_ms
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

    def receive(self, message: CallFields, now_ns: int) -> tuple[bool, bool]:
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
            self.expires_ns = self._end_ns(message.ttl_ms, now_ns)
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

    def _end_ns(self, ttl_ms: float, arrived_ns: int) -> int | None:
        """Return the last instant of a call with this time-to-live, None where it has no end."""
        ends = [self._stamp_ns + int(ttl_ms * 1e6)] if ttl_ms else []
        if self.own_ttl_ms:
            ends.append(arrived_ns + int(self.own_ttl_ms * 1e6))
        return min(ends, default=None)

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


QUEUE = 256


class SessionState:
    """Of one session after the other. Bounded; neither thread-safe nor timed: the caller brings both."""

    def __init__(self, options: Options) -> None:
        hello = options.hello(0)  # mistakes are told before anything is connected
        self.options, self.own_safe_calls = options, all_of(hello.safe_calls, hello.safe_call)
        self.force = InForce(0, self.own_safe_calls, options.ttl_ms)
        self.token = "-" * 16  # the session's
        self.version = 0  # grows with each call message, and whatever else changes what is in force
        self.waiting: deque[Message] = deque()  # to be said, in order
        self.stamps: dict[int, int] = {}  # of the newest observations, by seq
        self.unanswered: Observe | None = None  # of decide(): said again after a reconnect
        self.refused: str | None = None  # why that one was refused
        self.wanted: str | None = None  # the newest instruction asked for that was not refused
        self.begun: dict[bool, Standing] = {}  # what waits for a handler; True: for that of safe, where it has its own
        self.further: deque[Standing] = deque()  # of one observation, behind what waits for the handler of calls
        self.owed: dict[int, FunctionCall | None] = {}  # of this epoch, by tick: calls that are not acknowledged yet
        self.count: Counter[str] = Counter()
        self._seq = 0

    @property
    def epoch(self) -> int:
        return self.force.epoch

    def observe(self, look: Observe) -> Observe:
        """Queue an observation (session, seq and epoch are filled in); in the server's pacing it replaces one that is
        not sent yet."""
        self.count["observed"] += 1
        looks = [m for m in self.waiting if isinstance(m, Observe)]
        if looks and (self.options.pacing == "server" or len(self.waiting) >= QUEUE):
            self.waiting.remove(looks[0])
            self.count["superseded"] += 1
        return self.number(look)

    def number(self, look: Observe) -> Observe:
        """Say it under the next number."""
        self._seq += 1
        look = look.model_copy(update={"session": self.token, "seq": self._seq, "epoch": self.epoch})
        _keep(self.stamps, look.seq, look.t_ns)
        self.waiting.append(look)
        return look

    def ask(self, look: Observe) -> None:
        """As `observe`, and `unanswered` until its call has come. Raises ClientError: there is one already."""
        if self.unanswered is not None:
            raise ClientError("decide() is running already.", "Wait for its return.")
        self.unanswered, self.refused = self.observe(look), None

    def decided(self, now_ns: int) -> Standing:
        """decide() waits no longer: its answer. The call of another observation is none."""
        why = "no_answer" if self.unanswered is not None else self.refused
        self.unanswered = None
        return self.force.at(now_ns) if why is None else self.force.safe(why)

    def instruct(self, instruction: str) -> None:
        """Another goal; it survives reconnects."""
        self.say(Instruct(session=self.token, instruction=instruction))
        self.wanted = instruction

    def reset(self, ended: Outcome | None = None) -> int:
        """A new epoch: nothing of the old one counts any more."""
        self.drop(Observe)
        self.force.reset(self.epoch + 1)
        # Those that there is no room for are made up for when the session is resumed.
        self.say(Reset(session=self.token, epoch=self.epoch, ended=ended))
        self.owed.clear()
        self.unanswered = None
        self.version += 1
        return self.epoch

    def say(self, message: Message) -> None:
        """Last, where there is room."""
        if len(self.waiting) < 4 * QUEUE:
            self.waiting.append(message)

    def drop(self, *kinds: type[Message]) -> None:
        """All of these kinds that wait."""
        self.waiting = deque(m for m in self.waiting if not isinstance(m, kinds))

    def begins(self, begins: bool, now_ns: int) -> None:
        """Where something begins: what is in force now is to be handed out."""
        if not begins:
            return
        self.version += 1
        standing = self.force.at(now_ns)
        of_safe = self.options.on_safe is not None and standing.status == "safe"
        if of_safe or self.options.on_call is not None:
            missed = self.begun.get(of_safe)
            if missed is not None and any(missed.call is call for call in standing.before):
                self.further.append(standing)
            else:
                for superseded in [] if missed is None else [missed, *self.further]:
                    self.acknowledge(superseded, "expired", now_ns, error="superseded while the handler was busy")
                self.further.clear()
                self.begun[of_safe] = standing
        if standing.tick is not None:  # last: what was missed may have the number, of a session before
            _keep(self.owed, standing.tick, standing.call)

    def take(self, of_safe: bool, now_ns: int) -> Standing | None:
        """What waits for a handler, if it is in force at this instant; else it is acknowledged as expired."""
        if (begun := self.begun.pop(of_safe, None)) is None:
            return None
        if self.further and not of_safe:
            self.begun[of_safe] = self.further.popleft()
        now = self.force.at(now_ns)
        stands = now.status != "safe" and any(begun.call is call for call in now.calls)
        if now.status == "safe" if begun.status == "safe" else stands:
            return replace(begun, before=())
        self.acknowledge(begun, "expired", now_ns, error="no longer in force when the handler could begin")
        return None

    def acknowledge(self, done: Standing | int, outcome: Outcomes, now_ns: int, **words: str | None) -> None:
        """Say what became of a call of this epoch (`result`, `error`), once, where the server was told that it would
        be. One that failed is in force no more: what was done before would else go on for as long as it."""
        tick, call = (done, self.owed.get(done)) if isinstance(done, int) else (done.tick, done.call)
        if tick is None:
            return  # no call of the server's
        fields: dict[str, Any] = {"session": self.token, "tick": tick, "epoch": self.epoch, "outcome": outcome, **words}
        told = Executed(t_ns=now_ns, **fields)
        if tick not in self.owed or self.owed[tick] is not call:
            return  # told already, or the number of another, of a session before
        del self.owed[tick]
        if self.options.acknowledges:
            self.say(told)
        in_force = self.force.at(now_ns).calls if self.force.kind == "call" else ()
        if outcome == "failed" and any(one is call for one in in_force):
            self.begins(self.force.ends("failed"), now_ns)


def _keep(newest: dict[int, Any], key: int, value: Any) -> None:
    newest[key] = value
    if len(newest) > 4 * QUEUE:
        del newest[next(iter(newest))]
