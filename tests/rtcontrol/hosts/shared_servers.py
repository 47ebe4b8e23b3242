"""What the tests of shared fleets have in common: servers of one, and what is seen of their decoders."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from fleet_asked import Asking, modelled

from rtcontrol.hosts.fleet_book import namespace_of
from rtcontrol.hosts.shared_fleet import SharedFleet
from tests.helpers.processes import until

LEASE_S = 4.0
TERMS = {"rtcontrol": "1.0", "--model": "lander"}


def shared(name: str = "lab", decoders: int = 2, most: int | None = None, **terms: Any) -> SharedFleet:
    return SharedFleet(name, {**TERMS, **terms}, 8, decoders, 0.8, 1, most)


def pids(fleet: SharedFleet) -> list[int]:
    return sorted(int(member.process.get("pid", 0)) for member in fleet.members)


def actors(name: str) -> list[str]:
    import ray

    listed = ray.util.list_named_actors(all_namespaces=True)
    return sorted(one["name"] for one in listed if one["namespace"] == namespace_of(name))


def kept(of: SharedFleet, by: SharedFleet) -> list[bytes]:
    """The deciders that the decoders keep of a server, as another one finds them."""
    import ray

    found = [member.actor.__ray_call__.remote(lambda actor: list(actor._deciders)) for member in by.members]
    return [key for keys in ray.get(found) for key in keys if key.startswith(of.door.id.encode())]


def asking_at(stack: ExitStack, *fleets: SharedFleet, model: str = "old") -> list[Asking]:
    """A session at each, all on one decoder."""
    made = [stack.enter_context(Asking(fleet.open("s", modelled(model), 5.0))) for fleet in fleets]
    place = made[0].host.place
    for fleet, one in zip(fleets, made, strict=True):
        if one.host.place != place:
            fleet.move(one.host, place)
        until(lambda one=one: one.host.place == place and one.host.going is None)
        one.go_on()
    return made


def tidied(*fleets: SharedFleet, count: int = 2) -> None:
    """Until all have so many decoders again, and the same."""

    def even() -> bool:
        there = [sorted(m.decoder for m in fleet.members if m.takes) for fleet in fleets]
        return all(len(one) == count and one == there[0] for one in there) and all(f.door.roster.tidy for f in fleets)

    until(even, "the decoders are not in order", 120.0)


def silenced(fleet: SharedFleet) -> None:
    """It says nothing any more, as one that hangs."""
    fleet.door._closed.set()
    fleet.door._soon.set()
    fleet.door._thread.join()
