"""Many decoders of one Ray, or of a cluster: which session decides where, and what becomes of it when that changes."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from rtcontrol.hosts.fleet_host import FleetHost, Part
from rtcontrol.hosts.fleet_member import FleetMember, FleetRay, fleet_share
from rtcontrol.hosts.fleet_models import FleetModels, prefix_of, until_away
from rtcontrol.hosts.load import DecoderLoad, DecoderSeat, FleetLoad
from rtcontrol.hosts.protocol import LIMIT, DeciderSource, DecoderUnavailable
from rtcontrol.hosts.ray_host import RayHost
from rtcontrol.hosts.ray_start import Stopped
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.host")

# Of a decoder's time: what sessions may fill that must go somewhere, as their decoder is lost or ends.
ALL = 1.0
# Places of a decoder beside those of sessions: models that are kept loaded.
SPARE = 16
AWAY = "No decoder is there now: all are away, or end."
CLOSED = "The decoders are closed."


class FleetPool(FleetModels):
    """A `DecoderPool` of several decoders, each an actor of its own, in a Ray that is started here or joined.

    A session goes to the least loaded decoder that holds its model and tools and has room for it, else to the least
    loaded. When its decoder is lost it goes to another with room, at once; where none has room it waits until its own
    is back. `given_away` is the share of a decoder's time that sessions may ask for together.
    """

    name = "ray"

    def __init__(
        self,
        limit: int = LIMIT,
        decoders: int = 2,
        most: int | None = None,
        given_away: float = 0.8,
        processors: int = 1,
    ) -> None:
        """Between `decoders` and `most` of them; each takes so many `processors` where there are no GPUs."""
        super().__init__()
        self.gave_up: str | None = None
        self.given_away, self.count = given_away, decoders
        self.most = decoders if most is None else most
        self.hosts: set[FleetHost] = set()
        self.lock = threading.RLock()  # of these, the members, and of who goes where
        self.unmet = 0.0  # what sessions asked for lately that no decoder had room for
        self.doubted: Callable[[FleetHost, str], None] = lambda host, error: None
        self._limit, self._numbers = limit, itertools.count(1)
        # One more while one is changed for another.
        self._processors = processors
        self.ray = FleetRay((self.most + 1) * processors, self._leave_ray, self._give_up)
        self._closer = ThreadPoolExecutor(1, "fleet-close")

    # -- a `DecoderPool` ----------------------------------------------------------------------------------------------

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        try:
            self.ray.start(stopped)
            self._begin(stopped)
        except Stopped:
            return {}
        if not self._first(stopped):
            return {}
        return {"decoders": [{"decoder": member.decoder, **member.process} for member in self.members]}

    def open(self, session: str, source: DeciderSource, hz: float = 0.0) -> FleetHost:
        host = FleetHost(self, source, session, prefix_of(source), hz)
        host.start()
        self.keep(source)
        return host

    def alive(self) -> bool:
        return any(member.alive() for member in self.members)

    def close(self) -> None:
        self.closed.set()
        with self.lock:
            members = list(self.members)
        for member in members:
            member.close()
        self._closer.shutdown(wait=False, cancel_futures=True)
        self._end()
        self.ray.close()

    def _begin(self, stopped: Callable[[], bool]) -> None:
        """Ray is there, and no decoder yet. Raises UserError, and Stopped."""

    def _first(self, stopped: Callable[[], bool]) -> bool:
        """The decoders of the beginning; whether they are there. Raises UserError."""
        return all(not stopped() and self.add(stopped) is not None for _ in range(self.count))

    def _end(self) -> None:
        """No decoder is used any more, and Ray is still there."""

    # -- decoders -----------------------------------------------------------------------------------------------------

    def add(self, stopped: Callable[[], bool] = lambda: False, model: int | None = None) -> FleetMember | None:
        """One more decoder, with all models loaded that are kept; None where it was `stopped`. `model`: the number of
        those that it serves (None: as all). Raises UserError."""
        return self.admit(f"decoder-{next(self._numbers)}", self.model if model is None else model, stopped)

    def admit(self, name: str, model: int, stopped: Callable[[], bool] = lambda: False) -> FleetMember | None:
        """The same with a name."""

        def given_up() -> bool:
            return stopped() or self.closed.is_set()

        with self.lock:
            member = self._member(name, model)
            self.members.append(member)
        try:
            if member.start(given_up):
                self.reside_all(member, given_up)
                if not given_up():
                    member.state = "up"
                    log.info("%s is there (%s)", name, member.process)
                    return member
        except BaseException:
            self.remove(member)
            raise
        self.remove(member)
        return None

    def remove(self, member: FleetMember) -> None:
        """End a decoder; who is on it must have gone."""
        member.close()
        with self.lock:
            if member in self.members:
                self.members.remove(member)

    def named(self, name: str) -> FleetMember:
        """Raises UserError where there is none."""
        with self.lock:
            found = next((member for member in self.members if member.decoder == name), None)
            if found is None:
                there = ", ".join(member.decoder for member in self.members)
                raise UserError(f"There is no decoder {name[:40]!r}.", f"There are {there}.")
            return found

    def _member(self, name: str, model: int) -> FleetMember:
        return FleetMember(name, self, self.ray, self._limit + SPARE, self._share, model)

    def _share(self) -> dict[str, Any]:
        return fleet_share(self.count, self._processors)

    def bundle(self) -> dict[str, float]:
        """What a decoder takes of a cluster that can grow."""
        import ray

        return {"GPU": 1.0} if ray.cluster_resources().get("GPU", 0.0) else {"CPU": float(self._processors)}

    def decoders(self) -> list[dict[str, Any]]:
        """Of each its name, state, machine (by Ray's name of it) and process, and how many sessions take how much of
        its time."""
        with self.lock:
            load, members = self.load(), list(self.members)
        shown = []
        for decoder, member in zip(load.decoders, members, strict=True):
            state = "lost" if member.state == "up" and not member.alive() else member.state
            figures = {"sessions": len(decoder.seats), "busy": round(load.busy(decoder), 4)}
            shown.append({"decoder": decoder.name, "state": state, **member.process, **figures})
        return shown

    def load(self) -> FleetLoad:
        with self.lock:
            seats: dict[str, list[DecoderSeat]] = {member.decoder: [] for member in self.members}
            for host in self.hosts:
                seats.setdefault(host.place, []).append(host.seat())
            return FleetLoad(
                [
                    DecoderLoad(
                        member.decoder, tuple(seats[member.decoder]), member.takes and member.model == self.model
                    )
                    for member in self.members
                ]
            )

    # -- sessions: their own threads ----------------------------------------------------------------------------------

    def seat_of(self, host: FleetHost, stopped: Callable[[], bool]) -> Part:
        for last in (False, False, True):
            with self.lock:
                self._check()
                name = self.load().place(host.seat(), self.given_away)
                away = next((m.decoder for m in self.members if m.state == "up" and m.model == self.model), None)
                if (chosen := name or away) is None:
                    raise DecoderUnavailable(AWAY, "Try again.")
                host.going = chosen
                self.hosts.add(host)
                member = self.named(chosen)
            try:
                # Where it is lost meanwhile another is asked; the last one is waited for.
                part = self._build(host, member, stopped if last or name is None else until_away(stopped, member))
            except BaseException:
                self.forget(host)
                raise
            if part is not None:
                return part
            if stopped():
                break
        self.forget(host)
        raise DecoderUnavailable("The session was not opened: its decoders were lost.", "Try again.")

    def settle(self, host: FleetHost, without: str) -> Part | None:
        with self.lock:
            seat = host.seat()
            load = self.load()
            name = load.place(seat, self.given_away, without, only_with_room=True)
            if name is None:
                self.unmet += load.need(seat)
                return None
            host.going = name
            member = self.named(name)
        try:
            return self._build(host, member, until_away(self.closed.is_set, member))
        finally:
            host.going = None

    def leave(self, part: Part) -> None:
        self._later(part.close)

    def doubt(self, host: FleetHost, error: str) -> None:
        self.doubted(host, error)

    def forget(self, host: FleetHost) -> None:
        with self.lock:
            self.hosts.discard(host)
            host.going = None

    # -- who goes where: any thread -----------------------------------------------------------------------------------

    def move(self, host: FleetHost, to: str | None = None, without: str = "", most: float = ALL) -> Future[str] | None:
        """Build the session's decider on the decoder `to` (None: on one that has room for it), and offer it. Gives
        what becomes of that: empty, or why it failed; None where there is no room, or it is going already."""
        with self.lock:
            if host.closed or host.going is not None or host.part is None or self.closed.is_set():
                return None
            to = to or self.load().place(host.seat(), most, without, only_with_room=True)
            if to is None:
                return None
            member = self.named(to)
            host.going = to
            try:
                offered = member.builder.submit(self._offer, host, member)
            except RuntimeError:  # it is just being ended
                host.going = None
                return None
        offered.add_done_callback(partial(_stay_if_cancelled, host, to))
        return offered

    def lost(self, member: FleetMember) -> None:
        """Its sessions go elsewhere, those that ask most often first."""
        with self.lock:
            there = [host for host in self.hosts if host.part is not None and host.part.member is member]
        for host in sorted(there, key=lambda one: -one.hz):
            self.move(host, without=member.decoder)

    def _offer(self, host: FleetHost, member: FleetMember) -> str:
        part, why = None, f"{member.decoder} was lost, or ends"
        try:
            part = self._build(host, member, until_away(lambda: host.closed or self.closed.is_set(), member))
        except UserError as error:
            why = str(error)
        except Exception as error:
            log.exception("%s cannot go to %s", host.session, member.decoder)
            why = f"{type(error).__name__}: {error}"
        if part is not None:
            if not (why := host.offer(part)):
                return ""
            part.close()
        host.going = None
        if not host.closed:
            log.warning("%s does not go to %s: %s", host.session, member.decoder, why)
        return why

    def _build(self, host: FleetHost, member: FleetMember, stopped: Callable[[], bool]) -> Part | None:
        """None where it was `stopped`. Raises UserError."""
        source = self.translated(host.source, member)
        made = RayHost(member, source, host.session)
        made.woken, made.urgent = host.woken, host.part is not None and not host.heard
        made.last = None if host.part is None else host.part.host.last
        made.start(stopped)
        if made.up:
            return Part(member, made, source, member.model)
        made.close()
        return None

    # -- the end ------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.closed.is_set() or self.gave_up is not None:
            raise DecoderUnavailable(self.gave_up or CLOSED, "Start again.")

    def _later(self, what: Callable[[], None]) -> None:
        try:
            self._closer.submit(what)
        except RuntimeError:  # all is being closed
            what()

    def _leave_ray(self) -> None:
        for member in list(self.members):
            member.leave_ray()

    def _give_up(self, why: str) -> None:
        self.gave_up = why
        log.error("no more decisions: %s", why)
        for host in list(self.hosts):
            host.wake()


def _stay_if_cancelled(host: FleetHost, to: str, offered: Future[str]) -> None:
    """Where the decoder ended before it began to build for the session."""
    if offered.cancelled() and host.going == to:
        host.going = None
