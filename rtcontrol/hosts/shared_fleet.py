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
from rtcontrol.hosts.fleet_care import LEAVE_AGAIN_S, FleetCare, ManagedFleet
from rtcontrol.hosts.fleet_door import FleetDoor
from rtcontrol.hosts.fleet_follow import FleetFollower
from rtcontrol.hosts.fleet_member import FleetMember
from rtcontrol.hosts.load import FleetLoad, Need, Scaling
from rtcontrol.hosts.protocol import DecoderUnavailable
from rtcontrol.hosts.ray_actor import BUILDERS, RESCUERS, DecoderActor
from rtcontrol.hosts.ray_start import POLL_S, Stopped, actor_options
from rtcontrol.hosts.shared_operations import SharedOperations

# A name may for a moment be that of a decoder that has just ended.
STARTS = 5


class SharedMember(FleetMember):
    """A decoder of a shared fleet: an actor with a name, which outlives the server that made it."""

    def __init__(self, door: FleetDoor, *arguments: Any) -> None:
        self.prefix = door.id.encode()
        super().__init__(*arguments)
        self._door = door
        self.since = door.roster.version  # an older list need not have it

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
        if not self._door.heard:  # it is this server that is cut off: others may use the decoder
            while not self._door.heard:
                if self._closed.wait(POLL_S):
                    return None
            return self._until_back()
        if self._is_listed():
            return super()._ray_again()
        self._closed.wait(POLL_S)  # it has ended for all, and does so here
        return None

    def _is_listed(self) -> bool:
        try:
            return self._door.lists(self.decoder)
        except DecoderUnavailable:
            return False

    def _made(self) -> Any:
        import ray

        with contextlib.suppress(ValueError):
            return ray.get_actor(self.decoder, namespace=self._door.space)
        if not self._door.lists(self.decoder):
            raise DecoderUnavailable(f"{self.decoder} has ended.", "Nothing is to be done.")
        options = {"concurrency_groups": {BUILDERS: 1, RESCUERS: 1}, **actor_options(), **self._share()}
        options |= {"name": self.decoder, "namespace": self._door.space, "lifetime": "detached", "get_if_exists": True}
        # Not in a folder of this server, which ends before it: others talk to it by tcp from wherever they are.
        return ray.remote(**options)(DecoderActor).remote(*self._arguments, "", "")

    def _end_ray(self) -> None:
        """The decoder goes on for others. The book frees what this server had there."""
        self.actor = None


class SharedCare(FleetCare):
    """Moves sessions of its own server alone. How many decoders there are is decided by one server, the eldest that is
    heard; it also puts in order what a server left that died while it changed them."""

    def __init__(self, fleet: SharedFleet, operations: SharedOperations, scaling: Scaling | None = None) -> None:
        super().__init__(fleet, operations, scaling)
        self._door, self._shared = fleet.door, operations
        self._tidy_s = 0.0

    def _leave_machines(self, now_s: float) -> None:
        if not self._decides:
            return
        if self._shared.tidy_due and now_s >= self._tidy_s and not self._is_changing:
            self._tidy_s = now_s + LEAVE_AGAIN_S
            self._begin(self._shared.tidy)
        else:
            super()._leave_machines(now_s)

    @property
    def _decides(self) -> bool:
        return self._door.operates and self._door.heard

    def _count(self) -> int:
        return int(self._door.roster.wanted)

    def _unmet_of_all(self) -> float:
        self._door.unmet = unmet = super()._unmet_of_all()
        return unmet + self._door.unmet_elsewhere


class SharedFleet(ManagedFleet):
    """A `FleetPool` whose decoders other servers use, too. What their sessions need counts as that of its own, and its
    decoders are those of the fleet's list."""

    def __init__(
        self,
        fleet: str,
        terms: Mapping[str, Any],
        limit: int,
        decoders: int,
        given_away: float,
        processors: int,
        most: int | None = None,
    ) -> None:
        super().__init__(limit, decoders, most, given_away, processors)
        self.door = FleetDoor(fleet, terms, self._seats, self._renew, (self.count, self.most))
        self.operations = operations = SharedOperations(self, self.door)  # type: ignore[assignment]
        self._care = SharedCare(self, operations, self.scaling)
        self._follower = FleetFollower(self, self.door, self)

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
            if info := super().start(stopped):
                self._follower.start()
            return info
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.closed.set()
        self._follower.join()
        super().close()

    def follow_models(self, served: Mapping[int, dict[str, str]], model: int) -> None:
        with self.lock:
            self._served.update(served)
            self.model = model
        for host in list(self.hosts):
            part = host.part  # it may be closed meanwhile
            if host.on_trial and part is not None and part.model != model:
                host.withdraw()

    def in_force(self, models: Mapping[str, str]) -> None:
        if self.door.sessions is not None:
            self.door.sessions.serve(models)

    def _begin(self, stopped: Callable[[], bool]) -> None:
        self.door.join(stopped)

    def _first(self, stopped: Callable[[], bool]) -> bool:
        while missing := self._missing():
            self._join_first(missing[0], stopped)
            if stopped() or self.closed.is_set():
                return False
        return True

    def _join_first(self, name: str, stopped: Callable[[], bool]) -> None:
        roster = self.door.roster
        if (listed := roster.decoders.get(name)) is None:
            return
        self.follow_models(roster.served, roster.model)

        def gone() -> bool:
            return name not in self.door.roster.decoders

        try:
            self.admit(name, listed.model, lambda: stopped() or gone())
        except DecoderUnavailable:
            if not gone():
                raise

    def _missing(self) -> list[str]:
        """Decoders of the fleet's list that are not joined yet."""
        there = {member.decoder for member in self.members}
        listed = self.door.roster.decoders.items()
        return [name for name, one in listed if one.state == "up" and name not in there]

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
