"""The junction's lights: each arm has its green in turn, as CARLA's own towns have it, so that left turns are safe."""

from __future__ import annotations

import math

from tests.bridges.carla.standin.geometry import Box, Pose
from tests.bridges.carla.standin.lanes import network
from tests.bridges.carla.standin.roads import ARMS, LANES, REACH_M, WIDTH_M, incoming
from tests.bridges.carla.standin.wire import GREEN, RED, YELLOW

# CARLA's times.
GREEN_S = 10.0
YELLOW_S = 3.0
CLEAR_S = 2.0
PHASE_S = GREEN_S + YELLOW_S + CLEAR_S
CYCLE_S = PHASE_S * len(ARMS)
# Half of a trigger box along its lane, as a share of the lane's width across it, and how far before the end of its lane
# the middle of one stands: `UTrafficLightComponent::InitializeSign` (Carla/Traffic/TrafficLightComponent.cpp).
BOX_M, BOX_SHARE, BOX_BACK_M = 1.5, 0.25, 3.0
NAMES = {RED: "red", YELLOW: "yellow", GREEN: "green"}


def boxes(arm: str) -> list[Box]:
    """The trigger boxes of an arm's light, one on each lane that comes to the junction.

    As InitializeSign places them for references on the lanes over a junction: at the end of the lane before, and then
    3 m back against the *referring* lane's direction, but not beyond its lane's ends. Where the lane before counts the
    other way (its number is positive) that is beyond, and the box stays at the end.
    """
    found = []
    for lane in range(1, LANES + 1):
        road, number = incoming(arm, lane)
        curve = network().lanes[road, number].curve
        x, y, heading = curve.at(curve.length - (BOX_BACK_M if number < 0 else 0.0))
        found.append(Box(x, y, heading, BOX_M, BOX_SHARE * WIDTH_M))
    return found


def pole(arm: str) -> Pose:
    """Where the actor of an arm's light stands. It looks across the road: 90 degrees from the signal
    (`ATrafficLightManager::SpawnTrafficLights`: "Blueprints are all rotated by 90 degrees")."""
    angle = ARMS[arm][2]
    away = (LANES + 0.5) * WIDTH_M
    x, y = REACH_M * math.cos(angle) - away * math.sin(angle), REACH_M * math.sin(angle) + away * math.cos(angle)
    return Pose(x, y, angle + math.pi / 2)


def volume(arm: str) -> list[list[float]]:
    """All trigger boxes of a light in one, as `UBoundingBoxCalculator::CombineBoxes` (Carla/Util) makes it: a box along
    the *world's* axes, [middle, half sizes, rotation] as seen from the actor, in CARLA's axes."""
    found = boxes(arm)
    xs = [box.x + side * _reach(box, 0.0) for box in found for side in (-1, 1)]
    ys = [box.y + side * _reach(box, math.pi / 2) for box in found for side in (-1, 1)]
    at = pole(arm)
    dx, dy = 0.5 * (min(xs) + max(xs)) - at.x, 0.5 * (min(ys) + max(ys)) - at.y
    cos, sin = math.cos(at.heading), math.sin(at.heading)
    middle = [dx * cos + dy * sin, dx * sin - dy * cos, 0.0]
    return [middle, [0.5 * (max(xs) - min(xs)), 0.5 * (max(ys) - min(ys)), 1.0], [0.0, math.degrees(at.heading), 0.0]]


def _reach(box: Box, axis: float) -> float:
    """Half of what a box takes up along a direction."""
    turned = box.heading - axis
    return box.half_length * abs(math.cos(turned)) + box.half_width * abs(math.sin(turned))


def state(arm: str, elapsed_s: float) -> int:
    """The light of an arm at a simulated time."""
    phase, within = divmod(elapsed_s % CYCLE_S, PHASE_S)
    if list(ARMS)[int(phase)] != arm:
        return RED
    if within < GREEN_S:
        return GREEN
    return YELLOW if within < GREEN_S + YELLOW_S else RED


def since_change(arm: str, elapsed_s: float) -> float:
    """Seconds for which the light of an arm has been what it is."""
    within = (elapsed_s - PHASE_S * list(ARMS).index(arm)) % CYCLE_S
    if within < GREEN_S:
        return within
    return within - GREEN_S if within < GREEN_S + YELLOW_S else within - GREEN_S - YELLOW_S
