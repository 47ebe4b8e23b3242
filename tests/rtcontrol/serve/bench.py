"""A bench for the sessions' core by a fake clock, with connections that keep messages and scripted loops."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rtcontrol.serve import session_events as ev
from rtcontrol.serve.owner import SessionOwner
from rtcontrol.serve.paused import PausedRobots
from rtcontrol.serve.session_core import SessionCore
from rtcontrol.serve.sessions import DecoderNeed, Session, SessionRules
from rtcontrol_client.wire import Message, WireError
from rtcontrol_client.wire.messages import (
    Bye,
    CallMessage,
    ControlMessage,
    CrowdRequest,
    ErrorMessage,
    Hello,
    Observe,
    Program,
    Timing,
    Welcome,
)

M = TypeVar("M", bound=Message)
S = 1_000_000_000


@dataclass(eq=False)
class Wire:
    """A connection that keeps all sent messages."""

    peer: str = "a peer"
    key: str | None = None
    closed: bool = False
    sent: list[Message] = field(default_factory=list)

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def close(self) -> None:
        self.closed = True

    def take(self, kind: type[M]) -> list[M]:
        """Return the messages of this type, and clear all messages."""
        matches: list[M] = [message for message in self.sent if isinstance(message, kind)]
        self.sent.clear()
        return matches

    def only(self, kind: type[M]) -> M:
        """Return the only message, which must be of this type."""
        assert [type(message) for message in self.sent] == [kind], self.sent
        return self.take(kind)[0]

    def error(self) -> tuple[str, bool, bool]:
        """Return code, `fatal` and `retryable` of the only message, which must be an error."""
        error = self.only(ErrorMessage)
        return error.code, error.fatal, error.retryable

    def code(self) -> str:
        return self.error()[0]


class FakeRunner:
    """A fake session thread and loop, which the bench controls; `done` has the core's actions."""

    def __init__(self, session: Session, bench: Bench) -> None:
        self.bench, self.session = bench, session

    @property
    def running(self) -> bool:
        return self.session.id in self.bench.running

    def start(self, first: bool) -> None:
        bench = self.bench
        bench.states[self.session.id] = self.session
        if bench.no_thread:
            raise RuntimeError("can't start new thread")
        bench.waiting.append(self.session)
        if not bench.slow:
            bench.later.append(bench.opens)

    def deliver(self, message: Message) -> None:
        self.note("take", message)
        if self.bench.world_error is not None:
            raise self.bench.world_error

    def instruct_loop(self, text: str) -> bool:
        self.note("instruct", text)
        if self.running:
            self.bench.running[self.session.id] = text
        return self.running

    def welcome_messages(self, resumed: bool) -> list[Message]:
        if not self.running:
            return []
        fields: dict[str, Any] = {"session": self.session.token, "resumed": resumed, "t_server_ns": self.bench.now}
        fields |= {"t_client_ns": self.session.hello.t_client_ns, "instruction": self.bench.running[self.session.id]}
        welcome = Welcome.model_construct(type="welcome", **fields)
        return [welcome] if self.bench.control is None else [welcome, self.bench.control]

    def command_loop(self, word: str, by: str, k: int | None) -> str:
        self.note("say", word, by, k)
        if word == "stop":
            self.stop_loop(word)
        return f"{word}: done"

    def stop_loop(self, why: str) -> None:
        if not self.bench.lingers:
            self.bench.later.append(lambda: self.bench.end(self.session))

    def decoder_need(self) -> DecoderNeed | None:
        return self.bench.need_of.get(self.session.id)

    def note(self, *action: Any) -> None:
        self.bench.done.append((self.session.id, *action))


class Bench(SessionOwner):
    """A core, its server and the loops of its sessions.

    `slow`: sessions stay opening until `opens`; `lingers`: loops end at `end` alone; `no_thread`: none is to be had;
    `refusal`: of the next terms; `need_of`: of the decoder, by session; `control`: what welcomes say; `world_error`:
    what each message meets. `running`: sessions whose loops run, with their newest instruction; `done`: what the core
    wanted of runners.
    """

    def __init__(self, **rules: Any) -> None:
        self.now = 1_000 * S
        self.core = SessionCore(SessionRules(**rules), b"secret", now_ns=self.now)
        self.control: ControlMessage | None = None
        self.slow = self.lingers = self.no_thread = False
        self.refusal: WireError | None = None
        self.world_error: WireError | None = None
        self.need_of: dict[str, DecoderNeed] = {}
        self.states: dict[str, Session] = {}
        self.running: dict[str, str] = {}
        self.waiting: list[Session] = []  # for their turn
        self.later: list[Callable[[], object]] = []  # what other threads do once the core's lock is free
        self.done: list[tuple[Any, ...]] = []
        self.lines: list[str] = []
        self.log_line, self._create_runner, self.lock = self.lines.append, FakeRunner, threading.Lock()
        self.paused_robots = PausedRobots(None, self.lines.append)

    def now_ns(self) -> int:
        return self.now

    # -- clients ------------------------------------------------------------------------------------------------------

    def hello(self, wire: Wire, crowd: bool = False, **fields: Any) -> Hello:
        """Send a hello, by default for an agent."""
        fields = {"client": Program(name="c"), "agent": "lander", "protocol": [1, 1], **fields}
        hello = Hello(t_client_ns=self.now, crowd=CrowdRequest() if crowd else None, **fields)
        self.send(wire, hello)
        return hello

    def enter(self, wire: Wire | None = None, **fields: Any) -> tuple[Wire, Session]:
        """Return the connection and the session of a new, welcomed client."""
        wire = wire or Wire()
        self.hello(wire, **fields)
        welcome = wire.only(Welcome)
        return wire, next(s for s in self.core.sessions if s.token == welcome.session)

    def send(self, wire: Wire, message: Message) -> None:
        """Let a client send a message."""
        self.handle(ev.MessageReceived(wire, message))

    def command(self, session: Session, word: str) -> str:
        """Give a command as a person at the server."""
        return self.handle(ev.CommandReceived(session, word, "page"))

    def lose(self, wire: Wire) -> None:
        self.handle(ev.ConnectionLost(wire))

    def parked(self, **fields: Any) -> Session:
        """Return a parked session."""
        wire, session = self.enter(**fields)
        self.lose(wire)
        assert session.life.state == "parked"
        return session

    def has_room(self) -> bool:
        return self.core.has_room(self.decoder_needs())

    def states_of(self) -> dict[str, int]:
        return {state: n for state, n in self.core.sessions.states().items() if n}

    # -- time, and the threads ----------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Let the time pass, and wake the core whenever something is due."""
        until = self.now + round(seconds * S)
        while (wake := self.core.wake_ns) is not None and wake <= until:
            self.now = max(self.now, wake)
            self.handle(ev.TimerFired())
            again = self.core.wake_ns
            assert again is None or again > self.now, "the core wakes for nothing"
        self.now = until

    def handle(self, event: Any) -> Any:
        """Pass the event to the core, carry out its actions, and then do the work of other threads."""
        answer = super().handle(event)
        while self.later:
            self.later.pop(0)()
        return answer

    def opens(self) -> None:
        """Open the waiting sessions and run their loops."""
        while self.waiting:
            session = self.waiting.pop(0)
            try:
                runs, error = self._open(session), None
            except WireError as refusal:
                runs, error = False, refusal
                self.running.pop(session.id, None)
            if not runs:
                self.handle(ev.SessionEnded(session, error))

    def _open(self, session: Session) -> bool:
        if not session.negotiated and self.refusal is not None:
            raise self.refusal
        if not self.handle(ev.SettingsNegotiated(session, self.paused_robots.reason(session.hello.robot or ""))):
            return False
        self.running[session.id] = session.instructions.first or "go"
        self.handle(ev.LoopCreated(session))
        refusal = (
            self.handle(ev.LoopWarmedUp(session, "terms", self.decoder_needs(), session.hello.hz or 0.0))
            if session.id in self.running
            else None
        )
        if refusal is not None:
            raise refusal
        return True

    def end(self, session: Session, error: WireError | None = None) -> None:
        """End the session's loop, if it runs."""
        if (newest := self.running.pop(session.id, None)) is not None:
            self.handle(ev.SessionEnded(session, error, run_instructions=(session.instructions.first or "go", newest)))


def bye(session: Session) -> Bye:
    return Bye(session=session.token)


def observe(token: str, seq: int = 1) -> Observe:
    return Observe(session=token, seq=seq, epoch=0, t_ns=1, text="x")


def call(session: Session, **more: Any) -> CallMessage:
    fields: dict[str, Any] = {"session": session.token, "tick": 1, "epoch": 0, "status": "fresh", "seq_obs": 7}
    return CallMessage(**fields, ttl_ms=500, deadline_ns=1, t_server_ns=1, timing=Timing(), **more)
