"""The stand-in's town: its roads, the lights of its junction, and its OpenDRIVE text."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from rtcontrol_client.carla.standin.wire import GREEN, RED, YELLOW, Pose


@dataclass(frozen=True)
class Piece:
    """A piece of a curve: a straight line (curvature 0) or an arc (to the left if the curvature is positive)."""

    x: float
    y: float
    heading: float
    length: float
    curvature: float = 0.0

    def at(self, s: float) -> Pose:
        turn = self.curvature * s
        if self.curvature == 0.0:
            return Pose(self.x + s * math.cos(self.heading), self.y + s * math.sin(self.heading), self.heading)
        sides = (math.sin(self.heading + turn) - math.sin(self.heading)) / self.curvature
        ahead = (math.cos(self.heading) - math.cos(self.heading + turn)) / self.curvature
        return Pose(self.x + sides, self.y + ahead, self.heading + turn)

    def shifted(self, left: float) -> Piece:
        """Return the parallel piece `left` metres to the left."""
        scale = 1.0 - self.curvature * left
        x, y = self.x - left * math.sin(self.heading), self.y + left * math.cos(self.heading)
        return Piece(x, y, self.heading, self.length * scale, self.curvature / scale)

    def reversed(self) -> Piece:
        end = self.at(self.length)
        return Piece(end.x, end.y, end.heading + math.pi, self.length, -self.curvature)


class Curve:
    """A curve that consists of consecutive pieces."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self.pieces = tuple(pieces)
        self.starts = [0.0]
        for piece in self.pieces:
            self.starts.append(self.starts[-1] + piece.length)
        self.length = self.starts.pop()

    def at(self, s: float) -> Pose:
        index = max(bisect_right(self.starts, s) - 1, 0)
        return self.pieces[index].at(s - self.starts[index])

    def shifted(self, left: float) -> Curve:
        return Curve(piece.shifted(left) for piece in self.pieces)

    def reversed(self) -> Curve:
        return Curve(piece.reversed() for piece in reversed(self.pieces))


def line(start: Pose, length: float) -> Piece:
    return Piece(*start, length)


def arc(start: Pose, radius: float, turn: float) -> Piece:
    """Return an arc with this radius that turns by the angle `turn` (positive: to the left)."""
    return Piece(*start, radius * abs(turn), math.copysign(1.0 / radius, turn))


# The town has a junction of four arms with traffic lights, and two loop roads, so that every turn leads back to the
# junction. One loop (line, arc of 270 degrees, line) connects the east and north arms, the other the west and south
# arms. Each direction has three lanes of 3.5 m; traffic drives on the right. All three lanes lead straight on; the
# leftmost also leads left into a leftmost lane, the rightmost also right into a rightmost lane.


LANES = 3
WIDTH_M = 3.5
LOOP_RADIUS_M = 180.0
# The distance from the junction's centre to the stop lines.
REACH_M = 24.0
LIMIT_KMH = 60.0
JUNCTION = 100

# By arm: (its road, whether this road starts at the junction, the arm's direction). A loop consists of two
# roads, because CARLA's map confuses the two ends of a road if both are at the same junction.
ARMS = {"E": (1, True, 0.0), "N": (2, False, math.pi / 2), "W": (3, True, math.pi), "S": (4, False, -math.pi / 2)}
HALVES = {1: 2, 3: 4}
TURNS = {"straight": math.pi, "left": -math.pi / 2, "right": math.pi / 2}


@dataclass(frozen=True)
class Link:
    """The arms that a connecting road links; `lane` is the number of its first lane, counted from the left."""

    arm: str
    turn: str
    to: str
    lane: int


@dataclass(frozen=True)
class Road:
    """A road: a reference line with `lanes` lanes on its right and, in a loop, as many on its left."""

    number: int
    curve: Curve
    lanes: int
    link: Link | None = None


def build_loop(angle: float) -> tuple[Curve, Curve]:
    """Return both halves of the loop that leaves the junction at `angle` and returns by the next arm to the left."""
    straight = LOOP_RADIUS_M - REACH_M
    out = line(Pose(REACH_M * math.cos(angle), REACH_M * math.sin(angle), angle), straight)
    away = arc(out.at(straight), LOOP_RADIUS_M, 0.75 * math.pi)
    back = arc(away.at(away.length), LOOP_RADIUS_M, 0.75 * math.pi)
    return Curve([out, away]), Curve([back, line(back.at(back.length), straight)])


def build_connection(arm: str, turn: str) -> tuple[Curve, Link]:
    """Return reference line (left border of the leftmost lane) and link of the connecting road for a turn."""
    angle = ARMS[arm][2]
    to = min(ARMS, key=lambda name: abs(math.remainder(ARMS[name][2] - angle - TURNS[turn], 2 * math.pi)))
    link = Link(arm, turn, to, LANES if turn == "right" else 1)
    left = -WIDTH_M * (link.lane - 1)
    heading = angle + math.pi
    x, y = REACH_M * math.cos(angle), REACH_M * math.sin(angle)
    start = Pose(x - left * math.sin(heading), y + left * math.cos(heading), heading)
    if turn == "straight":
        return Curve([line(start, 2 * REACH_M)]), link
    if turn == "left":
        return Curve([arc(start, REACH_M - left, math.pi / 2)]), link
    return Curve([arc(start, REACH_M + left, -math.pi / 2)]), link


@cache
def roads() -> dict[int, Road]:
    """Return all roads by number: first the halves of the loops, then the connecting roads."""
    roads_by_number: dict[int, Road] = {}
    for first, second in HALVES.items():
        angle = next(angle for road, _, angle in ARMS.values() if road == first)
        roads_by_number |= {
            number: Road(number, curve, LANES) for number, curve in zip((first, second), build_loop(angle), strict=True)
        }
    for number, (arm, turn) in enumerate(((arm, turn) for arm in ARMS for turn in TURNS), start=JUNCTION + 1):
        curve, link = build_connection(arm, turn)
        roads_by_number[number] = Road(number, curve, LANES if turn == "straight" else 1, link)
    return roads_by_number


def incoming_lane(arm: str, lane: int) -> tuple[int, int]:
    """Return the road and the OpenDRIVE number of a lane that leads into the junction; `lane` counts from the left."""
    road, begins, _ = ARMS[arm]
    return road, lane if begins else -lane


def signal_number(arm: str) -> int:
    return 1 + list(ARMS).index(arm)


@cache
def lanes() -> dict[tuple[int, int], Curve]:
    """Return the centre lines, in driving direction, of all lanes to and from the junction, by OpenDRIVE's numbers of
    road and lane."""
    curves = {}
    for road in roads().values():
        for number in range(1, LANES + 1) if not road.link else ():
            right = WIDTH_M * (number - 0.5)
            curves[road.number, -number] = road.curve.shifted(-right)
            curves[road.number, number] = road.curve.shifted(right).reversed()
    return curves


# Durations of the phases of CARLA's traffic lights in seconds.
GREEN_S = 10.0
YELLOW_S = 3.0
CLEAR_S = 2.0
PHASE_S = GREEN_S + YELLOW_S + CLEAR_S
CYCLE_S = PHASE_S * len(ARMS)
# Half the length of a trigger box (m), half its width as a share of the lane's, and its distance (m) to the lane's end,
# from `UTrafficLightComponent::InitializeSign` (Carla/Traffic/TrafficLightComponent.cpp).
BOX_M, BOX_SHARE, BOX_BACK_M = 1.5, 0.25, 3.0


class PlacedLight(NamedTuple):
    """A traffic light of a town: the actor's pose, the signal's id in the map, and the trigger volume. The volume has
    the middle, half sizes and rotation of a box around all trigger boxes, relative to the actor, in CARLA's axes."""

    pole: Pose
    sign: str
    volume: list[list[float]]


def trigger_boxes(arm: str) -> list[Pose]:
    """Return the trigger boxes of an arm's light, one on each lane into the junction.

    CARLA's InitializeSign places a box at the end of the lane before the junction, then moves it by 3 m against the
    direction of the *referring* lane (over the junction), but not beyond the ends of its lane. In a lane with a
    positive number this move would lead beyond the end, so the box stays at the end.
    """
    poses = []
    for lane in range(1, LANES + 1):
        road, number = incoming_lane(arm, lane)
        curve = lanes()[road, number]
        poses.append(curve.at(curve.length - (BOX_BACK_M if number < 0 else 0.0)))
    return poses


def generate_light(arm: str) -> PlacedLight:
    """Return an arm's light as CARLA generates it from the map. The light faces across the road, 90 degrees from the
    signal (`ATrafficLightManager::SpawnTrafficLights`: "Blueprints are all rotated by 90 degrees"). Its trigger boxes
    are merged as in `UBoundingBoxCalculator::CombineBoxes` (Carla/Util): along the *world's* axes."""
    pole, found = _place_on_arm(arm, REACH_M, (LANES + 0.5) * WIDTH_M, ARMS[arm][2] + math.pi / 2), trigger_boxes(arm)
    xs = [box.x + side * _half_extent(box, 0.0) for box in found for side in (-1, 1)]
    ys = [box.y + side * _half_extent(box, math.pi / 2) for box in found for side in (-1, 1)]
    middle = _relative_place(pole, 0.5 * (min(xs) + max(xs)), 0.5 * (min(ys) + max(ys)))
    extent = [0.5 * (max(xs) - min(xs)), 0.5 * (max(ys) - min(ys)), 1.0]
    return PlacedLight(pole, str(signal_number(arm)), [middle, extent, [0.0, math.degrees(pole.heading), 0.0]])


def _place_on_arm(arm: str, away: float, right: float, heading: float) -> Pose:
    """Return a pose on an arm, `away` metres from the junction's centre and `right` metres right of its centre line."""
    cos, sin = math.cos(ARMS[arm][2]), math.sin(ARMS[arm][2])
    return Pose(away * cos - right * sin, away * sin + right * cos, heading)


def _relative_place(pole: Pose, x: float, y: float) -> list[float]:
    """Return a position relative to an actor, in CARLA's axes."""
    cos, sin = math.cos(pole.heading), math.sin(pole.heading)
    dx, dy = x - pole.x, y - pole.y
    return [dx * cos + dy * sin, dx * sin - dy * cos, 0.0]


def _half_extent(box: Pose, axis: float) -> float:
    """Return half the extent of a box along a world axis."""
    turned = box.heading - axis
    return BOX_M * abs(math.cos(turned)) + BOX_SHARE * WIDTH_M * abs(math.sin(turned))


def light_state(arm: str, elapsed_s: float) -> int:
    """Return the state of an arm's light at a simulated time."""
    phase, within = divmod(elapsed_s % CYCLE_S, PHASE_S)
    if list(ARMS)[int(phase)] != arm:
        return RED
    if within < GREEN_S:
        return GREEN
    return YELLOW if within < GREEN_S + YELLOW_S else RED


TRAFFIC_LIGHT = "1000001"
# Signals are this far from their road's end, because rounding might place them beyond it.
SIGNAL_BACK_M = 0.1
FLAT = '<elevationProfile><elevation s="0.0" a="0.0" b="0.0" c="0.0" d="0.0"/></elevationProfile><lateralProfile/>'


@cache
def opendrive() -> str:
    """Return the town as OpenDRIVE text."""
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<OpenDRIVE><header revMajor="1" revMinor="4" name="standin" version="1.00">
<geoReference>+proj=tmerc +lat_0=0 +lon_0=0 +k=1 +x_0=0 +y_0=0 +datum=WGS84</geoReference></header>
{"".join(map(_road_xml, roads().values()))}
<junction name="junction" id="{JUNCTION}">{"".join(map(_connection_xml, roads().values()))}</junction>
</OpenDRIVE>"""


def _road_xml(road: Road) -> str:
    plan = "".join(_geometry_xml(s, piece) for s, piece in zip(road.curve.starts, road.curve.pieces, strict=True))
    left = "" if road.link else f"<left>{''.join(_strip_xml(lane, road) for lane in range(road.lanes, 0, -1))}</left>"
    right = "".join(_strip_xml(-lane, road) for lane in range(1, road.lanes + 1))
    return f"""
<road name="Road {road.number}" length="{road.curve.length:.9f}" id="{road.number}" \
junction="{JUNCTION if road.link else -1}">
<link>{_link_xml(road)}</link><type s="0.0" type="town"><speed max="{LIMIT_KMH:.0f}" unit="km/h"/></type>
<planView>{plan}</planView>{FLAT}
<lanes><laneSection s="0.0">{left}
<center><lane id="0" type="none" level="false"></lane></center>
<right>{right}</right></laneSection></lanes>
<signals>{_signals_xml(road)}</signals></road>"""


def _link_xml(road: Road) -> str:
    def at(end: str, number: int, contact: str) -> str:
        return f'<{end} elementType="road" elementId="{number}" contactPoint="{contact}"/>'

    if link := road.link:
        arms = zip(("predecessor", "successor"), (ARMS[link.arm], ARMS[link.to]), strict=True)
        return "".join(at(end, number, "start" if begins else "end") for end, (number, begins, _) in arms)
    junction = f'elementType="junction" elementId="{JUNCTION}"'
    if road.number in HALVES:
        return f"<predecessor {junction}/>{at('successor', HALVES[road.number], 'start')}"
    return f"<successor {junction}/>{at('predecessor', road.number - 1, 'end')}"


def _geometry_xml(s: float, piece: Piece) -> str:
    shape = f'<arc curvature="{piece.curvature:.12f}"/>' if piece.curvature else "<line/>"
    place = f's="{s:.9f}" x="{piece.x:.9f}" y="{piece.y:.9f}" hdg="{piece.heading:.9f}" length="{piece.length:.9f}"'
    return f"<geometry {place}>{shape}</geometry>"


def _strip_xml(lane: int, road: Road) -> str:
    if road.link:
        before, after = _end_numbers(road.link, -lane)
        ends = f'<predecessor id="{before}"/><successor id="{after}"/>'
    else:
        ends = f'<{"successor" if road.number in HALVES else "predecessor"} id="{lane}"/>'
    width = f'<width sOffset="0.0" a="{WIDTH_M}" b="0.0" c="0.0" d="0.0"/>'
    return f'<lane id="{lane}" type="driving" level="false"><link>{ends}</link>{width}</lane>'


def _end_numbers(link: Link, lane: int) -> tuple[int, int]:
    """Return the OpenDRIVE lane numbers at both ends of the `lane`-th lane of a connecting road."""
    number = link.lane + lane - 1
    return incoming_lane(link.arm, number)[1], -incoming_lane(link.to, number)[1]


def _signals_xml(road: Road) -> str:
    """Return the signals in the form of CARLA's towns (Town01.xodr): the pole is next to a road but is valid for none
    of its lanes (0 to 0); each lane over the junction refers to the signal at the lane's start."""
    if road.link:
        return (
            f'<signalReference id="{signal_number(road.link.arm)}" s="0.0" t="0.0" orientation="-">'
            f'<validity fromLane="{-road.lanes}" toLane="-1"/></signalReference>'
        )
    arm, begins = next((arm, begins) for arm, (number, begins, _) in ARMS.items() if number == road.number)
    s = SIGNAL_BACK_M if begins else road.curve.length - SIGNAL_BACK_M
    return f"""<signal name="light {arm}" id="{signal_number(arm)}" s="{s:.9f}" \
t="{(LANES + 0.5) * WIDTH_M * (1 if begins else -1)}" zOffset="5.0" hOffset="0.0" roll="0.0" pitch="0.0" \
orientation="{"-" if begins else "+"}" dynamic="yes" country="OpenDRIVE" type="{TRAFFIC_LIGHT}" subtype="-1" \
value="-1" text="" height="0.5" width="0.5"><validity fromLane="0" toLane="0"/></signal>"""


def _connection_xml(road: Road) -> str:
    if not road.link:
        return ""
    lanes = range(1, road.lanes + 1)
    links = "".join(f'<laneLink from="{_end_numbers(road.link, lane)[0]}" to="{-lane}"/>' for lane in lanes)
    ends = f'incomingRoad="{incoming_lane(road.link.arm, 1)[0]}" connectingRoad="{road.number}" contactPoint="start"'
    return f'<connection id="{road.number}" {ends}>{links}</connection>'
