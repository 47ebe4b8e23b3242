"""How a server's sessions leave a decoder that is to end."""

from __future__ import annotations

import time
from concurrent.futures import Future

from rtcontrol.hosts.fleet import FleetPool
from rtcontrol.hosts.fleet_host import ELSEWHERE, TRIED, FleetHost
from rtcontrol.hosts.fleet_member import FleetMember
from rtcontrol.models.errors import UserError

# So long sessions may take until all have gone; and so long a session that asks seldom is on trial with a new model.
GONE_S, TRIAL_S = 60.0, 5.0


class Leaving:
    """Sessions on their way from a decoder to others that have room, or to one (`to`)."""

    def __init__(self, fleet: FleetPool, member: FleetMember, to: FleetMember | None = None) -> None:
        self.member, self.to = member, to
        self._fleet = fleet
        self._moving: dict[FleetHost, Future[str]] = {}
        self._give_up_s = time.monotonic() + GONE_S

    def look(self) -> bool:
        """Send on their way those who are not; whether nobody is there any more who would miss it: all have gone, or go
        with their next request. Raises UserError where one cannot go, or not in time."""
        member, moving = self.member, self._moving
        there = [host for host in list(self._fleet.hosts) if is_at(host, member)]
        for host in there:
            if host in moving and moving[host].done():
                why = _why_not(moving.pop(host))
                if why and why not in (ELSEWHERE, TRIED) and not host.closed:
                    raise UserError(f"{host.session} cannot leave {member.decoder}: {why.rstrip('.')}.", "Try again.")
            if host in moving or host.going is not None or host.part is None or host.bound:
                continue
            began = self._fleet.move(host, None if self.to is None else self.to.decoder, member.decoder)
            if began is not None:
                moving[host] = began
            elif not host.closed and host.going is None:
                busy = f"No other decoder has room for {host.session}"
                raise UserError(f"{busy}, which is at {member.decoder}.", "Start another one first: --decoders.")
        if all(host.idle for host in there):
            return True
        if time.monotonic() > self._give_up_s:
            raise UserError(f"{len(there)} sessions did not leave {member.decoder} in {GONE_S:g} s.", "Try again.")
        return False

    @property
    def tried(self) -> bool:
        """Whether a session is on trial where they go."""
        return any(_is_tried(host, self.to) for host in list(self._fleet.hosts))


def is_at(host: FleetHost, member: FleetMember) -> bool:
    """Whether a session is on a decoder, or on its way there."""
    part = host.part
    return host.going == member.decoder or (part is not None and part.member is member)


def _is_tried(host: FleetHost, made: FleetMember | None) -> bool:
    part = host.part
    there = part is not None and part.member is made
    return there and host.on_trial and time.monotonic() - host.moved_s < TRIAL_S


def _why_not(moved: Future[str]) -> str:
    return "where it was to go was lost, or ends" if moved.cancelled() else moved.result()
