"""A server's part in a shared fleet: it comes in, tells what its sessions need, hears what those of the others do."""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rtcontrol.hosts.fleet_book import BOOK, LEASE_S, FleetBook, SeatEntry, SessionShelf, difference, namespace_of
from rtcontrol.hosts.fleet_roster import FleetRoster
from rtcontrol.hosts.load import DecoderSeat
from rtcontrol.hosts.protocol import DecoderUnavailable
from rtcontrol.hosts.ray_start import START_TIMEOUT_S, Stopped, actor_options
from rtcontrol.models.errors import UserError
from rtcontrol_client.wire.endpoint import host_port

log = logging.getLogger("rtcontrol.host")

# While the decoders are changed it is told and heard more often.
BEAT_S, CHANGE_BEAT_S, ANSWER_S, AGAIN_S = 0.5, 0.1, 5.0, 0.2
LEFT_S = 2.0


class FleetDoor:
    """`terms`: what all servers of the fleet must have in common, by what people call it; there are `between` so many
    decoders and so many. `seats` gives what the own sessions need; `lapsed` is called where the decoders have forgotten
    this server, which was silent for too long.

    `roster` is the book's newest list of the decoders; `report` how far this server has followed it, None until it has
    begun; `operates` says whether it is the one that decides how many there are; `change` is the token of the change of
    the decoders that this server works on: one that it never works on is given up.
    """

    def __init__(
        self,
        fleet: str,
        terms: Mapping[str, Any],
        seats: Callable[[], Sequence[SeatEntry]] = tuple,
        lapsed: Callable[[], None] = lambda: None,
        between: tuple[int, int] = (1, 1),
    ) -> None:
        self.roster = FleetRoster(*between)
        self.roster.version = 0  # none of the book's yet
        self.report: dict[str, Any] | None = None
        self.change: str | None = None
        self.operates, self.unmet, self.unmet_elsewhere = False, 0.0, 0.0
        self._between = between
        self._soon = threading.Event()  # the next beat is due
        self._roster_lock = threading.Lock()
        self.fleet, self.space, self.id = fleet, namespace_of(fleet), f"{secrets.token_hex(6)}-"
        self.servers = 0
        self._terms, self._seats, self._lapsed = dict(terms), seats, lapsed
        self._others: dict[str, list[DecoderSeat]] = {}
        self._book: Any = None
        self.sessions: SessionShelf | None = None  # what other servers may go on with
        self._written: dict[str, Any] = {}  # whose hello the book has, and which members of a crowd
        self._heard = True
        self._head: tuple[str, int] | None = None  # where the cluster's head listens
        self._headless = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="fleet-door", daemon=True)

    def join(self, stopped: Callable[[], bool]) -> None:
        """Come in; the first one makes the fleet. Raises UserError where it has other terms, and Stopped."""
        import ray

        give_up = time.monotonic() + START_TIMEOUT_S
        while True:
            if stopped():
                raise Stopped
            try:
                if self._beat():
                    break
                why = "it is just being ended"
            except (ray.exceptions.RayError, ValueError) as error:
                # Of one that has just ended Ray may give the name, or a dead actor: it is asked again.
                why = _line(error)
                self._book = None
            if time.monotonic() > give_up:
                raise DecoderUnavailable(f"The fleet {self.fleet} cannot be joined: {why}.", "Look at `ray status`.")
            self._closed.wait(AGAIN_S)
        host, port = host_port(ray.get_runtime_context().gcs_address)
        self._head = host, int(port)
        self._thread.start()

    @property
    def heard(self) -> bool:
        """Whether the cluster and the fleet answer."""
        return self._heard and not self._headless

    def others(self, decoder: str) -> Sequence[DecoderSeat]:
        """The sessions that other servers have on a decoder."""
        return self._others.get(decoder, ())

    def claim(self, token: str, key: str | None) -> Mapping[str, Any] | None:
        """What the book has of a session, which is this server's from now on; None where it has nothing, or is away."""
        import ray

        if (book := self._book) is None or not self.heard:
            return None
        try:
            found: Mapping[str, Any] | None = ray.get(book.claim.remote(self.id, token, key), timeout=ANSWER_S)
        except Exception as error:
            log.warning("the fleet %s was not asked for a session: %s", self.fleet, _line(error))
            return None
        return found

    def operate(self, what: str, *arguments: Any, **options: Any) -> Any:
        """What this server does with the roster, by the name of its method there. Raises UserError where that is
        refused, or the book does not answer."""
        answer = self._ask("operate", self.id, what, *arguments, **options)
        if "refused" in answer:
            raise UserError(*answer["refused"])
        self._soon.set()
        return answer["gives"]

    def progress(self) -> Mapping[str, Mapping[str, Any]]:
        """How far each server follows the roster. Raises UserError."""
        reports: Mapping[str, Mapping[str, Any]] = self._ask("progress")["reports"]
        return reports

    def lists(self, decoder: str) -> bool:
        """Whether the fleet has this decoder (still). Raises UserError where the book does not answer."""
        self._ask("progress")
        return decoder in self.roster.decoders

    def beat_soon(self) -> None:
        """There is something to tell."""
        self._soon.set()

    def _ask(self, what: str, *arguments: Any, **options: Any) -> dict[str, Any]:
        import ray

        try:
            if (book := self._book) is None:
                raise ConnectionError("it is not heard just now")
            answer: dict[str, Any] = ray.get(getattr(book, what).remote(*arguments, **options), timeout=ANSWER_S)
        except Exception as error:
            what = f"The book of the fleet {self.fleet} does not answer ({_line(error)})."
            raise DecoderUnavailable(what, "Look at `ray status`, and try again.") from error
        if "roster" in answer:
            self._take(answer["roster"])
        return answer

    def _take(self, plain: Mapping[str, Any]) -> None:
        with self._roster_lock:  # answers may come in another order than they were made
            if plain["version"] > self.roster.version:
                self.roster = FleetRoster.read(plain)

    def leave(self) -> None:
        """It uses no decoder any more; the last one ends them. Waits for that to be heard, not for it to be done."""
        import ray

        self._closed.set()
        self._soon.set()
        if not self._thread.is_alive():
            return
        self._thread.join(ANSWER_S)
        try:
            if self._book is not None and ray.is_initialized():
                ray.get(self._book.leave.remote(self.id), timeout=LEFT_S)
        except Exception as error:  # then the lease ends it
            log.warning("the fleet %s did not hear that this server ends: %s", self.fleet, _line(error))

    def _found(self) -> Any:
        """The book, which is made where there is none."""
        import ray

        if self._book is None:
            options = {**actor_options(), "name": BOOK, "namespace": self.space, "num_cpus": 0}
            options |= {"lifetime": "detached", "get_if_exists": True}
            self._book = ray.remote(**options)(FleetBook).remote(self.fleet, LEASE_S, *self._between)
        return self._book

    def _beat(self) -> bool:
        """Whether it is in. Raises UserError: the fleet has other terms; RayError."""
        import ray

        kept = {} if self.sessions is None else self.sessions.kept()
        told = self._told(kept)
        seats, fleet = list(self._seats()), {"unmet": self.unmet, "report": self.report, "change": self.change}
        for more in ({"version": self.roster.version}, {"roster": self.roster.plain()}):
            said = self._found().beat.remote(self.id, self._terms, seats, told, {**fleet, **more})
            answer = ray.get(said, timeout=ANSWER_S)
            if "behind" not in answer:
                break
        if "terms" in answer:
            raise refused(self.fleet, answer["terms"], self._terms)
        if "ended" in answer:
            self._book = None
            return False
        now_s, others = time.monotonic(), dict[str, list[DecoderSeat]]()
        for decoder, session, prefix, hz, share_s, ago_s in answer["seats"]:
            others.setdefault(decoder, []).append(DecoderSeat(session, prefix, hz, share_s, now_s - ago_s))
        self._others, self.servers = others, answer["servers"]
        self.operates, self.unmet_elsewhere = answer["operates"], answer["unmet"]
        self._take(answer["roster"])
        self._note_written(kept, answer)
        if answer["moved"] and self.sessions is not None:
            self.sessions.moved(answer["moved"])
        if answer["lapsed"]:
            log.warning("this server was silent for too long: its sessions are built again in the fleet's decoders")
            self._lapsed()
        return True

    def _told(self, kept: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Of each session what the book does not have, in plain values. Where that is not heard all is told again."""
        written, self._written = self._written, {}
        return {token: _plain(state, token in written, written.get(token)) for token, state in kept.items()}

    def _note_written(self, kept: Mapping[str, Mapping[str, Any]], answer: Mapping[str, Any]) -> None:
        elsewhere = {*answer["lack"], *answer["moved"]}
        self._written = {token: state.get("members") for token, state in kept.items() if token not in elsewhere}

    def _beat_on(self) -> None:
        while not self._closed.is_set():
            self._soon.wait(BEAT_S if self.roster.change is None else CHANGE_BEAT_S)
            self._soon.clear()
            if self._closed.is_set():
                return
            if not self._look_for_head():
                continue  # Ray would be waited for
            try:
                heard, why = self._beat(), "it is just being ended"
            except Exception as error:
                heard, why = False, _line(error)
                self._book = None
            if heard != self._heard:
                log.warning(*((AGAIN, self.fleet) if heard else (AWAY, self.fleet, why)))
            self._heard = heard
            if not heard:
                self._others, self.operates = {}, False

    def _look_for_head(self) -> bool:
        """Whether the cluster's head is there. Ray itself says nothing until it ends this process."""
        assert self._head is not None, "it was joined"
        try:
            socket.create_connection(self._head, timeout=1.0).close()
            headless = False
        except OSError:
            headless = True
        if headless != self._headless:
            log.warning(HEADLESS if headless else HEAD_BACK, *self._head)
        self._headless = headless
        return not headless


HEADLESS = (
    "Ray's head at %s:%d does not answer: sessions go on at the decoders that are left, and none comes back. "
    "Start the cluster again, and this server; Ray ends it after a minute."
)
HEAD_BACK = "Ray's head at %s:%d answers again"
AWAY = "the fleet %s is not heard (%s): what other servers' sessions need is not counted meanwhile"
AGAIN = "the fleet %s is heard again"


def refused(fleet: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> UserError:
    """Why a server is not let in."""
    name = difference(theirs, ours)
    assert name is not None, "they differ"
    there, here = theirs.get(name), ours.get(name)
    what = f"The fleet {fleet} has {name} {_shown(there)}, and this server {_shown(here)}."
    if name.startswith("--"):
        given = f"Leave {name} out" if there is None else f"Give {name} {there}"
        return UserError(what, f"{given}, as the fleet's other servers do, or another --fleet NAME.")
    return UserError(what, f"Install {name} {_shown(there)} here, or give another --fleet NAME.")


def _plain(state: Mapping[str, Any], is_there: bool, members: Any) -> dict[str, Any]:
    """Of a session, as it goes through Ray: its hello where it is not there yet, and the members of a crowd where they
    are others than there."""
    told = {name: value for name, value in state.items() if name != "hello"}
    if not is_there:
        return {**told, "hello": state["hello"].model_dump()}
    if members is not None and told.get("members") == members:
        del told["members"]
    return told


def _shown(value: Any) -> str:
    return "of no value" if value is None else str(value)


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
