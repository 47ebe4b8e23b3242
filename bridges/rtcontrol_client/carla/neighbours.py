"""Who is where: the vehicles of one moment, sorted into lanes, and those that are on a way."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rtcontrol_client.carla.lanes import TownRoad
from rtcontrol_client.carla.route import Key, LaneLine, Route

SIGHT_M = 150.0
# Half of the longest vehicle: its centre may be so much farther than its bumper.
LONGEST_M = 10.0
# How far off the lane's border a vehicle's centre still counts as in the lane.
BORDER_M = 0.3
LARGEST = 1e5
# Whoever moves at more than an angle of 45 degrees to a way drives across it.
ALONG, MOVING = 0.7, 2.0


class Body(NamedTuple):
    """A vehicle: its number, place of its centre (m), yaw (degrees), velocity (m/s), half its length and width (m).

    CARLA's axes: y to the right, yaw clockwise."""

    number: int
    x: float
    y: float
    z: float
    yaw_deg: float
    vx: float
    vy: float
    half_length_m: float
    half_width_m: float

    @property
    def speed(self) -> float:
        """m/s over the ground."""
        return math.hypot(self.vx, self.vy)

    @property
    def sane(self) -> bool:
        """Whether all figures are numbers that a vehicle on a road may have."""
        # A comparison with NaN is false.
        return all(-LARGEST < value < LARGEST for value in self[1:])


class Neighbour(NamedTuple):
    """A vehicle on a way, m and m/s: how far its centre is ahead (negative: behind) and how far right of the way's
    centre line; its speed along the way; half of what it takes up along the way and across it. `crossing`: it drives
    across the way, not along it."""

    distance: float
    lateral: float
    along: float
    half_m: float
    across_m: float
    crossing: bool
    body: Body


class LaneOccupancy:
    """Where each of many vehicles is; kept from moment to moment, so that only newcomers are looked up in the map."""

    def __init__(self, road: TownRoad) -> None:
        self.road = road
        self._known: dict[int, tuple[LaneLine, float]] = {}
        self._on: dict[Key, list[tuple[float, float, float, Body]]] = {}
        self._inside: list[Body] = []

    def update(self, bodies: Iterable[Body]) -> None:
        """The next moment: these vehicles and no others. One whose figures make no sense is nowhere."""
        known: dict[int, tuple[LaneLine, float]] = {}
        self._on, self._inside = {}, []
        for body in bodies:
            if not body.sane:
                continue
            placed = self._place(body)
            if placed is None:
                continue
            lane, s, lateral = placed
            known[body.number] = lane, s
            if lane.junction:
                self._inside.append(body)
                continue
            tx, ty = lane.at(s)[2:]
            self._on.setdefault(lane.key, []).append((s, lateral, body.vx * tx + body.vy * ty, body))
        self._known = known

    def ahead(self, route: Route, s: float, number: int) -> Iterator[Neighbour]:
        """Vehicles on the way ahead or beside, as seen from s metres after the route's start; not the one `number`."""
        for offset, lane in zip(route.offsets, route.lanes, strict=True):
            if offset - s > SIGHT_M + LONGEST_M:
                break
            yield from self._of(lane, offset - s, number)

    def behind(self, lane: LaneLine, s: float, number: int) -> Iterator[Neighbour]:
        """Vehicles on any of the ways that lead here, without those on the lane itself."""
        for start, before in self.road.behind(lane)[1:]:
            if s - start - before.length > SIGHT_M + LONGEST_M:
                continue
            yield from self._of(before, start - s, number)

    def _of(self, lane: LaneLine, start: float, number: int) -> Iterator[Neighbour]:
        """In a lane whose start is so far ahead."""
        if lane.junction:
            yield from self._across(lane, start, number)
        for at, lateral, along, body in self._on.get(lane.key, ()):
            if body.number != number:
                yield Neighbour(start + at, lateral, along, body.half_length_m, body.half_width_m, False, body)

    def _across(self, lane: LaneLine, start: float, number: int) -> Iterator[Neighbour]:
        """In a junction lanes cross: whoever is on the lane's surface counts, wherever it is bound for."""
        for body in self._inside:
            if body.number == number or not lane.near(body.x, body.y):
                continue
            at, lateral = lane.search(body.x, body.y)
            if 0.0 <= at <= lane.length:
                tx, ty = lane.at(at)[2:]
                yaw = math.radians(body.yaw_deg)
                along, across = (
                    abs(tx * math.cos(yaw) + ty * math.sin(yaw)),
                    abs(tx * math.sin(yaw) - ty * math.cos(yaw)),
                )
                crossing = along < ALONG and body.speed > MOVING
                half = along * body.half_length_m + across * body.half_width_m
                wide = across * body.half_length_m + along * body.half_width_m
                yield Neighbour(start + at, lateral, body.vx * tx + body.vy * ty, half, wide, crossing, body)

    def _place(self, body: Body) -> tuple[LaneLine, float, float] | None:
        before = self._known.get(body.number)
        if before is not None:
            lane, hint = before
            s, lateral = lane.project(body.x, body.y, hint)
            # Not far from where it was, on the same lane: no other is nearer.
            if 0.0 <= s <= lane.length and abs(lateral) <= 0.5 * lane.width and abs(s - hint) < 20.0:
                return lane, s, lateral
        return self.road.place(body.x, body.y, body.z, body.yaw_deg)


def in_lane(seen: Neighbour, width: float) -> bool:
    """Whether a vehicle is in a lane of this width, and not just crossing it."""
    return not seen.crossing and abs(seen.lateral) <= 0.5 * width + BORDER_M
