"""The client's side of the protocol without a socket: what to say when, what is believed, what is in force.

Not thread-safe: its owner (link.py) holds a lock around every use. `handled` (and `handled_safe`) fill with what begins
to be in force, for handler.py.
"""

from __future__ import annotations

import random
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any, Literal

from rtcontrol.bridges.client.counts import Counts
from rtcontrol.bridges.client.errors import ClientError, Refused
from rtcontrol.bridges.client.options import Options, to_call
from rtcontrol.bridges.client.pulse import Pulse
from rtcontrol.bridges.client.standing import Rule, Standing
from rtcontrol.bridges.wire import PROTOCOL, Code, Message
from rtcontrol.bridges.wire.inforce import Step
from rtcontrol.bridges.wire.messages import (
    Bye,
    CallMessage,
    ErrorMessage,
    Executed,
    Instruct,
    Observe,
    Ping,
    Pong,
    Reset,
    Welcome,
)
from rtcontrol.bridges.wire.offset import OffsetFilter

HELLO_AGAIN_NS = 1_000_000_000
BETWEEN_HELLOS_NS = 200_000_000  # what the server takes at most: one that refuses each hello is not flooded with them
ROOM_AGAIN_NS = 20_000_000  # after this a connection without room is tried again
QUEUE = 256
What = Literal["executed", "expired", "failed", "refused"]
OF_ITS_TIME = (Observe, Ping, Pong)  # what is worth nothing later


class Talk:
    """One client's conversation over any number of connections and sessions."""

    def __init__(self, options: Options) -> None:
        options.hello(0)  # mistakes are told before anything is connected
        self.options = options
        self.counts = Counts()
        self.rule = Rule(to_call(options.safe_call))
        self.welcome: Welcome | None = None
        self.open = False  # welcomed on the present connection
        self.error: ClientError | None = None  # why it ended: nothing is said any more
        self.epoch = self.seq = 0
        self.token = "-" * 16
        self.outbox: deque[Message] = deque()
        self.version = 0  # grows with each call message, and whatever else changes what is in force
        self.handled: deque[Standing] = deque(maxlen=QUEUE)
        self.handled_safe: deque[Standing] = deque(maxlen=QUEUE)  # safe, where it has a handler of its own
        self.unanswered: Observe | None = None  # of decide(): said again after a reconnect
        self.refused: str | None = None  # why decide()'s observation was refused
        self.offset = OffsetFilter()
        self.pulse = Pulse()
        self._instruction: str | None = None  # the newest asked for that was not refused
        self._told: str | None = None  # the one in force, as the server told it last
        self._known = False  # whether `token` is a session's
        self._stamps: OrderedDict[int, int] = OrderedDict()
        self.astray = False  # the server holds this connection for another session: it is to be closed
        self._hello_ns = self._said_hello_ns = 0  # when the next hello is due, and the last one was
        self._greeting: str | None = None  # the instruction of this connection's hello, which is repeated as it was
        self._greeted = False  # whether this connection's first hello was said
        self._room_ns = 0  # before this nothing more is said: there was no room

    @property
    def instruction(self) -> str | None:
        """The goal in force, as the server told it last."""
        return self._told

    # What the user says.

    def observe(self, message: Observe) -> None:
        """Queue an observation; in the server's pacing it replaces one that is not sent yet."""
        if self.options.pacing == "server" or len(self.outbox) >= QUEUE:
            for i, waiting in enumerate(self.outbox):
                if isinstance(waiting, Observe):
                    del self.outbox[i]
                    self.counts.count["superseded"] += 1
                    break
        self.counts.count["observed"] += 1
        self._stamp(message)
        self.outbox.append(message)

    def _stamp(self, message: Observe) -> None:
        self._stamps[message.seq] = message.t_ns
        if len(self._stamps) > 4 * QUEUE:
            self._stamps.popitem(last=False)

    def say(self, message: Message) -> None:
        """Queue anything else."""
        if isinstance(message, Instruct):
            self._instruction = message.instruction
        if len(self.outbox) < 4 * QUEUE:
            self.outbox.append(message)

    def reset(self, message: Reset) -> None:
        """A new epoch: nothing of the old one counts any more."""
        self.epoch = message.epoch
        self.outbox = deque(m for m in self.outbox if not isinstance(m, Observe))
        # Those that there is no room for are made up for when the session is resumed.
        self.say(message)
        self.unanswered = None
        self.rule.reset(message.epoch)
        self.version += 1

    def acknowledge(self, tick: int, outcome: What, result: str | None = None, error: str | None = None) -> None:
        """Say what became of a call, where the server was told that it would be."""
        if self.options.acknowledges and self._known:
            now_ns, epoch = time.monotonic_ns(), self.epoch
            self.say(
                Executed(
                    session=self.token, tick=tick, epoch=epoch, outcome=outcome, t_ns=now_ns, result=result, error=error
                )
            )

    # What the connection says.

    def connected(self) -> None:
        """A connection is there: greet."""
        self._hello_ns = self._room_ns = 0
        self._greeted = self.astray = False
        self.pulse.heard(time.monotonic_ns())

    def lost(self) -> None:
        """The connection is gone, or the server silent. What is in force runs to its own end."""
        if self.open:
            self.counts.count["reconnects"] += 1
            self._begin(self.rule.lost())
        self.open = self._greeted = False
        # An observation as old as the gap helps nobody; decide()'s is said again.
        self.outbox = deque(m for m in self.outbox if not isinstance(m, OF_ITS_TIME))

    def due(self, now_ns: int) -> list[Message]:
        """What must be said now."""
        if self.error is not None:
            return []
        if not self.open:
            if now_ns < self._hello_ns:
                return []
            self._hello_ns, self._said_hello_ns = now_ns + HELLO_AGAIN_NS, now_ns
            if not self._greeted:
                self._greeting = self._instruction
            hello = self.options.hello(now_ns, self.token if self._known else None, self._greeting)
            # A welcome may take a while; whether anybody is there at all, a ping tells.
            greeted, self._greeted = self._greeted, True
            return [hello, self.pulse.ping(now_ns)] if greeted else [hello]
        if now_ns < self._room_ns:
            return []
        said = list(self.outbox)
        self.outbox.clear()
        if self.pulse.due(now_ns, silent=not said):
            said.append(self.pulse.ping(now_ns))
        return said

    def unsaid(self, rest: Sequence[Message]) -> None:
        """What was due could not be sent, from this message on: there is no connection yet, or it is full."""
        again_ns = time.monotonic_ns() + ROOM_AGAIN_NS
        if self.open:
            # An observation is old by then. The rest is not said twice: without its reset, say, the server would stay
            # in an episode that is over.
            self.outbox.extendleft(m for m in reversed(rest) if not isinstance(m, OF_ITS_TIME))
            self._room_ns = again_ns
        else:
            self._hello_ns, self._greeted = again_ns, False
        self.counts.count["unsent"] += 1

    def silent(self, now_ns: int) -> bool:
        """Whether the server must be taken for dead."""
        return self.pulse.silent(now_ns, live=self.open)

    def wake_ns(self) -> int:
        """When something becomes due, on the monotonic clock."""
        if self.error is not None:
            return time.monotonic_ns() + HELLO_AGAIN_NS
        times = [max(self.pulse.next_ns(), self._room_ns) if self.open else self._hello_ns]
        if self.rule.expires_ns is not None:
            times.append(self.rule.expires_ns)
        return min(times)

    def look(self, now_ns: int) -> None:
        """End what is in force when its time has come."""
        if self._begin(self.rule.look(now_ns)):
            self.counts.count["expired"] += 1

    def end(self, error: ClientError) -> None:
        """No more is said; the safe call is in force from now on."""
        if self.error is None:
            self.error, self.open = error, False
            self.outbox.clear()
            self._begin(self.rule.left())
            self.version += 1

    def hear(self, message: Message, now_ns: int) -> None:
        """A message of the server."""
        self.pulse.heard(now_ns)
        if isinstance(message, CallMessage):
            self._call(message, now_ns)
        elif isinstance(message, Welcome):
            self._welcomed(message)
        elif isinstance(message, Ping):
            now = time.monotonic_ns()
            self.say(Pong(id=message.id, t_ping_ns=message.t_ns, t_received_ns=now_ns, t_sent_ns=now))
        elif isinstance(message, Pong):
            self.offset.pong(message, now_ns)
        elif isinstance(message, Instruct) and message.session == self.token:
            self._instruction = self._told = message.instruction
        elif isinstance(message, ErrorMessage):
            self._refused(message, now_ns)
        elif isinstance(message, Bye) and message.session in (None, self.token):
            if self.options.persist:
                self._known = False
                self._begin(self.rule.left())
                self.lost()
                self._hello_ns = self._later(now_ns)
            else:
                self.end(ClientError(f"The server ended the session ({message.reason[:200]}).", "Connect anew."))
        else:
            self.counts.ignored[message.type] += 1

    def clock(self) -> dict[str, Any]:
        """The server's clock minus ours, by the fastest recent round trip."""
        found = self.offset.now(time.monotonic_ns())
        return {"offset_ms": found.offset_ns / 1e6, "rtt_ms": found.rtt_ns / 1e6} if found else {}

    # Single messages.

    def _welcomed(self, welcome: Welcome) -> None:
        if self.open or (welcome.resumed and welcome.session != self.token):
            self.counts.ignored["welcome"] += 1  # the answer to a hello said twice
            return
        if not welcome.protocol or welcome.protocol[0] != PROTOCOL[0]:
            self.end(
                ClientError(f"The server speaks protocol {welcome.protocol}, not {list(PROTOCOL)}.", "Update either.")
            )
            return
        self.open, self.welcome, self.pulse.beat_ms = True, welcome, welcome.heartbeat_ms
        self._told = welcome.instruction
        safe_call = to_call(self.options.safe_call) or welcome.safe_call
        if welcome.resumed:
            self.counts.count["resumed"] += 1
            self.rule.resume(safe_call)
            queued = {m.epoch for m in self.outbox if isinstance(m, Reset)}
            for epoch in range(min(self.epoch, welcome.epoch + QUEUE), welcome.epoch, -1):
                if epoch not in queued:
                    self.outbox.appendleft(Reset(session=self.token, epoch=epoch))
        else:
            self.counts.count["sessions"] += 1
            self.token, self._known, self.epoch = welcome.session, True, welcome.epoch
            # Another server, maybe of another machine: its clock is another one.
            self.offset = OffsetFilter()
            self.pulse.begin(welcome.heartbeat_ms)
            # What waited was for the session that is gone; only its newest look at the world is as good as ever.
            waiting = [m for m in self.outbox if isinstance(m, Observe)]
            self.outbox.clear()
            self._stamps.clear()
            for message in waiting:
                self._again(message)
            self._begin(self.rule.begin(welcome.epoch, safe_call))
            if self._instruction is not None and self._instruction != self._greeting:
                self.outbox.append(Instruct(session=self.token, instruction=self._instruction))
        if self.unanswered is not None:
            self.outbox = deque(m for m in self.outbox if not isinstance(m, Observe))
            self.unanswered = self._again(self.unanswered)
        self.version += 1

    def _again(self, message: Observe) -> Observe:
        """Say an observation in this session, with its old stamp and a new number."""
        self.seq += 1
        message = message.model_copy(update={"session": self.token, "seq": self.seq, "epoch": self.epoch})
        self._stamp(message)
        self.outbox.append(message)
        return message

    def _call(self, message: CallMessage, now_ns: int) -> None:
        known = self._stamps.get(message.seq_obs) if message.seq_obs is not None else None
        reason = None
        if not self.open or message.session != self.token:
            reason = "session"
        elif message.epoch != self.epoch:
            reason = "epoch"
        elif message.tick <= self.rule.last_tick:
            reason = "order"
        elif message.status == "fresh" and known is not None and known != message.t_obs_ns:
            reason = "stamp"  # it would live longer, or shorter, than its observation allows
        if reason is not None:
            self.counts.ignored[reason] += 1
            return
        self.counts.count[message.status] += 1
        if self.unanswered is not None and message.seq_obs == self.unanswered.seq:
            self.unanswered = None
        if message.status == "fresh" and message.t_obs_ns is not None:
            self.counts.latency_ns.append(now_ns - message.t_obs_ns)
        step = self.rule.receive(message, now_ns)
        if step.expired:
            self.counts.count["expired"] += 1
            self.acknowledge(message.tick, "expired")
        self._begin(step)
        self.version += 1

    def _later(self, now_ns: int) -> int:
        return now_ns + int(HELLO_AGAIN_NS * random.uniform(0.5, 1.5))

    def _begin(self, step: Step) -> bool:
        if step.act:
            self.version += 1
            standing = self.rule.at(time.monotonic_ns())
            if self.options.on_safe is not None and standing.status == "safe":
                self.handled_safe.append(standing)
            elif self.options.on_call is not None:
                self.handled.append(standing)
        return step.act is not None

    def _refused(self, message: ErrorMessage, now_ns: int) -> None:
        self.counts.count["errors"] += 1
        self.counts.last_error = f"{message.code}: {message.message} {message.remedy}".rstrip()[:500]
        if message.code == Code.INSTRUCTION and self._told is not None and self._instruction not in (None, self._told):
            # Said again in a later hello it would be refused for good: the one before goes on.
            self._instruction = self._told
            if not self.open:
                self._hello_ns, self._greeted = now_ns, False
                return
        unknown = message.code == Code.SESSION or (self.open and message.code == Code.STATE and message.retryable)
        if message.code == Code.STATE and not (self.open or message.retryable or message.fatal):
            self.astray = True
        elif not message.retryable and (message.fatal or not (self.open or unknown)):
            self.end(Refused(message))
        elif unknown or message.fatal:
            # Live: this connection is a new one to the server, so resume. Resuming: nobody knows the session, so anew.
            first = not self.open and self._known
            if not self.open or message.fatal:
                self._known = False
            self.lost()
            again_ns = now_ns if first else max(now_ns, self._said_hello_ns + BETWEEN_HELLOS_NS)
            self._hello_ns = again_ns if unknown else self._later(now_ns)
        elif not self.open:
            self._hello_ns = self._later(now_ns)
        elif self.unanswered is not None and message.seq == self.unanswered.seq:
            self.unanswered, self.refused = None, self.counts.last_error
            self.version += 1
