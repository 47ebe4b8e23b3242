"""The sessions of a server: who may come in, who may come back."""

from __future__ import annotations

import secrets
from collections import Counter
from pathlib import Path

from rtcontrol.bridges.wire import Code, WireError
from rtcontrol.bridges.wire.messages import Hello
from rtcontrol.serve.session import AGAIN, Session

# Beside the sessions: those that are just ending.
SPARE = 16


class Rooms:
    """At most `limit` sessions that run, and as many that wait for their clients. Not locked: the lobby is."""

    def __init__(self, limit: int, out: Path) -> None:
        self._limit = limit
        self._sessions: dict[str, Session] = {}
        # Numbers go on after those that lie in the folder: a restarted server overwrites no record.
        self._last = max((int(n) for p in out.glob("session-*") if (n := p.name[8:]).isdigit()), default=0)

    def number(self) -> int:
        """Of the next session."""
        self._last += 1
        return self._last

    def all(self) -> list[Session]:
        return list(self._sessions.values())

    def states(self) -> dict[str, int]:
        count = Counter(session.state for session in self._sessions.values())
        return {state: count[state] for state in ("opening", "live", "parked")}

    def add(self, session: Session) -> None:
        self._sessions[session.id] = session

    def forget(self, session: Session) -> None:
        session.state = "over"
        self._sessions.pop(session.id, None)

    def find(self, token: str, key: str | None) -> Session:
        """The session that the client with this CURVE key may resume. Raises WireError."""
        session = next((s for s in self._sessions.values() if same(token, s.token)), None)
        if session is None or session.why is not None or session.key != key or session.terms is None:
            raise WireError(
                Code.SESSION,
                "There is no such session (any more).",
                "Say hello without `resume`.",
                field="resume",
                retryable=True,
            )
        return session

    def lost(self, token: str, key: str | None) -> Session | None:
        """The session of this token that has no connection (any more)."""
        found = (s for s in self._sessions.values() if s.peer is None and s.key == key and same(token, s.token))
        return next(found, None)

    def vacant(self, hello: Hello, key: str | None) -> Session | None:
        """A session that goes on without a client, and lets this one take its place."""
        found = (s for s in self._sessions.values() if s.peer is None and s.why is None and s.key == key)
        return next((s for s in found if s.may_succeed(hello)), None)

    def check_room(self, besides: Session | None = None) -> None:
        """Raises WireError (busy) when all places are taken, or too many sessions are just ending."""
        others = [s for s in self._sessions.values() if s.state != "parked" and s is not besides]
        if sum(s.why is None for s in others) >= self._limit or len(others) >= self._limit + SPARE:
            raise WireError(
                Code.BUSY,
                f"All {self._limit} sessions are taken.",
                AGAIN,
                retryable=True,
                fatal=True,
            )

    def claim(self, robot: str | None) -> None:
        """A session that only waits for its client loses the robot to a new one. Raises WireError (busy) where it is
        another's."""
        if robot is None:
            return
        for other in [s for s in self._sessions.values() if s.hello.robot == robot and s.why is None]:
            if other.state != "parked":
                raise WireError(
                    Code.BUSY,
                    f"The robot {robot!r} is claimed by another session.",
                    "End that one, or say the same hello again, with growing pauses, until it is gone.",
                    field="robot",
                    retryable=True,
                    fatal=True,
                )
            self.forget(other)

    def park(self, session: Session, now_s: float) -> None:
        session.state, session.parked_s = "parked", now_s
        parked = [s for s in self._sessions.values() if s.state == "parked"]
        if len(parked) > self._limit:
            self.forget(min(parked, key=lambda s: s.parked_s))

    def expire(self, before_s: float) -> list[Session]:
        """Forget the sessions that were parked earlier."""
        gone = [s for s in self._sessions.values() if s.state == "parked" and s.parked_s < before_s]
        for session in gone:
            self.forget(session)
        return gone


def same(a: str, b: str) -> bool:
    """Compares secrets in constant time."""
    return secrets.compare_digest(a.encode("utf-8", "replace"), b.encode("utf-8", "replace"))
