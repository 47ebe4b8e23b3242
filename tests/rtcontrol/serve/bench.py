"""The sessions' core by a fake clock: connections that keep what was sent to them, loops that do as a test says."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rtcontrol.models.errors import UserError
from rtcontrol.serve import refusals
from rtcontrol.serve import sessions as do
from rtcontrol.serve.session_core import SessionCore
from rtcontrol.serve.sessions import LoopStanding, Need, SessionFacts, SessionRules
from rtcontrol_client.wire import Message, WireError
from rtcontrol_client.wire.messages import (
    Bye,
    CallMessage,
    CrowdWish,
    ErrorMessage,
    Hello,
    Observe,
    Program,
    Timing,
    Welcome,
)

M = TypeVar("M", bound=Message)
T = TypeVar("T")
S = 1_000_000_000


@dataclass(eq=False)
class Wire:
    """One connection, and what was sent on it."""

    peer: str = "a peer"
    key: str | None = None
    closed: bool = False
    sent: list[Message] = field(default_factory=list)

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def close(self) -> None:
        self.closed = True

    def take(self, kind: type[M]) -> list[M]:
        """Return what came of this type, and forget all that came."""
        found: list[M] = [message for message in self.sent if isinstance(message, kind)]
        self.sent.clear()
        return found

    def one(self, kind: type[M]) -> M:
        """Return the only message that came, which is of this type."""
        assert [type(message) for message in self.sent] == [kind], self.sent
        return self.take(kind)[0]

    def error(self) -> tuple[str, bool, bool]:
        """Return code, `fatal` and `retryable` of the only message that came, an error."""
        error = self.one(ErrorMessage)
        return error.code, error.fatal, error.retryable

    def code(self) -> str:
        return self.error()[0]


@dataclass
class FakeTerms:
    """Terms whose welcome is of what a test looks at."""

    interprets: bool = False

    def welcome(self, session: str, standing: LoopStanding, now_ns: int, resumed: bool, t_client_ns: int) -> Welcome:
        told = {"session": session, "resumed": resumed, "t_client_ns": t_client_ns, "t_server_ns": now_ns}
        return Welcome.model_construct(**told, protocol=[1, 1], instruction=standing.instruction)  # type: ignore[arg-type]

    def described(self) -> str:
        return "terms"


class Bench:
    """A core and the loops of its sessions. `tell` does what the core says, as the server's shell does.

    `slow`: sessions stay opening until `opens`; `lingers`: loops end at `end` alone; `no_thread`: none is to be had;
    `refusal`: of the next terms; `needs`: of the decoder, by session; `standing`: of every loop. `running`: sessions
    whose loops run, with their first instruction; `done`: what the core wanted, but for what was sent.
    """

    def __init__(self, interprets: bool = False, **rules: Any) -> None:
        self.now, tokens = 1_000 * S, itertools.count(1)
        new_token = lambda: f"{next(tokens):032d}"  # noqa: E731
        self.core = SessionCore(SessionRules(**rules), new_token=new_token, plain=plain, now_ns=self.now)
        self.terms, self.standing = FakeTerms(interprets), LoopStanding("go")
        self.slow = self.lingers = self.no_thread = False
        self.refusal: WireError | None = None
        self.needs: dict[str, Need] = {}
        self.states: dict[str, SessionFacts] = {}
        self.running: dict[str, str | None] = {}
        self.waiting: list[SessionFacts] = []  # for their turn
        self.done: list[do.Action] = []
        self.lines: list[str] = []

    # -- clients ------------------------------------------------------------------------------------------------------

    def hello(self, wire: Wire, crowd: bool = False, **fields: Any) -> Hello:
        """Say hello; by default for an agent."""
        given = {"client": Program(name="c"), "agent": "lander", "protocol": [1, 1], **fields}
        said = Hello(t_client_ns=self.now, crowd=CrowdWish() if crowd else None, **given)
        self.say(wire, said)
        return said

    def enter(self, wire: Wire | None = None, **fields: Any) -> tuple[Wire, SessionFacts]:
        """Return the connection of a client that was welcomed, and its session."""
        wire = wire or Wire()
        self.hello(wire, **fields)
        welcome = wire.one(Welcome)
        return wire, next(s for s in self.core.sessions if s.token == welcome.session)

    def say(self, wire: Wire, message: Message) -> None:
        self.tell(self.core.received, wire, message)

    def command(self, session: SessionFacts, word: str) -> str | None:
        """Say it as a person at the server; returns what the core answers."""
        answer = self.tell(self.core.command, session, word, "page")
        if answer is None:
            self._do(do.SayToLoop(session, word, "page", None), turn := do.Turn(self.now))
            self._dispatch(turn)
        return answer

    def lose(self, wire: Wire) -> None:
        self.tell(self.core.disconnected, wire)

    def parked(self, **fields: Any) -> SessionFacts:
        """Return a session that waits for its client."""
        wire, session = self.enter(**fields)
        self.lose(wire)
        assert session.life.state == "parked"
        return session

    def states_of(self) -> dict[str, int]:
        return {state: n for state, n in self.core.sessions.states().items() if n}

    # -- time, and the shell ------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Let the time pass; the core wakes whenever it wants to."""
        until = self.now + round(seconds * S)
        while (wake := self.core.wake_ns) is not None and wake <= until:
            self.now = max(self.now, wake)
            self.tell(self.core.woke)
            again = self.core.wake_ns
            assert again is None or again > self.now, "the core wakes for nothing"
        self.now = until

    def tell(self, take: Callable[..., T], *given: Any, **named: Any) -> T:
        """Let this method of the core take what happened, do what it says, and return what it does."""
        turn = do.Turn(self.now)
        answer = take(turn, *given, **named)
        self._dispatch(turn)
        return answer

    def _dispatch(self, turn: do.Turn) -> None:
        for action in turn:
            self._do(action, turn)

    def _do(self, action: do.Action, turn: do.Turn) -> None:
        if not isinstance(action, do.SendMessage):
            self.done.append(action)
        match action:
            case do.SendMessage(connection, message):
                connection.send(message)
            case do.DropConnection(connection):
                connection.close()
            case do.NotifyPeople(text):
                self.lines.append(text)
            case do.StartThread(session):
                self.states[session.id] = session
                if self.no_thread:
                    self.core.ended(turn, session, refusals.no_thread(session.life.welcomed))
                    return
                self.waiting.append(session)
                if not self.slow:
                    self.opens()
            case do.LookAtLoop(session) if session.id in self.running:
                self.core.looked(turn, session, self.standing)
            case do.StopLoop(session) | do.SayToLoop(session, "stop"):
                if not self.lingers and self.running.pop(session.id, self) is not self:
                    self.core.ended(turn, session)
            case do.InstructLoop(session, text):
                self.core.instructed(turn, session, text, session.id in self.running)

    def opens(self) -> None:
        """Let the sessions that wait for their turn open, and their loops run."""
        while self.waiting:
            session = self.waiting.pop(0)
            try:
                runs, error = self._open(session), None
            except WireError as refusal:
                runs, error = False, refusal
                self.running.pop(session.id, None)
            if not runs:
                self.tell(self.core.ended, session, error)

    def _open(self, session: SessionFacts) -> bool:
        if session.terms is None and self.refusal is not None:
            raise self.refusal
        if not self.tell(self.core.opens, session, self.terms):
            return False
        self.running[session.id] = session.instructions.began
        self.tell(self.core.attached, session)
        if session.id in self.running:
            self.tell(self.core.warm, session, self.needs)
        return True

    def end(self, session: SessionFacts, error: WireError | None = None) -> None:
        """The session's loop is over, if it runs."""
        if self.running.pop(session.id, self) is not self:
            self.tell(self.core.ended, session, error)


def plain(text: str) -> str:
    if len(text) > 100:
        raise UserError("The instruction is too long.", "Say it in fewer words.")
    return text.strip()


def bye(session: SessionFacts) -> Bye:
    return Bye(session=session.token)


def observe(token: str, seq: int = 1) -> Observe:
    return Observe(session=token, seq=seq, epoch=0, t_ns=1, text="x")


def call(session: SessionFacts, **more: Any) -> CallMessage:
    given: dict[str, Any] = {"session": session.token, "tick": 1, "epoch": 0, "status": "fresh", "seq_obs": 7}
    return CallMessage(**given, ttl_ms=500, deadline_ns=1, t_server_ns=1, timing=Timing(), **more)
