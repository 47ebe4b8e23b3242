"""Seeded random walks over the sessions' core, which check laws after each message, silence, loss or command."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from rtcontrol.serve import session_events as ev
from rtcontrol.serve.sessions import KEY_REVOKED, MAX_ENDING, Session
from rtcontrol_client.wire import Code, Message, WireError
from rtcontrol_client.wire.messages import (
    Bye,
    CallMessage,
    ControlMessage,
    ErrorMessage,
    Instruct,
    Ping,
    Reset,
    Welcome,
)
from tests.rtcontrol.serve.bench import Bench, S, Wire, bye, call, observe

SEEDS, STEPS = 60, 250
LIMIT, GRACE_S = 3, 10
STRANGE = "x" * 32
OF_A_SESSION = (Welcome, CallMessage, ControlMessage, Instruct)
ERRORS = [
    None,
    None,
    WireError(Code.DECODER, "It is away.", retryable=True),
    WireError(Code.INTERNAL, "It broke.", fatal=True),
]


class Walk:
    """A bench that takes random steps. `given`: the session of each token in a welcome; `owners`: the last session that
    each connection was welcomed to; `left`: the tokens of the byes that each connection has received."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.bench = Bench(limit=LIMIT, grace_ns=GRACE_S * S, outlives_client=seed % 5 == 4)
        self.wires: list[Wire] = [Wire(key=self.random.choice([None, "a"])) for _ in range(2)]
        self.given: dict[str, str] = {}
        self.owners: dict[Wire, str] = {}
        self.left: dict[Wire, set[str]] = {}
        self.read: dict[Wire, int] = {}
        self.stopped: set[str] = set()  # by a person
        self.trace: list[str] = []
        self.welcomes = self.resumes = 0

    @property
    def sessions(self) -> list[Session]:
        return list(self.bench.states.values())

    def step(self) -> None:
        """Take a random step, and check the laws."""
        action: Callable[[], None] = self.random.choice(ACTIONS).__get__(self)
        self.trace.append(getattr(action, "__name__", "?"))
        action()
        self.judge()

    # -- what may happen ----------------------------------------------------------------------------------------------

    def connect(self) -> None:
        if len(self.wires) < 8:
            self.wires.append(Wire(key=self.random.choice([None, "a"])))

    def greet(self) -> None:
        chance = self.random.random
        fields: dict[str, Any] = {"robot": "arm" if chance() < 0.2 else None, "crowd": chance() < 0.2}
        fields["capabilities"] = ["control"] if chance() < 0.5 else []
        self.bench.hello(self.wire(), **fields)

    def resume(self) -> None:
        wire, token = self.wire(), self.token()
        before = len(wire.sent)
        self.bench.hello(wire, resume=token)
        for message in wire.sent[before:]:
            if isinstance(message, Welcome):
                self.resumes += 1
                assert message.session == token, "a token resumes its own session"

    def message(self) -> None:
        wire = self.wire()
        peer = self.bench.core.peers.get(wire)
        session = None if peer is None else peer.session
        token = session.token if session is not None and self.random.random() < 0.8 else self.token()
        choice = self.random.choice
        text: list[Message] = [Reset(session=token, epoch=1), observe(token), Ping(id=1, t_ns=1)]
        text += [Instruct(session=token, instruction=choice(["left", "right"]))]
        text += [ControlMessage(session=token, say=choice(["pause", "resume", "confirm"]))]
        self.bench.send(wire, choice(text))

    def leave(self) -> None:
        wire = self.wire()
        peer = self.bench.core.peers.get(wire)
        if peer is not None and peer.session is not None:
            self.bench.send(wire, bye(peer.session))

    def leave_by_token(self) -> None:
        self.bench.send(self.wire(), Bye(session=self.token()))

    def lose(self) -> None:
        wire = self.wire()
        self.bench.lose(wire)
        self.wires.remove(wire)

    def revoke(self) -> None:
        if self.random.random() < 0.3:
            wire = self.wire()
            self.bench.handle(ev.ConnectionLost(wire, KEY_REVOKED))
            self.wires.remove(wire)

    def pass_time(self) -> None:
        self.bench.wait(self.random.choice([0.01, 0.5, 2.0, 4.0, 15.0]))
        self.wires = [wire for wire in self.wires if not wire.closed]

    def call(self) -> None:
        for session in self.sessions:
            if session.id in self.bench.running and self.random.random() < 0.7:
                self.bench.handle(ev.LoopMessage(session, call(session)))

    def report(self) -> None:
        if self.sessions:
            session = self.random.choice(self.sessions)
            result = Instruct(session=session.token, instruction="left", said="left")
            error = WireError(Code.INVALID, "x")
            reports: list[Any] = [
                ev.InstructionRejected(session, "it does not fit"),
                ev.LoopMessage(session, result),
                ev.LoopMessage(session, ControlMessage(session=session.token, state="paused")),
                ev.LoopError(session, error, "x"),
                ev.LogRequested(session, "x"),
            ]
            self.bench.handle(self.random.choice(reports))

    def people(self) -> None:
        if self.sessions:
            session = self.random.choice(self.sessions)
            word = self.random.choice(["pause", "resume", "confirm", "stop"])
            over = session.life.state == "over" or session.life.end_reason is not None
            self.bench.command(session, word)
            if word == "stop" and not over:
                self.stopped.add(session.token)

    def end(self) -> None:
        if self.bench.running:
            session = self.bench.states[self.random.choice(sorted(self.bench.running))]
            self.bench.end(session, self.random.choice(ERRORS))

    def open(self) -> None:
        self.bench.opens()

    def hurry(self) -> None:
        self.bench.slow = self.random.random() < 0.3
        self.bench.lingers = self.random.random() < 0.3
        self.bench.no_thread = self.random.random() < 0.1

    # -- the laws -----------------------------------------------------------------------------------------------------

    def judge(self) -> None:
        core = self.bench.core
        for session in core.sessions:
            assert session.peer is None or session.peer.session is session, "a session has one owner"
            parked_ns = self.bench.now - session.life.parked_ns
            assert session.life.state != "parked" or parked_ns <= GRACE_S * S, "a parked session's hold ends"
            assert session.life.state != "parked" or session.peer is None, "who waits for a client has none"
        for peer in core.peers.values():
            assert peer.session is None or peer.session.peer is peer, "a connection owns what owns it"
        tokens = [session.token for session in core.sessions]
        assert len(tokens) == len(set(tokens)), "each token is one session's"
        states = core.sessions.states()
        assert states["parked"] <= LIMIT and states["opening"] + states["live"] <= LIMIT + MAX_ENDING
        for wire in [*self.read, *self.wires]:
            for message in wire.sent[self.read.get(wire, 0) :]:
                self.sent(wire, message)
            self.read[wire] = len(wire.sent)
        for session in self.sessions:
            over = session.life.state == "over" and not self.bench.lingers
            assert not (over and session.id in self.bench.running and session.peer is not None)

    def sent(self, wire: Wire, message: Message) -> None:
        if isinstance(message, Bye):
            assert message.session is not None
            self.left.setdefault(wire, set()).add(message.session)
        elif isinstance(message, OF_A_SESSION):
            token = message.session
            assert token not in self.left.get(wire, ()), "nothing is sent after bye"
            if isinstance(message, Welcome):
                self.welcomes += 1
                assert token not in self.stopped, "who was stopped is never welcomed again"
                self.owners[wire] = token
                session = next(s for s in self.sessions if s.token == token)
                assert self.given.setdefault(token, session.id) == session.id, "a token names one session"
            assert self.owners.get(wire) == token, "nothing is sent before the welcome"
        elif isinstance(message, ErrorMessage):
            assert message.code != Code.INTERNAL or "broke" in message.message

    def wire(self) -> Wire:
        if not self.wires:
            self.wires.append(Wire())
        return self.random.choice(self.wires)

    def token(self) -> str:
        return self.random.choice([*self.given, STRANGE])


ACTIONS: list[Any] = [
    *[Walk.connect, Walk.greet, Walk.greet, Walk.resume, Walk.resume, Walk.message, Walk.message, Walk.message],
    *[Walk.leave, Walk.leave_by_token, Walk.lose, Walk.lose, Walk.revoke, Walk.pass_time, Walk.call, Walk.call],
    *[Walk.report, Walk.report, Walk.people, Walk.end, Walk.open, Walk.open, Walk.hurry],
]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_laws_hold_for_random_events_in_random_order(seed: int) -> None:
    walk = Walk(seed)
    try:
        for _ in range(STEPS):
            walk.step()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, step {len(walk.trace)}: {error}; {', '.join(walk.trace[-12:])}") from error
    assert walk.welcomes, "the walk came to nothing"
