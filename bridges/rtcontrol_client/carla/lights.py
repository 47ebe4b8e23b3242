"""Find out which traffic lights govern which lanes, and where their stop lines are.

CARLA reports a light to a vehicle only inside the light's trigger box, metres before the junction (carla#2268,
carla#9445): at 50 km/h that is one step, too late to brake. So this module combines two sources:

- the map's landmarks of its signal (`Map.get_all_landmarks_from_id`): exact lanes; in CARLA's own towns they are those
  *within* the junction, and a light that a map's maker placed by hand may have none;
- the trigger volume: where vehicles must stop. A generated volume is a single box around all lanes' boxes, along the
  world's axes (`UBoundingBoxCalculator::CombineBoxes`). This module looks up the lanes under the box by itself, since
  the client's stop waypoints (`TrafficLight.get_stop_waypoints`, carla#4121) go along the actor's axis by the box's x,
  and so miss some lanes.

The stop line is at the landmark, at the latest where the lane enters the junction, and never farther beyond the middle
of the trigger box than CARLA itself sets the box back (`UTrafficLightComponent::InitializeSign`). So a box that was
placed by hand far before the junction decides, and a car may stop some metres before the painted line, never beyond.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rtcontrol_client.carla.lanes import Key, LaneLine, TownRoad

if TYPE_CHECKING:
    import carla

# From the middle of a trigger box to the stop line: half of the box's 3 m, and 1.5 m of safe distance.
BOX_TO_LINE_M = 3.0
# A box that is farther before a lane's stop line, or farther to the side, does not belong to the lane.
BOX_BEFORE_M, BOX_BESIDE_M = 20.0, 20.0
# A box this far inside the junction still belongs to the lanes that enter the junction at its place.
INSIDE_M = 10.0


class Lamp(NamedTuple):
    """A traffic light in CARLA: the actor's number, the signal's id in the map ("": none), the centre of the trigger
    volume (None: no volume), and waypoints on the lanes under the volume."""

    number: int
    sign: str
    middle: tuple[float, float] | None
    under: Sequence[Any] = ()


def lamp_of(light: carla.TrafficLight, map: carla.Map) -> Lamp:
    """Read a light from the client's cached data, without a request to the server."""
    import carla

    volume, at = light.trigger_volume, light.get_transform()
    extent, sign = volume.extent, light.get_opendrive_id()
    if max(extent.x, extent.y) <= 0.0:
        return Lamp(light.id, sign, None)
    box, middle = carla.Transform(volume.location, volume.rotation), at.transform(volume.location)
    # Leave out the very ends of the box, which may reach into the next lane.
    along = [carla.Location(x=m) for m in _offsets(extent.x)] + [carla.Location(y=m) for m in _offsets(extent.y)]
    waypoints = [map.get_waypoint(at.transform(box.transform(place))) for place in along]
    return Lamp(light.id, sign, (middle.x, middle.y), [waypoint for waypoint in waypoints if waypoint is not None])


def _offsets(half_m: float) -> Iterator[float]:
    steps = max(math.ceil(half_m), 1)
    return (0.9 * half_m * n / steps for n in range(-steps, steps + 1))


def govern(road: TownRoad, lamps: Iterable[Lamp]) -> None:
    """Assign the traffic lights to the lanes that they govern."""
    lines: dict[Key, dict[int, float]] = {}
    for lamp in lamps:
        for lane, s in _governed_lanes(road, lamp):
            known = lines.setdefault(lane.key, {})
            known[lamp.number] = min(s, known.get(lamp.number, s))
    road.set_light_lines(lines)


def _governed_lanes(road: TownRoad, lamp: Lamp) -> Iterator[tuple[LaneLine, float]]:
    """Yield the lanes that a light governs, each with the place of the stop line (in a junction, the lane's start)."""
    marked = dict(_landmark_lanes(road, lamp.sign))
    yield from marked.items()
    before = {lane: s for lane, s in marked.items() if not lane.junction}
    for inside in marked:
        if inside.junction:
            before |= {lane: lane.length for lane in inside.before if not lane.junction}
    for lane, line in before.items():
        yield lane, min(line, lane.length, _limit_by_box(lane, line, lamp.middle))
    if lamp.middle is None:
        return
    # If landmarks name lanes, they name all of them: other lanes that the box touches do not count, except a short lane
    # that leads to a named one. If all named lanes are elsewhere, the signal says nothing about the box.
    under = list(_lanes_under_box(road, lamp))
    for lane in [it for it in under if it in before or any(after in before for after in it.after)] or under:
        yield lane, min(lane.search(*lamp.middle)[0] + BOX_TO_LINE_M, lane.length)


def _lanes_under_box(road: TownRoad, lamp: Lamp) -> Iterator[LaneLine]:
    """Yield the lanes under the trigger box, outside the junction; for a box inside, the lanes that end at its
    place."""
    for waypoint in lamp.under:
        lane, at = road.lane_of(waypoint), waypoint.transform.location
        if not lane.junction:
            yield lane
        elif lane.search(at.x, at.y)[0] < INSIDE_M:
            yield from (before for before in lane.before if not before.junction)


def _landmark_lanes(road: TownRoad, sign: str) -> Iterator[tuple[LaneLine, float]]:
    for mark in road.map.get_all_landmarks_from_id(sign) if sign else ():
        for ends in mark.get_lane_validities():
            for number in range(min(ends), max(ends) + 1):
                waypoint = None if number == 0 else road.map.get_waypoint_xodr(mark.road_id, number, mark.s)
                if waypoint is None or waypoint.lane_type != road.driving:
                    continue
                lane, at = road.lane_of(waypoint), waypoint.transform.location
                yield lane, 0.0 if lane.junction else lane.search(at.x, at.y)[0]


def _limit_by_box(lane: LaneLine, line: float, middle: tuple[float, float] | None) -> float:
    """Return the farthest stop line that the trigger box allows, or `line` if the box does not belong to the lane."""
    if middle is None:
        return line
    s, lateral = lane.search(*middle)
    near = abs(lateral) < BOX_BESIDE_M and -BOX_TO_LINE_M <= line - s < BOX_BEFORE_M
    return s + BOX_TO_LINE_M if near and s >= 0.0 else line
