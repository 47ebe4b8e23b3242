"""The book of a fleet that several servers share: an actor that knows which of them are there and what each of their
sessions needs, and that ends the decoders when no server is left."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rtcontrol.hosts.fleet_roster import RESTORED, FleetRoster
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.host")

BOOK, DECODER, MODEL = "book", "decoder-", "--model"
# A server that said nothing for so long counts no more, as its clients ask elsewhere for a place; after `LEASE_S` what
# it had in the decoders is freed.
SILENT_S, LEASE_S = 3.0, 30.0
# Where decoders are changed, a server that does so, or has to follow, is waited for so long.
CHANGE_S = 10.0
LOOK_S = 0.2
# So often decoders are looked for that are on no list: of a server that died while it made them.
SWEEP_S = 6.0
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

    def serve(self, models: Mapping[str, str]) -> None:
        """What the fleet serves in the place of a model, from now on."""


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
    unmet: float = 0.0  # what its sessions asked for lately that no decoder had room for
    report: dict[str, Any] | None = None  # how far it has followed the roster; None while it begins


@dataclass
class BookedSession:
    """What is kept of a session, whose it is, and since when."""

    server: str
    since_s: float
    state: dict[str, Any]


class FleetBook:
    """Each server tells it every half second what its sessions need (`beat`), and is told the same of the others. Ray
    starts it again where it is lost: it then learns all from the next beats. It keeps the list of the decoders
    (`FleetRoster`), and the one server at a time that changes it, until that is silent or works on it no more. Methods
    are called by Ray, one at a time."""

    def __init__(self, fleet: str, lease_s: float, least: int = 1, most: int = 1) -> None:
        self._fleet, self._lease_s = fleet, lease_s
        self._roster = FleetRoster(least, most)
        self._blank = _is_again()  # it was lost, and nobody has told it of the decoders yet
        # The version of the list that it began again with, the least that it gave out since, and what it made of that.
        self._restored = 0, 0, 0
        self._removed: dict[str, tuple[int, float]] = {}  # decoders to be ended: since which version, and when
        self._swept_s = time.monotonic()
        self._servers: dict[str, BookedServer] = {}
        self._lapsed: dict[str, None] = {}
        self._sessions: dict[str, BookedSession] = {}
        self._lock = threading.Lock()
        self._ended = False
        self._alone_s = time.monotonic()  # when the last one was there
        self._learns_s = self._alone_s + lease_s if self._blank else 0.0  # until then it may not know of all servers
        self._gone: list[str] = []  # those whose deciders are to be freed
        self._left = threading.Event()
        self._worked_s = time.monotonic()  # when the server that changes the decoders said so last
        threading.Thread(target=self._watch, name="fleet-book", daemon=True).start()

    def beat(
        self,
        server: str,
        terms: Mapping[str, Any],
        seats: Sequence[SeatEntry],
        sessions: Mapping[str, Mapping[str, Any]] | None = None,
        fleet: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """What the server's sessions need, what is kept of them, and that it lives; of the `fleet` what it could not
        give (`unmet`), how far it follows the roster (`report`), the token of the `change` that it works on, and the
        `version` of the roster that it has, or all of it (`roster`). Gives the `terms` of the fleet where the server
        has others: then it is not let in; `ended` where the fleet is just being ended, or `behind` where the server
        knows more of the decoders: it is asked again; else the `seats` of the others' sessions and what they are
        `unmet`, how many `servers` there are, whether this one's lease had `lapsed` and whether it is the one that
        `operates`, the tokens of sessions that `lack` their hello here, or that have `moved` to another server, and the
        `roster`."""
        now_s, fleet = time.monotonic(), fleet or {}
        with self._lock:
            if self._ended:
                return {"ended": True}
            if (plain := fleet.get("roster")) is not None:  # of one that was let in before
                self._restore(FleetRoster.read(plain))
            elif self._is_newer(fleet.get("version", 0)):
                return {"behind": True}
            elif self._blank and now_s - self._alone_s < SILENT_S:
                return {"ended": True}
            if self._roster.terms is None:
                self._roster.terms = dict(terms)
            if self._differs(self._roster.terms, terms):
                return {"terms": self._roster.terms}
            lapsed = server in self._lapsed
            self._lapsed.pop(server, None)
            if server in self._gone:  # it is back, and all that it has is built again
                self._gone.remove(server)
            unmet, report = fleet.get("unmet", 0.0), fleet.get("report")
            if (change := self._roster.change) is not None and change.token == fleet.get("change"):
                self._worked_s = now_s
            self._servers[server] = BookedServer(now_s, list(seats), unmet, report)
            there = self._there(now_s)
            others = {name: one for name, one in there.items() if name != server}
            lack, moved = self._keep(server, sessions or {}, now_s)
            return {
                "seats": [seat for one in others.values() for seat in one.seats],
                "unmet": sum(one.unmet for one in others.values()),
                "servers": len(there),
                "lapsed": lapsed,
                "lack": lack,
                "moved": moved,
                "operates": next((name for name, one in there.items() if one.report is not None), None) == server,
                "roster": self._roster.plain(),
            }

    def _restore(self, roster: FleetRoster) -> None:
        """The book was lost: of what servers have of the decoders the newest counts."""
        if not self._is_newer(version := roster.version):
            return
        restored = roster.restored()
        restored.version = max(restored.version, self._roster.version + 1)
        least = version + RESTORED if self._blank else self._restored[1]
        self._roster, self._blank, self._restored = restored, False, (version, least, restored.version)

    def _is_newer(self, version: int) -> bool:
        """Whether a server has a newer list: of before the book was lost only while nothing was changed since."""
        if self._blank:
            return version > 0
        before, least, now = self._restored
        is_newer_before = before < version < least and self._roster.version == now
        return version > self._roster.version or is_newer_before

    def operate(self, server: str, what: str, *arguments: Any, **options: Any) -> dict[str, Any]:
        """What a server does with the roster, by the name of its method. Gives what that `gives`, and the `roster`
        after it; or `refused`, with what and the remedy."""
        with self._lock:
            if server not in self._there(time.monotonic(), CHANGE_S):
                return {"refused": ("The fleet's book does not hear this server.", "Try again.")}
            before = set(self._roster.decoders)
            try:
                gives = getattr(self._roster, what)(*arguments, **options)
            except UserError as error:
                return {"refused": (error.what, error.remedy)}
            self._worked_s = time.monotonic()
            self._note_removed(before)
            return {"gives": gives, "roster": self._roster.plain()}

    def progress(self) -> dict[str, Any]:
        """The `roster`, and how far each server that is heard follows it."""
        with self._lock:
            there = self._there(time.monotonic(), CHANGE_S)
            reports = {name: one.report for name, one in there.items() if one.report is not None}
            return {"roster": self._roster.plain(), "reports": reports}

    def _there(self, now_s: float, within_s: float = SILENT_S) -> dict[str, BookedServer]:
        """Those that are heard, the eldest first."""
        return {name: one for name, one in self._servers.items() if now_s - one.heard_s <= within_s}

    def _differs(self, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
        """A server may also come with the model that is now served in the place of the fleet's first; that is an
        agent's where the fleet began without one."""
        if difference({**ours, MODEL: None}, {**theirs, MODEL: None}) is not None:
            return True
        now, first, named = self._roster.served[self._roster.model], ours.get(MODEL), theirs.get(MODEL)
        if first is None or named is None:
            return first != named and (first is not None or named not in now.values())
        return now.get(first, first) != now.get(named, named)

    def _note_removed(self, before: set[str]) -> None:
        for name in before - set(self._roster.decoders):
            self._removed[name] = self._roster.version, time.monotonic()

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
        """The server has ended; gives how many are left. With the last one the fleet ends; after a lease where others
        may be there that were not heard since the book was lost."""
        with self._lock:
            self._servers.pop(server, None)
            self._lapse([server])
            self._forget(server)
            self._gone.append(server)
            self._ended = self._ended or (not self._servers and time.monotonic() >= self._learns_s)
            self._left.set()
            return len(self._servers)

    def _watch(self) -> None:
        while True:
            self._left.wait(LOOK_S)
            self._left.clear()
            try:
                gone = self._expire(time.monotonic())
                if self._ended:
                    self._end()
                    return
                self._free(gone)
                self._end_removed(time.monotonic())
            except Exception:  # Ray is away: it is tried again
                log.exception("fleet %s: the book stumbled", self._fleet)
                time.sleep(LOOK_S)

    def _free(self, gone: Sequence[str]) -> None:
        """Free the deciders of these servers in all decoders."""
        if not gone:
            return
        for decoder in self._decoders():
            for server in gone:
                decoder.close_all.remote(server.encode())
        with self._lock:
            self._gone = [server for server in self._gone if server not in gone]

    def _expire(self, now_s: float) -> list[str]:
        """Servers that are gone, by their word or for their silence, until what they had is freed."""
        with self._lock:
            change = self._roster.change
            # Its server is silent, or works on nothing: it never heard that it had begun, or was not heard at its end.
            if change is not None and now_s - self._worked_s > CHANGE_S:
                self._lapse([change.server])
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
            self._gone = [*gone, *self._gone]
            return list(self._gone)

    def _lapse(self, servers: Iterable[str]) -> None:
        """Give up what these were changing."""
        before = set(self._roster.decoders)
        for server in servers:
            if self._roster.lapse(server):
                log.warning(
                    "fleet %s: a server works no more on its change of the decoders: that is given up", self._fleet
                )
        self._note_removed(before)

    def _end_removed(self, now_s: float) -> None:
        """End the decoders that nobody uses any more, once all servers know; and those that are on no list."""
        with self._lock:
            reports = [one.report or {} for one in self._there(now_s, CHANGE_S).values()]
            heard = min((report.get("version", 0) for report in reports), default=0)
            over = [name for name, (version, s) in self._removed.items() if heard >= version or now_s - s > CHANGE_S]
            for name in over:
                del self._removed[name]
            if now_s - self._swept_s > SWEEP_S and self._roster.change is None and not self._blank:
                self._swept_s = now_s
                listed = {*self._roster.decoders, *self._removed}
                over += [name for name in self._names() if name not in listed]
        import ray

        for name in over:
            with contextlib.suppress(ValueError):  # it has just ended
                ray.kill(ray.get_actor(name, namespace=namespace_of(self._fleet)))

    def _names(self) -> list[str]:
        import ray

        listed, space = ray.util.list_named_actors(all_namespaces=True), namespace_of(self._fleet)
        return [one["name"] for one in listed if one["namespace"] == space and one["name"].startswith(DECODER)]

    def _decoders(self) -> list[Any]:
        import ray

        found = []
        for name in self._names():
            with contextlib.suppress(ValueError):  # it has just ended
                found.append(ray.get_actor(name, namespace=namespace_of(self._fleet)))
        return found

    def _end(self) -> None:
        import ray

        for decoder in self._decoders():
            ray.kill(decoder)
        ray.kill(ray.get_actor(BOOK, namespace=namespace_of(self._fleet)))


def _is_again() -> bool:
    """Whether this process is an actor's that Ray has started again."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    with contextlib.suppress(Exception):  # it is no actor's
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)
    return False
