"""A fleet that several servers share, by its name: the first one starts the decoders, others join them, and the last
one's end is theirs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rtcontrol.hosts.fleet import SPARE
from rtcontrol.hosts.fleet_book import SeatEntry
from rtcontrol.hosts.fleet_care import FleetCare, ManagedFleet
from rtcontrol.hosts.fleet_door import FleetDoor
from rtcontrol.hosts.fleet_member import FleetMember
from rtcontrol.hosts.load import FleetLoad, Need
from rtcontrol.hosts.protocol import DecoderUnavailable
from rtcontrol.hosts.ray_actor import BUILDERS, RESCUERS, DecoderActor
from rtcontrol.hosts.ray_start import POLL_S, Stopped, actor_options
from rtcontrol.models.errors import UserError

# A name may for a moment be that of a decoder that has just ended.
STARTS = 5
SHARED = "The decoders of a fleet are those of all its servers: they are neither drained nor changed by one of them."


class SharedMember(FleetMember):
    """A decoder of a shared fleet: an actor with a name, which outlives the server that made it."""

    def __init__(self, door: FleetDoor, *arguments: Any) -> None:
        self.prefix = door.id.encode()
        super().__init__(*arguments)
        self._door = door

    def renew(self) -> None:
        """The decoder has forgotten this server: all of its sessions are built there again."""
        with self._changed:
            answer = self._answer
        if answer is not None:  # else it is away, and they are when it is back
            self._lose(time.monotonic_ns())
            self._back(answer)

    def _start(self, stopped: Callable[[], bool]) -> dict[str, Any]:
        for _ in range(STARTS):
            try:
                return super()._start(stopped)
            except DecoderUnavailable:
                if stopped():
                    raise Stopped from None
                self._closed.wait(POLL_S)
        return super()._start(stopped)

    def _ray_again(self) -> dict[str, Any] | None:
        if self._door.heard:
            return super()._ray_again()
        while not self._door.heard:  # it is this server that is cut off: others may use the decoder
            if self._closed.wait(POLL_S):
                return None
        return self._until_back()

    def _made(self) -> Any:
        import ray

        with contextlib.suppress(ValueError):
            return ray.get_actor(self.decoder, namespace=self._door.space)
        options = {"concurrency_groups": {BUILDERS: 1, RESCUERS: 1}, **actor_options(), **self._share()}
        options |= {"name": self.decoder, "namespace": self._door.space, "lifetime": "detached", "get_if_exists": True}
        # Not in a folder of this server, which ends before it: others talk to it by tcp from wherever they are.
        return ray.remote(**options)(DecoderActor).remote(*self._arguments, "", "")

    def _end_ray(self) -> None:
        """The decoder goes on for others. The book frees what this server had there."""
        self.actor = None


class SharedOperations:
    """What one server alone does not do."""

    busy = False

    def drain(self, name: str) -> None:
        raise UserError(SHARED, "End the servers of the fleet, and start them with other --decoders.")

    def change(self, name: str, to: str) -> None:
        raise UserError(
            SHARED, "Start servers with another --fleet NAME and that model, and give clients their address."
        )


class SharedCare(FleetCare):
    """Moves sessions of its own server alone."""

    def _leave_machines(self, now_s: float) -> None:
        """Ray starts a decoder elsewhere once its machine is gone."""


class SharedFleet(ManagedFleet):
    """A `FleetPool` whose decoders other servers use, too. What their sessions need counts as that of its own."""

    def __init__(
        self, fleet: str, terms: Mapping[str, Any], limit: int, decoders: int, given_away: float, processors: int
    ) -> None:
        super().__init__(limit, decoders, decoders, given_away, processors)
        self.operations = SharedOperations()  # type: ignore[assignment]
        self._care = SharedCare(self, self.operations)
        self.door = FleetDoor(fleet, terms, self._seats, self._renew)

    def load(self) -> FleetLoad:
        load = super().load()
        return FleetLoad([replace(one, seats=(*one.seats, *self.door.others(one.name))) for one in load.decoders])

    def needs_elsewhere(self) -> list[Need]:
        """What the other servers' sessions need, as far as it is measured."""
        return [
            Need(seat.hz, seat.share_s, member.decoder)
            for member in list(self.members)
            for seat in self.door.others(member.decoder)
            if seat.share_s is not None
        ]

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        try:
            return super().start(stopped)
        except BaseException:
            self.close()
            raise

    def _begin(self, stopped: Callable[[], bool]) -> None:
        self.door.join(stopped)

    def _end(self) -> None:
        self.door.leave()

    def _member(self, name: str, model: int) -> FleetMember:
        return SharedMember(self.door, name, self, self.ray, self._limit + SPARE, self._share, model)

    def _seats(self) -> Sequence[SeatEntry]:
        now_s, told = time.monotonic(), list[SeatEntry]()
        with self.lock:
            for host in self.hosts:
                seat = host.seat()
                name = f"{self.door.id}{seat.session}"
                told.append((host.place, name, seat.prefix, seat.hz, seat.share_s, now_s - seat.moved_s))
        return told

    def _renew(self) -> None:
        for member in list(self.members):
            if isinstance(member, SharedMember):
                member.renew()
