"""A server that drains: when each client is sent to another server; without sockets and clocks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rtcontrol.serve import session_manager
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.session import BY_HAND, Session
from rtcontrol.serve.session_manager import SessionManager
from rtcontrol_client.wire import Message
from rtcontrol_client.wire.messages import Bye, CallMessage, ErrorMessage, Hello, Program

LIVE, OPENING, SILENT = "live", "opening", "silent"


class Line:
    """A connection that keeps what is sent."""

    key: str | None = None

    def __init__(self, peer: str) -> None:
        self.peer, self.sent = peer, list[Message]()

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def close(self) -> None: ...


class Idle(Session):
    """A session without a thread, which is what its client's name says."""

    def start(self) -> None:
        self.state = "opening" if self.shown_name == OPENING else "live"


def call(session: Session, **changed: Any) -> None:
    """Let the session's loop make a call."""
    fields = {"session": session.token, "tick": 0, "epoch": 0, "status": "fresh", "ttl_ms": 500}
    session.send(CallMessage(**{**fields, "deadline_ns": 0, "t_server_ns": 0, **changed}))


class Drained:
    """A server that has drained: its clients by the order in which they came, and what happened in which pause."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, names: list[str], **fields: Any) -> None:
        options = ServeOptions(model="random", out=folder)
        none: Any = None
        self.manager = SessionManager(options, none, none, make=Idle)
        self.lines, self.pauses, self.fields = [Line(name) for name in names], list[float](), fields
        for line in self.lines:
            hello = Hello(protocol=[1, 1], client=Program(name=line.peer), t_client_ns=0, agent="lander")
            self.manager.receive(line, hello)
        self.sessions = self.manager.all()
        self.away: list[list[int]] = []  # after each pause: whose clients were sent away by then
        clock = SimpleNamespace(sleep=self._sleep, monotonic=lambda: 0.0, monotonic_ns=lambda: 0)
        patch.setattr(session_manager, "time", clock)
        self.manager.drain(1.0)

    def _sleep(self, seconds: float) -> None:
        """Let each live session make a call."""
        self.pauses.append(seconds)
        for session in self.sessions:
            if session.shown_name == LIVE:
                call(session, **self.fields)
        self.away.append([n for n, line in enumerate(self.lines) if any(isinstance(m, Bye) for m in line.sent)])


def test_clients_are_sent_away_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drained = Drained(tmp_path, monkeypatch, [LIVE] * 3)
    assert drained.away == [[], [0], [0, 1], [0, 1, 2]]
    assert drained.pauses[0] == 1.0 and all(0.05 <= pause <= 0.2 for pause in drained.pauses[1:])


def test_many_clients_are_sent_away_in_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drained = Drained(tmp_path, monkeypatch, [LIVE] * 64)
    assert drained.away[-1] == list(range(64)) and sum(drained.pauses) <= 1.0 + session_manager.LEAVE_S + 0.1


def test_bye_follows_the_call_and_nothing_follows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drained = Drained(tmp_path, monkeypatch, [LIVE])
    *calls, bye = drained.lines[0].sent
    assert len(calls) == 2 and all(isinstance(message, CallMessage) for message in calls)
    assert isinstance(bye, Bye) and bye.reconnect and bye.session == drained.sessions[0].token
    assert drained.sessions[0].peer is None and drained.sessions[0].why == bye.reason
    drained.manager.ended(drained.sessions[0], None)
    assert drained.lines[0].sent[-1] is bye and not drained.manager.all()


def test_bye_waits_for_the_last_call_of_an_observation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drained = Drained(tmp_path, monkeypatch, [LIVE], more=True)
    assert drained.away == [[], []]
    call(drained.sessions[0])
    assert isinstance(drained.lines[0].sent[-1], Bye)


def test_silent_and_opening_sessions_end_with_a_bye(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drained = Drained(tmp_path, monkeypatch, [SILENT, OPENING])
    for session, line in zip(drained.sessions, drained.lines, strict=True):
        assert session.why is not None and session.peer is not None and not line.sent
        drained.manager.ended(session, None)
        assert [m.reconnect for m in line.sent if isinstance(m, Bye)] == [True]


def test_session_that_a_person_stopped_is_not_sent_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drained = Drained(tmp_path, monkeypatch, [SILENT])
    drained.sessions[0].why = BY_HAND
    call(drained.sessions[0], status="safe")
    drained.manager.ended(drained.sessions[0], None)
    assert not any(isinstance(m, Bye) and m.reconnect for m in drained.lines[0].sent)
    assert any(isinstance(m, ErrorMessage) and m.fatal for m in drained.lines[0].sent)


def test_left_connection_gets_no_new_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drained = Drained(tmp_path, monkeypatch, [LIVE])
    line = drained.lines[0]
    drained.manager.receive(line, Hello(protocol=[1, 1], client=Program(name=LIVE), t_client_ns=1, agent="lander"))
    refused = line.sent[-1]
    assert isinstance(refused, ErrorMessage) and (refused.code, refused.retryable) == ("busy", True)
