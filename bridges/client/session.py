"""What the client holds of a session: what waits to be said, what is in force, and what became of each call."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from typing import Any

from rtcontrol.bridges.client.errors import ClientError
from rtcontrol.bridges.client.inforce import InForce, Standing, all_of
from rtcontrol.bridges.client.options import Options
from rtcontrol.bridges.wire import Message
from rtcontrol.bridges.wire.messages import Executed, FunctionCall, Instruct, Observe, Outcome, Outcomes, Reset

QUEUE = 256


class SessionState:
    """Of one session after the other. Bounded; neither thread-safe nor timed: the caller brings both."""

    def __init__(self, options: Options) -> None:
        hello = options.hello(0)  # mistakes are told before anything is connected
        self.options, self.own_safe_calls = options, all_of(hello.safe_calls, hello.safe_call)
        self.force = InForce(0, self.own_safe_calls)
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
