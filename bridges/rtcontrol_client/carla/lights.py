"""Determine the lanes to which each traffic light applies, and the positions of its stop lines.

CARLA reports a light to a vehicle only inside the light's trigger box, a few metres before the junction (carla#2268,
carla#9445). At 50 km/h this is one step, which is too late to brake. So this module combines two sources:

- the map's landmarks of the light's signal (`Map.get_all_landmarks_from_id`), which name the exact lanes. In CARLA's
  towns these are lanes *within* the junction; a light that was placed by hand may have no landmarks;
- the trigger volume, where vehicles must stop. CARLA generates a single box around the boxes of all lanes, along the
  world's axes (`UBoundingBoxCalculator::CombineBoxes`). This module searches the lanes under the box, since the
  client's stop waypoints (`TrafficLight.get_stop_waypoints`, carla#4121) follow the actor's axis and so miss some
  lanes.

The stop line is at the landmark, but not beyond the lane's entry into the junction, and at most BOX_TO_LINE_M beyond
the middle of the trigger box, as CARLA places the box before the line (`UTrafficLightComponent::InitializeSign`). So a
car may stop some metres before the painted line, in particular at a box that was placed by hand, but never beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rtcontrol_client.carla.lanes import Key, LaneLine, TownRoad

if TYPE_CHECKING:
    import carla

# Distance from the middle of a trigger box to the stop line: half of the box's length (3 m), plus 1.5 m.
BOX_TO_LINE_M = 3.0
# A box does not apply to a lane if it is farther than this before the lane's stop line, or farther to the side.
BOX_BEFORE_M, BOX_BESIDE_M = 20.0, 20.0
# A box up to this far inside the junction still applies to the lanes that enter the junction there.
INSIDE_M = 10.0


class Lamp(NamedTuple):
    """A traffic light in CARLA: the actor's number, the signal's id in the map ("": none), the centre of the trigger
    volume (None: no volume), and waypoints on the lanes under the volume."""

    number: int
    sign: str
    middle: tuple[float, float] | None
    under: Sequence[Any] = ()


def read_lamp(light: carla.TrafficLight, map: carla.Map) -> Lamp:
    """Read a traffic light from the client's cached data, without a request to the server."""
    import carla

    volume, at = light.trigger_volume, light.get_transform()
    extent, sign = volume.extent, light.get_opendrive_id()
    if max(extent.x, extent.y) <= 0.0:
        return Lamp(light.id, sign, None)
    box, middle = carla.Transform(volume.location, volume.rotation), at.transform(volume.location)
    # Use only the inner 90 % of the box, because its ends may reach into the next lane.
    along = [carla.Location(x=m) for m in _offsets(extent.x)] + [carla.Location(y=m) for m in _offsets(extent.y)]
    waypoints = [map.get_waypoint(at.transform(box.transform(place))) for place in along]
    return Lamp(light.id, sign, (middle.x, middle.y), [waypoint for waypoint in waypoints if waypoint is not None])


def _offsets(half_m: float) -> Iterator[float]:
    steps = max(math.ceil(half_m), 1)
    return (0.9 * half_m * n / steps for n in range(-steps, steps + 1))


def set_stop_lines(road: TownRoad, lamps: Iterable[Lamp]) -> None:
    """Compute the stop lines of the traffic lights and store them in `road`."""
    lines: dict[Key, dict[int, float]] = {}
    for lamp in lamps:
        for lane, s in _lanes_of_light(road, lamp):
            known = lines.setdefault(lane.key, {})
            known[lamp.number] = min(s, known.get(lamp.number, s))
    road.set_light_lines(lines)


def _lanes_of_light(road: TownRoad, lamp: Lamp) -> Iterator[tuple[LaneLine, float]]:
    """Yield the lanes to which a light applies, with their stop lines' distances (0 for lanes in a junction)."""
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
    # If the landmarks name some of the lanes under the box, ignore its other lanes, except a short lane that leads to a
    # named lane. If they name no lane under the box, the light applies to all lanes under the box.
    under = list(_lanes_under_box(road, lamp))
    for lane in [it for it in under if it in before or any(after in before for after in it.after)] or under:
        yield lane, min(lane.search(*lamp.middle)[0] + BOX_TO_LINE_M, lane.length)


def _lanes_under_box(road: TownRoad, lamp: Lamp) -> Iterator[LaneLine]:
    """Yield the lanes under the trigger box that are outside the junction. If the box is just inside the junction,
    yield the lanes that enter the junction there."""
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
    """Return the farthest stop line that the trigger box allows, or `line` if the box does not apply to the lane."""
    if middle is None:
        return line
    s, lateral = lane.search(*middle)
    near = abs(lateral) < BOX_BESIDE_M and -BOX_TO_LINE_M <= line - s < BOX_BEFORE_M
    return s + BOX_TO_LINE_M if near and s >= 0.0 else line
