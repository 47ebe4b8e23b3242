"""The sessions' core by a fake clock: connections that keep what was sent to them, loops that do as a test says."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rtcontrol.models.errors import UserError
from rtcontrol.serve import session_events as ev
from rtcontrol.serve.capacity import Need
from rtcontrol.serve.session_core import SessionCore
from rtcontrol.serve.session_state import LoopStanding, SessionFacts
from rtcontrol.serve.sessions import SessionRules
from rtcontrol_client.wire import Message, WireError
from rtcontrol_client.wire.crowd import CrowdWish
from rtcontrol_client.wire.messages import Bye, ControlMessage, ErrorMessage, Hello, Ping, Program, Welcome

M = TypeVar("M", bound=Message)
S = 1_000_000_000


@dataclass(eq=False)
class Wire:
    """One connection. `sent`: what came of it."""

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

    def code(self) -> str:
        """Return the code of the only message that came, an error."""
        return self.one(ErrorMessage).code


@dataclass
class FakeTerms:
    """Terms of which the welcome tells what a session is by."""

    interprets: bool = False

    def welcome(self, session: str, instruction: str, *, now_ns: int, more: Sequence[str] = (), **told: Any) -> Welcome:
        program = Program(name="server")
        return Welcome.model_construct(
            protocol=[1, 1], server=program, session=session, instruction=instruction, t_server_ns=now_ns, **told
        )

    def described(self) -> str:
        return "terms"


class Bench:
    """A core and the loops of its sessions. `advance` does what the core says, as the server's shell does.

    `slow`: sessions stay opening until `opens`; `lingers`: loops end at `end` alone; `no_thread`: none is to be had;
    `refusal`: of the next terms; `needs`: of the decoder, by session; `standing`: of every loop.
    """

    def __init__(self, interprets: bool = False, **rules: Any) -> None:
        self.now = 1_000 * S
        self.numbers = itertools.count(1)
        self.core = SessionCore(
            SessionRules(**rules), new_token=lambda: f"{next(self.numbers):032d}", plain=plain, now_ns=self.now
        )
        self.terms = FakeTerms(interprets)
        self.slow = self.lingers = self.no_thread = False
        self.refusal: WireError | None = None
        self.needs: dict[str, Need] = {}
        self.standing = LoopStanding("go")
        self.states: dict[str, SessionFacts] = {}
        self.running: dict[str, str | None] = {}  # sessions whose loops run, and the instruction that they began with
        self.waiting: list[SessionFacts] = []  # sessions whose threads wait for their turn
        self.done: list[ev.Action] = []  # what the core wanted, but for what was sent
        self.lines: list[str] = []

    # -- clients ------------------------------------------------------------------------------------------------------

    def hello(self, wire: Wire, **fields: Any) -> Hello:
        """Say hello; by default for an agent."""
        given: dict[str, Any] = {"client": Program(name="c"), "agent": "lander", "protocol": [1, 1]}
        crowd = fields.pop("crowd", False)
        said = Hello(t_client_ns=self.now, crowd=CrowdWish() if crowd else None, **{**given, **fields})
        self.say(wire, said)
        return said

    def enter(self, wire: Wire | None = None, **fields: Any) -> tuple[Wire, SessionFacts]:
        """Return the connection of a client that was welcomed, and its session."""
        wire = wire or Wire()
        self.hello(wire, **fields)
        welcome = wire.one(Welcome)
        return wire, next(s for s in self.core.sessions if s.token == welcome.session)

    def say(self, wire: Wire, message: Message) -> list[ev.Action]:
        return self.advance(ev.MessageReceived(wire, message))

    def lose(self, wire: Wire) -> None:
        self.advance(ev.Disconnected(wire))

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
            self.advance(ev.TimePassed())
            again = self.core.wake_ns
            assert again is None or again > self.now, "the core wakes for nothing"
        self.now = until

    def advance(self, event: ev.Event) -> list[ev.Action]:
        """Return what is the caller's to do."""
        rest: list[ev.Action] = []
        events = deque([event])
        while events:
            for action in self.core.advance(events.popleft(), self.now):
                events.extend(self._do(action, rest))
        return rest

    def _do(self, action: ev.Action, rest: list[ev.Action]) -> list[ev.Event]:
        if isinstance(action, ev.SendMessage):
            action.connection.send(action.message)
            return []
        self.done.append(action)
        match action:
            case ev.DropConnection(connection):
                connection.close()
            case ev.NotifyPeople(text):
                self.lines.append(text)
            case ev.StartThread(session, peer):
                return self._start(session, peer)
            case ev.LookAtLoop(session):
                return [ev.LoopSeen(session, self.standing)] if session.id in self.running else []
            case ev.StopLoop(session) if not self.lingers:
                return self.ends(session)
            case ev.InstructLoop(session, text):
                return [ev.InstructionHeard(session, text, session.id in self.running)]
            case ev.SayToLoop(session, "stop"):
                rest.append(action)
                return [] if self.lingers else self.ends(session)
            case ev.ForwardMessage() | ev.SucceedClient() | ev.ForgetSession() | ev.StopLoop():
                pass
            case _:
                rest.append(action)
        return []

    def _start(self, session: SessionFacts, peer: Any) -> list[ev.Event]:
        self.states[session.id] = session
        if self.no_thread:
            return [ev.NoThread(session, peer)]
        self.waiting.append(session)
        if not self.slow:
            self.opens()
        return []

    def opens(self) -> None:
        """Let the sessions that wait for their turn open, and their loops run."""
        while self.waiting:
            session = self.waiting.pop(0)
            error = self._open(session)
            if error is not RUNS:
                self.advance(ev.SessionEnded(session, error))

    def _open(self, session: SessionFacts) -> Any:
        actions = self.advance(ev.TurnCame(session))
        if actions and isinstance(actions[0], ev.NegotiateTerms):
            if self.refusal is not None:
                return self.refusal
            actions = self.advance(ev.TermsAgreed(session, self.terms))
        if not actions:
            return None
        (opened,) = actions
        assert isinstance(opened, ev.OpenHost)
        self.running[session.id] = opened.instruction
        self.advance(ev.LoopAttached(session))
        if session.id not in self.running:  # stopped at once
            return RUNS
        for action in self.advance(ev.LoopWarm(session, self.needs)):
            assert isinstance(action, ev.RefuseLoop)
            del self.running[session.id]
            return action.error
        return RUNS

    def ends(self, session: SessionFacts, error: WireError | None = None) -> list[ev.Event]:
        """The session's loop is over; returns what its thread tells."""
        if self.running.pop(session.id, RUNS) is RUNS:
            return []
        return [ev.SessionEnded(session, error)]

    def end(self, session: SessionFacts, error: WireError | None = None) -> None:
        for event in self.ends(session, error):
            self.advance(event)


RUNS: Any = object()


def plain(text: str) -> str:
    if len(text) > 100:
        raise UserError("The instruction is too long.", "Say it in fewer words.")
    return text.strip()


def bye(session: SessionFacts) -> Bye:
    return Bye(session=session.token)


def control(session: SessionFacts, word: Any, **more: Any) -> ControlMessage:
    return ControlMessage(session=session.token, say=word, **more)


def ping(number: int = 1) -> Ping:
    return Ping(id=number, t_ns=1)
