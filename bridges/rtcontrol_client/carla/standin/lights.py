"""The junction's lights: each arm has its green in turn, as CARLA's own towns have it, so that left turns are safe."""

from __future__ import annotations

import math
from typing import NamedTuple

from rtcontrol_client.carla.standin.roads import (
    ARMS,
    LANES,
    REACH_M,
    WIDTH_M,
    Pose,
    incoming,
    lanes,
    signal_number,
)
from rtcontrol_client.carla.standin.wire import GREEN, RED, YELLOW

# CARLA's times.
GREEN_S = 10.0
YELLOW_S = 3.0
CLEAR_S = 2.0
PHASE_S = GREEN_S + YELLOW_S + CLEAR_S
CYCLE_S = PHASE_S * len(ARMS)
# Half of a trigger box along its lane, as a share of the lane's width across it, and how far before the end of its lane
# the middle of one stands: `UTrafficLightComponent::InitializeSign` (Carla/Traffic/TrafficLightComponent.cpp).
BOX_M, BOX_SHARE, BOX_BACK_M = 1.5, 0.25, 3.0


class Placed(NamedTuple):
    """A light in a town: its actor's place, its signal's id in the map, and its trigger volume: the middle, the half
    sizes and the rotation of one box around its trigger boxes, as seen from the actor, in CARLA's axes."""

    pole: Pose
    sign: str
    volume: list[list[float]]


def boxes(arm: str) -> list[Pose]:
    """The trigger boxes of an arm's light, one on each lane that comes to the junction.

    As InitializeSign places them for references on the lanes over a junction: at the end of the lane before, and then
    3 m back against the *referring* lane's direction, but not beyond its lane's ends. Where the lane before counts the
    other way (its number is positive) that is beyond, and the box stays at the end.
    """
    found = []
    for lane in range(1, LANES + 1):
        road, number = incoming(arm, lane)
        curve = lanes()[road, number]
        found.append(curve.at(curve.length - (BOX_BACK_M if number < 0 else 0.0)))
    return found


def generated(arm: str) -> Placed:
    """A light made from the map. It looks across the road: 90 degrees from the signal
    (`ATrafficLightManager::SpawnTrafficLights`: "Blueprints are all rotated by 90 degrees"). Its trigger boxes are told
    as `UBoundingBoxCalculator::CombineBoxes` (Carla/Util) makes them one: along the *world's* axes."""
    pole, found = _beside(arm, REACH_M, (LANES + 0.5) * WIDTH_M, ARMS[arm][2] + math.pi / 2), boxes(arm)
    xs = [box.x + side * _reach(box, 0.0) for box in found for side in (-1, 1)]
    ys = [box.y + side * _reach(box, math.pi / 2) for box in found for side in (-1, 1)]
    middle = _seen(pole, 0.5 * (min(xs) + max(xs)), 0.5 * (min(ys) + max(ys)))
    extent = [0.5 * (max(xs) - min(xs)), 0.5 * (max(ys) - min(ys)), 1.0]
    return Placed(pole, str(signal_number(arm)), [middle, extent, [0.0, math.degrees(pole.heading), 0.0]])


def _beside(arm: str, away: float, right: float, heading: float) -> Pose:
    """So far from the junction's middle on an arm, on the right of who comes in."""
    cos, sin = math.cos(ARMS[arm][2]), math.sin(ARMS[arm][2])
    return Pose(away * cos - right * sin, away * sin + right * cos, heading)


def _seen(pole: Pose, x: float, y: float) -> list[float]:
    """A place as seen from an actor, in CARLA's axes."""
    cos, sin = math.cos(pole.heading), math.sin(pole.heading)
    dx, dy = x - pole.x, y - pole.y
    return [dx * cos + dy * sin, dx * sin - dy * cos, 0.0]


def _reach(box: Pose, axis: float) -> float:
    """Half of what a box takes up along a direction."""
    turned = box.heading - axis
    return BOX_M * abs(math.cos(turned)) + BOX_SHARE * WIDTH_M * abs(math.sin(turned))


def state(arm: str, elapsed_s: float) -> int:
    """The light of an arm at a simulated time."""
    phase, within = divmod(elapsed_s % CYCLE_S, PHASE_S)
    if list(ARMS)[int(phase)] != arm:
        return RED
    if within < GREEN_S:
        return GREEN
    return YELLOW if within < GREEN_S + YELLOW_S else RED
