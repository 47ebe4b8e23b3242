"""Which sessions have a decider in a process that may be lost and come back: who is up, what is to be freed, and when
a silent process is lost.

A life of the process is whatever its `start` answered. Not locked: the pool holds a lock around every use.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rtcontrol.hosts.processes import GONE, STOPPED, WAITING
from rtcontrol.hosts.protocol import LIMIT, DecoderUnavailable, HostEvent, HostState

# A build that ends the process each time must not end it for ever.
ATTEMPTS = 3
# So often a session's decider is built again in a process that is up.
REBUILDS = 30
SILENT = "The decoder's sockets do not answer."
PING_EVERY_S = 0.1
# So long a process may be silent before the kernel's word counts that it has got nowhere for `STILL_S`; and so long
# whatever the kernel reports: on a starved machine a live process answers late.
DOUBT_AFTER_S, STILL_S, DEAD_AFTER_S = 2.0, 1.0, 10.0


@dataclass(slots=True, eq=False)
class Session(HostState):
    """A session and its decider: `up` where it is there, `lost_ns` since when it is not."""

    name: str
    key: bytes
    up: bool = False
    lost_ns: int | None = None

    def give_up(self, why: str) -> None:
        """There will be no more decisions."""
        self.up, self.gave_up = False, why


class PoolCore:
    """The sessions of one process, at most `limit`. Methods that return keys want these deciders freed, now."""

    def __init__(self, limit: int) -> None:
        self.limit, self.opening = limit, 0
        self.life: Any = None  # None: the process is away
        self.gave_up: str | None = None
        self.closed = False
        self.sessions: set[Session] = set()
        # Of sessions that ended while the process was away: it may only have been silent.
        self._unfreed: deque[bytes] = deque(maxlen=max(limit, LIMIT))

    def open(self) -> None:
        """A session is being opened, until `opened`. Raises DecoderUnavailable where there are as many as may be."""
        if self.opening + len(self.sessions) >= self.limit:
            what = f"The decoder has {self.limit} open sessions, as many as it may."
            raise DecoderUnavailable(what, "Close one, or try again later.", full=True)
        self.opening += 1

    def opened(self, session: Session) -> list[bytes]:
        """The session's decider is there, or was not built: then it may be there, or be built still."""
        self.opening -= 1
        return [] if session in self.sessions else self.freed(session.key)

    def restored(self, life: Any) -> list[bytes]:
        """The process is up, by this life."""
        if self.closed:
            return []
        self.life = life
        keys = list(self._unfreed)
        self._unfreed.clear()
        return keys

    def lost(self, lost_ns: int) -> None:
        """The process is away, and so is the decider of each session; some are not yet back from the loss before."""
        self.life = None
        for session in self.sessions:
            if session.up:
                session.up, session.lost_ns = False, lost_ns
                session.events.append(HostEvent(lost_ns, "lost", 0.0))

    def built(self, session: Session, life: Any, now_ns: int) -> bool:
        """A session's decider is ready in this life; return whether it counts.

        It does not where another life began meanwhile, or the session was lost and then closed.
        """
        if life is None or life is not self.life or (session.lost_ns is not None and session not in self.sessions):
            return False
        self.sessions.add(session)
        session.up = True
        if session.lost_ns is not None:
            session.incarnation += 1
            session.events.append(HostEvent(now_ns, "restarted", (now_ns - session.lost_ns) / 1e9))
            session.lost_ns = None
        return True

    def released(self, session: Session) -> list[bytes]:
        """The session is closed."""
        session.up = False
        if session not in self.sessions:
            return []
        self.sessions.discard(session)
        return self.freed(session.key)

    def freed(self, key: bytes) -> list[bytes]:
        """No session needs this decider any more, which is there, or still being built."""
        if self.life is not None:
            return [key]
        self._unfreed.append(key)
        return []

    def end(self, why: str | None = None) -> None:
        """The process will not come back (`why`), or is closed by its owner (None)."""
        self.life = None
        self.closed, self.gave_up = self.closed or why is None, why or self.gave_up
        for session in self.sessions:
            session.up = False
            if why is not None:
                session.give_up(why)


class DeciderTable:
    """Which sessions have deciders in this process, by key. A session may be closed while its deciders are built, and
    before: its messages come by several ways."""

    REMEMBERED = 4096

    def __init__(self) -> None:
        self.there: dict[bytes, list[Any]] = {}
        self._opening: set[bytes] = set()
        self._over: dict[bytes, None] = {}  # sessions that were closed

    def open(self, key: bytes) -> bool:
        """Return whether the session's deciders are to be there, until `opened`."""
        if key not in self._over:
            self._opening.add(key)
        return key in self._opening

    def opened(self, key: bytes, deciders: list[Any] | None) -> None:
        """They were built, or (None) were not; they count unless the session was closed meanwhile."""
        if key in self._opening and deciders is not None:
            self.there[key] = deciders
        self._opening.discard(key)

    def close(self, key: bytes) -> bool:
        """The session is over for good; return whether its deciders were there."""
        self._over[key] = None
        if len(self._over) > self.REMEMBERED:
            del self._over[next(iter(self._over))]
        self._opening.discard(key)
        return self.there.pop(key, None) is not None


class Rebuild:
    """The deciders of all sessions are built again in a process that came back, in rounds until each is there."""

    def __init__(self, core: PoolCore) -> None:
        self._core, self.life = core, core.life
        self.waiting = list(core.sessions)
        self._rounds = 0
        self._why = SILENT

    @property
    def over(self) -> bool:
        """Whether all are there, or this life is over."""
        return not self.waiting or self.life is None or self.life is not self._core.life

    def round(self, failed: Iterable[Session], why: str | None) -> list[bytes]:
        """A round is over in which these were not built, for a reason where there is one."""
        core, self._why = self._core, why or self._why
        failed = list(failed)
        closed = [session for session in failed if session not in core.sessions]
        self.waiting = [session for session in failed if session in core.sessions]
        self._rounds += 1
        if self._rounds == REBUILDS and not self.over:
            for session in self.waiting:
                session.give_up(f"The decider could not be made again {REBUILDS} times: {self._why}")
            self.waiting = []
        return [key for session in closed for key in core.freed(session.key)]


class SilenceCore:
    """Counts rounds of PING_EVERY_S, which the watcher saw itself: while it is not run, no one is silent."""

    def __init__(self) -> None:
        self.silent = 0  # rounds without an answer
        self._still = 0  # of these, rounds in which the process got nowhere

    def pinged(self) -> None:
        """A round begins with a ping."""
        self.silent += 1

    def answered(self) -> None:
        """The process answered a ping."""
        self.silent = self._still = 0

    def lost(self, state: str | None) -> bool:
        """Return whether the process is lost at the end of a silent round; `state`: the kernel's word."""
        self._still = self._still + 1 if state in (STOPPED, WAITING) else 0
        silent_s, still_s = self.silent * PING_EVERY_S, self._still * PING_EVERY_S
        hangs = silent_s > DOUBT_AFTER_S and still_s > STILL_S
        return state == GONE or hangs or silent_s > DEAD_AFTER_S
