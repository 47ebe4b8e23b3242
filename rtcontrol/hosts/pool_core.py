"""Which sessions have a decider in a process that may be lost and replaced: who is up, and what is to be built.

A life of the process is whatever its `start` answered; a lost one is killed, so nothing of it remains. Not locked: the
pool holds a lock around every use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rtcontrol.hosts.protocol import DecoderUnavailable, HostEvent, HostState
from rtcontrol.models.errors import UserError

# So often a session's decider is built again in a process that is up, with so long between two builds.
REBUILDS, AGAIN_NS = 30, 1_000_000_000
# A new session's build that ends the process each time must not end it for ever.
ATTEMPTS = 3


@dataclass(slots=True, eq=False)
class Session(HostState):
    """A session and its decider: `up` where it is there, `lost_ns` since when it is not, `error` why there never was
    one. `due_ns`: when it may be built again after so many `failures`."""

    name: str
    key: bytes
    up: bool = False
    lost_ns: int | None = None
    error: UserError | None = None
    failures: int = 0
    due_ns: int = 0


class PoolCore:
    """The sessions of one process, at most `limit`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.life: Any = None  # None: the process is away
        self.gave_up: str | None = None
        self.closed = False
        self.sessions: set[Session] = set()

    def open(self, session: Session) -> None:
        """A session needs a decider. Raises DecoderUnavailable where there will be none, or no more sessions may be."""
        if self.closed or self.gave_up is not None:
            raise DecoderUnavailable(self.gave_up or "The decoder is closed.", "Start it again.")
        if len(self.sessions) >= self.limit:
            what = f"The decoder has {self.limit} open sessions, as many as it may."
            raise DecoderUnavailable(what, "Close one, or try again later.", full=True)
        self.sessions.add(session)

    def restored(self, life: Any) -> None:
        """The process is up, by this life."""
        if not self.closed:
            self.life = life

    def lost(self, lost_ns: int) -> None:
        """The process is away, and so is the decider of each session; some are not yet back from the loss before."""
        self.life = None
        for session in self.sessions:
            if session.up:
                session.up, session.lost_ns = False, lost_ns
                session.events.append(HostEvent(lost_ns, "lost", 0.0))

    def missing(self, now_ns: int) -> list[Session]:
        """Return the sessions whose deciders are to be built now."""
        if self.life is None:
            return []
        due = [s for s in self.sessions if not s.up and now_ns >= s.due_ns]
        return [s for s in due if s.gave_up is None and s.error is None]

    def built(self, session: Session, life: Any, now_ns: int) -> bool:
        """A session's decider is ready in this life; return whether it counts: both may be over meanwhile."""
        if life is None or life is not self.life or session not in self.sessions:
            return False
        session.up = True
        if session.lost_ns is not None:
            session.incarnation += 1
            session.events.append(HostEvent(now_ns, "restarted", (now_ns - session.lost_ns) / 1e9))
            session.lost_ns, session.failures = None, 0
        return True

    def failed(self, session: Session, error: UserError, now_ns: int) -> None:
        """A build failed: it is tried again where that may help, else the session has no decider, or none any more."""
        session.failures += 1
        if session.lost_ns is not None:
            session.due_ns = now_ns + AGAIN_NS
            if session.failures >= REBUILDS:
                session.gave_up = f"The decider could not be made again {REBUILDS} times: {error}"
        elif session.failures >= ATTEMPTS or not isinstance(error, DecoderUnavailable):
            session.error = error

    def released(self, session: Session) -> bool:
        """The session is closed; return whether there may be a decider to free, now or soon."""
        session.up = False
        known = session in self.sessions
        self.sessions.discard(session)
        return known

    def end(self, why: str | None = None) -> None:
        """The process will not come back (`why`), or is closed by its owner (None)."""
        self.life = None
        self.closed, self.gave_up = self.closed or why is None, why or self.gave_up
        for session in self.sessions:
            session.up, session.gave_up = False, why or session.gave_up
