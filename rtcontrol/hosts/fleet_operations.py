"""What people do with a fleet of decoders while it decides: end one of them, and serve another model."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

from rtcontrol.hosts.fleet import FleetPool
from rtcontrol.hosts.fleet_host import FleetHost
from rtcontrol.hosts.fleet_leaving import Leaving
from rtcontrol.hosts.fleet_member import FleetMember
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.host")

LOOK_S = 0.02
FAILED = "Look at the model by hand, with `rtcontrol run --model`."


class FleetOperations:
    """One at a time; each blocks until it is done. Raises UserError where it is not, and then all is as before."""

    def __init__(self, fleet: FleetPool) -> None:
        self._fleet, self._busy = fleet, threading.Lock()
        self._failed: str | None = None
        fleet.doubted = self._doubt

    @property
    def busy(self) -> bool:
        return self._busy.locked()

    def grow(self, by: int) -> None:
        """So many decoders more."""
        with self._alone():
            for _ in range(by):
                self._fleet.add()

    def drain(self, name: str) -> None:
        """Move a decoder's sessions to others, each between two ticks, and end it. Another one is started first, where
        there would be fewer than the server was started with, or none that takes sessions."""
        self._end(name, self._is_needed)

    def replace(self, name: str) -> None:
        """The same, with another decoder in its place in any case: its machine goes."""
        self._end(name, lambda member: True)

    def _end(self, name: str, needed: Callable[[FleetMember], bool]) -> None:
        fleet = self._fleet
        with self._alone():
            member, made = fleet.named(name), None
            with fleet.lock:
                instead = needed(member)
                before, member.state = member.state, "draining"  # nobody comes any more
            try:
                made = fleet.add(model=member.model) if instead else None
                self._empty(member)
            except BaseException:
                member.state = before
                if made is not None:
                    self._leave(made)
                raise
            fleet.remove(member)

    def _is_needed(self, member: FleetMember) -> bool:
        stay = [other for other in self._fleet.members if other.state in ("starting", "up") and other is not member]
        return len(stay) < self._fleet.count or not any(other.takes for other in stay)

    def change(self, name: str, to: str) -> None:
        """Serve the model `to` in the place of the one that is asked for as `name`.

        Decoder by decoder: one with the new model is started, new sessions go there, those of an old decoder are moved,
        and it ends. What cannot be loaded, or fails in a session's first answers, takes all of them back.
        """
        fleet = self._fleet
        with self._alone():
            old, began = [m for m in fleet.members if m.state == "up"], fleet.model
            kept = {asked: to if now == name else now for asked, now in fleet.models(began).items()}
            number = fleet.served_as({**kept, name: to, to: to})
            fresh: list[FleetMember] = []
            try:
                for member in old:
                    made = fleet.add(model=number)
                    if made is None:
                        raise UserError("The server is ending.", "Start it again with the new model.")
                    fresh.append(made)
                    fleet.model = number
                    self._hand_over(member, made)
                    fleet.remove(member)
            except UserError as error:
                self._go_back(old, fresh, began)
                raise UserError(f"All sessions stay with the model before: {error.what}", error.remedy) from error

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise UserError("The decoders are being changed just now.", "Wait until that is done.")
        self._failed = None
        try:
            yield
        finally:
            self._busy.release()

    def _doubt(self, host: FleetHost, error: str) -> None:
        self._failed = f"{host.session} got no decision from it ({error})."

    def _empty(self, member: FleetMember, to: FleetMember | None = None) -> None:
        """Until nobody is there any more who would miss it: all have gone (to one decoder), or go with their next
        request."""
        leaving = Leaving(self._fleet, member, to)
        while not leaving.look():
            self._check()
            if self._fleet.closed.wait(LOOK_S):
                raise UserError("The server is ending.", "Nothing is to be done.")
        self._check()

    def _check(self) -> None:
        if self._failed is not None:
            raise UserError(self._failed, FAILED)

    def _hand_over(self, member: FleetMember, made: FleetMember) -> None:
        """Until all of one decoder's sessions are at the new one, and have been on trial there."""
        member.state = "draining"
        leaving = Leaving(self._fleet, member, made)
        while not leaving.look() or leaving.tried:
            self._check()
            if self._fleet.closed.wait(LOOK_S):
                raise UserError("The server is ending.", "Nothing is to be done.")
        self._check()

    def _go_back(self, old: list[FleetMember], fresh: list[FleetMember], model: int) -> None:
        fleet = self._fleet
        fleet.model = model
        self._failed = None
        for member in old:
            member.state = "up" if member in fleet.members else member.state
        for host in list(fleet.hosts):
            host.withdraw()
        for _ in [member for member in old if member not in fleet.members]:
            try:
                fleet.add(model=model)
            except UserError as error:
                log.error("a decoder with the model before does not start: %s", error)
        for made in fresh:
            self._leave(made)

    def _leave(self, made: FleetMember) -> None:
        """Of a change that failed: what was made for it ends."""
        made.state = "draining"
        with contextlib.suppress(UserError):
            self._empty(made)
        self._fleet.remove(made)
