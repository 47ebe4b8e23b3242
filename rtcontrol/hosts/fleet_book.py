"""The book of a fleet that several servers share: an actor that knows which of them are there and what each of their
sessions needs, and that ends the decoders when no server is left."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

log = logging.getLogger("rtcontrol.host")

BOOK, DECODER = "book", "decoder-"
# A server that said nothing for so long counts no more, as its clients ask elsewhere for a place; after `LEASE_S` what
# it had in the decoders is freed.
SILENT_S, LEASE_S = 3.0, 30.0
LOOK_S = 0.2
# Servers are remembered whose lease was over.
REMEMBERED = 256

# A session on a decoder, as its server tells it: decoder, session, prefix, rate, share (None: not measured yet), and
# the seconds since it came there.
SeatEntry = tuple[str, str, str, float, float | None, float]


class SessionShelf(Protocol):
    """Sessions that may go on at another server."""

    def kept(self) -> Mapping[str, Mapping[str, Any]]:
        """What that one needs of each, by its token. `hello` is large, and is told once."""

    def moved(self, tokens: Iterable[str]) -> None:
        """These went on elsewhere."""


def namespace_of(fleet: str) -> str:
    """Ray's names of a fleet's actors stand there alone."""
    return f"rtcontrol-fleet-{fleet}"


def difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str | None:
    """The first of the terms that is not the same."""
    return next((name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)), None)


@dataclass
class BookedServer:
    """A server of the fleet, and when it was heard last."""

    heard_s: float
    seats: list[SeatEntry] = field(default_factory=list)


@dataclass
class BookedSession:
    """What is kept of a session, whose it is, and since when."""

    server: str
    since_s: float
    state: dict[str, Any]


class FleetBook:
    """Each server tells it every half second what its sessions need (`beat`), and is told the same of the others. Ray
    starts it again where it is lost: it then learns all from the next beats. Methods are called by Ray, one at a
    time."""

    def __init__(self, fleet: str, lease_s: float) -> None:
        self._fleet, self._lease_s = fleet, lease_s
        self._terms: dict[str, Any] | None = None  # of the first server
        self._servers: dict[str, BookedServer] = {}
        self._lapsed: dict[str, None] = {}
        self._sessions: dict[str, BookedSession] = {}
        self._lock = threading.Lock()
        self._ended = False
        self._alone_s = time.monotonic()  # when the last one was there
        self._gone: list[str] = []  # those whose deciders are to be freed
        self._left = threading.Event()
        threading.Thread(target=self._watch, name="fleet-book", daemon=True).start()

    def beat(
        self,
        server: str,
        terms: Mapping[str, Any],
        seats: Sequence[SeatEntry],
        sessions: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """What the server's sessions need, what is kept of them, and that it lives. Gives the `terms` of the fleet
        where the server has others: then it is not let in; `ended` where the fleet is just being ended: it is asked
        again; else the `seats` of the others' sessions, how many `servers` there are, whether this one's lease had
        `lapsed`, and the tokens of sessions that `lack` their hello here, or that have `moved` to another server."""
        now_s = time.monotonic()
        with self._lock:
            if self._ended:
                return {"ended": True}
            if self._terms is None:
                self._terms = dict(terms)
            if difference(self._terms, terms) is not None:
                return {"terms": self._terms}
            lapsed = server in self._lapsed
            self._lapsed.pop(server, None)
            self._servers[server] = BookedServer(now_s, list(seats))
            there = {name: one for name, one in self._servers.items() if now_s - one.heard_s <= SILENT_S}
            others = [seat for name, one in there.items() if name != server for seat in one.seats]
            lack, moved = self._keep(server, sessions or {}, now_s)
            return {"seats": others, "servers": len(there), "lapsed": lapsed, "lack": lack, "moved": moved}

    def claim(self, server: str, token: str, key: str | None) -> dict[str, Any] | None:
        """What is kept of a session, which is this server's from now on; `elsewhere`: it was another's. None where
        there is none, or its client has another CURVE key."""
        with self._lock:
            found = self._sessions.get(token)
            if found is None or "hello" not in found.state or found.state["key"] != key:
                return None
            before, found.server, found.since_s = found.server, server, time.monotonic()
            return {**found.state, "elsewhere": before != server}

    def _keep(
        self, server: str, sessions: Mapping[str, Mapping[str, Any]], now_s: float
    ) -> tuple[list[str], list[str]]:
        """Write down a server's sessions; gives which of them lack their hello, and which are another's by now."""
        moved = []
        for token, state in sessions.items():
            found = self._sessions.setdefault(token, BookedSession(server, now_s, {}))
            if found.server == server:
                found.state.update(state)
            else:
                moved.append(token)
        own = {token: one for token, one in self._sessions.items() if one.server == server}
        for token, one in own.items():
            if token not in sessions and now_s - one.since_s > self._lease_s:  # one that was claimed is just beginning
                del self._sessions[token]
        return [token for token, one in own.items() if "hello" not in one.state], moved

    def _forget(self, server: str) -> None:
        for token in [token for token, one in self._sessions.items() if one.server == server]:
            del self._sessions[token]

    def leave(self, server: str) -> int:
        """The server has ended; gives how many are left. With the last one the fleet ends."""
        with self._lock:
            self._servers.pop(server, None)
            self._forget(server)
            self._gone.append(server)
            self._ended = self._ended or not self._servers
            self._left.set()
            return len(self._servers)

    def _watch(self) -> None:
        while True:
            self._left.wait(LOOK_S)
            self._left.clear()
            try:
                if gone := self._expire(time.monotonic()):
                    for decoder in self._decoders():
                        for server in gone:
                            decoder.close_all.remote(server.encode())
                if self._ended:
                    self._end()
                    return
            except Exception:  # Ray is away: it is tried again
                log.exception("fleet %s: the book stumbled", self._fleet)
                time.sleep(LOOK_S)

    def _expire(self, now_s: float) -> list[str]:
        """Servers that are gone, by their word or for their silence."""
        with self._lock:
            gone = [name for name, one in self._servers.items() if now_s - one.heard_s > self._lease_s]
            for name in gone:
                del self._servers[name]
                self._forget(name)
                self._lapsed[name] = None
                if len(self._lapsed) > REMEMBERED:
                    del self._lapsed[next(iter(self._lapsed))]
            if self._servers:
                self._alone_s = now_s
            # One that was started again, or whose last server was killed, waits for one more lease at most.
            elif gone or now_s - self._alone_s > self._lease_s:
                self._ended = True
            left, self._gone = self._gone, []
            return [*gone, *left]

    def _decoders(self) -> list[Any]:
        import ray

        space, found = namespace_of(self._fleet), []
        for one in ray.util.list_named_actors(all_namespaces=True):
            if one["namespace"] == space and one["name"].startswith(DECODER):
                with contextlib.suppress(ValueError):  # it has just ended
                    found.append(ray.get_actor(one["name"], namespace=space))
        return found

    def _end(self) -> None:
        import ray

        for decoder in self._decoders():
            ray.kill(decoder)
        ray.kill(ray.get_actor(BOOK, namespace=namespace_of(self._fleet)))
