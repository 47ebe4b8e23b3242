"""What people do with a fleet of decoders while it decides: end one of them, and serve another model."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future

from rtcontrol.hosts.fleet import FleetPool
from rtcontrol.hosts.fleet_host import FleetHost
from rtcontrol.hosts.fleet_member import FleetMember
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.host")

# So long sessions may take until all have gone; and so long a session that asks seldom is on trial with a new model.
GONE_S, TRIAL_S = 60.0, 5.0
LOOK_S = 0.02


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
        """Move a decoder's sessions to others, each between two ticks, and end it."""
        fleet = self._fleet
        with self._alone():
            member = fleet.named(name)
            with fleet.lock:
                if not any(other.takes for other in fleet.members if other is not member):
                    raise UserError(
                        f"{name} is the only decoder that takes sessions.", "Start another one first: --decoders."
                    )
                before, member.state = member.state, "draining"
            try:
                self._empty(member)
            except BaseException:
                member.state = before
                raise
            fleet.remove(member)

    def replace(self, name: str) -> None:
        """The same, with another decoder started first in its place: its machine goes."""
        with self._alone():
            member, before = self._fleet.named(name), self._fleet.named(name).state
            member.state = "draining"  # nobody comes any more
            try:
                self._fleet.add(model=member.model)
                self._empty(member)
            except BaseException:
                member.state = before
                raise
            self._fleet.remove(member)

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
        fleet, moving = self._fleet, dict[FleetHost, Future[str]]()
        give_up = time.monotonic() + GONE_S
        while there := [host for host in list(fleet.hosts) if _is_at(host, member)]:
            if self._failed is not None:
                raise UserError(self._failed, "Look at the model by hand, with `rtcontrol run --model`.")
            for host in there:
                if host in moving and moving[host].done() and (why := moving.pop(host).result()) and not host.closed:
                    raise UserError(f"{host.session} cannot leave {member.decoder}: {why.rstrip('.')}.", "Try again.")
                if host in moving or host.going is not None or host.part is None:
                    continue
                began = fleet.move(host, None if to is None else to.decoder, member.decoder)
                if began is not None:
                    moving[host] = began
                elif not host.closed and host.going is None:
                    busy = f"No other decoder has room for {host.session}"
                    raise UserError(f"{busy}, which is at {member.decoder}.", "Start another one first: --decoders.")
            if all(host.idle for host in there):
                return
            if time.monotonic() > give_up:
                raise UserError(f"{len(there)} sessions did not leave {member.decoder} in {GONE_S:g} s.", "Try again.")
            if fleet.closed.wait(LOOK_S):
                raise UserError("The server is ending.", "Nothing is to be done.")

    def _hand_over(self, member: FleetMember, made: FleetMember) -> None:
        """Until all of one decoder's sessions are at the new one, and have been on trial there."""
        member.state = "draining"
        while True:
            self._empty(member, made)
            while any(_is_tried(host, made) for host in list(self._fleet.hosts)):
                if self._fleet.closed.wait(LOOK_S):
                    break
            if self._failed is not None:
                raise UserError(self._failed, "Look at the model by hand, with `rtcontrol run --model`.")
            if all(host.idle for host in list(self._fleet.hosts) if _is_at(host, member)):
                return  # otherwise one has come back, as the new decoder was lost

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
            made.state = "draining"
            with contextlib.suppress(UserError):
                self._empty(made)
            fleet.remove(made)


def _is_at(host: FleetHost, member: FleetMember) -> bool:
    part = host.part
    return host.going == member.decoder or (part is not None and part.member is member)


def _is_tried(host: FleetHost, made: FleetMember) -> bool:
    part = host.part
    there = part is not None and part.member is made
    return there and host.on_trial and time.monotonic() - host.moved_s < TRIAL_S
