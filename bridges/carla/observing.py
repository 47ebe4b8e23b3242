"""What a driver is told: the vehicles around it by lane, the light, the junction ahead, as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rtcontrol.bridges.carla.intent import Place
from rtcontrol.bridges.carla.lane_line import Strand
from rtcontrol.bridges.carla.lanes import TownRoad
from rtcontrol.bridges.carla.neighbours import SIGHT_M, Body, Crowd, Neighbour, in_lane
from rtcontrol.bridges.carla.pace import KMH
from rtcontrol.bridges.carla.route import Chain

if TYPE_CHECKING:
    from rtcontrol.bridges.carla.driver import Driver

Light = Literal["none", "green", "yellow", "red"]
# A light is told from so far before its stop line on: what the driver model has learnt (`envs/road/world.py`).
LIGHT_SIGHT_M = 45.0
# Whoever waits is not in the junction yet, though its bumper may be over the line: it is told so much, and not 0.
WAITS_M = 1.0
WORST: tuple[Light, ...] = ("red", "yellow", "green")


@dataclass(frozen=True, slots=True)
class Scene:
    """One moment: our vehicle, the others, the speed limit that holds for us, all lights by their numbers.

    `crowd`, where many drive in one scene: all vehicles already sorted into lanes; then `others` is not looked at.
    """

    own: Body
    others: Sequence[Body] = ()
    limit_kmh: float = 50.0
    lights: Mapping[int, Light] = field(default_factory=dict)
    crowd: Crowd | None = None


@dataclass(frozen=True, slots=True)
class Near:
    """The next vehicle in one direction of a lane: bumper to bumper, m, 0 beside us; its speed along the lane, m/s."""

    gap_m: float
    speed: float


@dataclass(slots=True)
class Side:
    """A lane as seen from our vehicle; `seen` holds all vehicles on it, for what overlaps from there."""

    ahead: Near | None = None
    behind: Near | None = None
    seen: list[Neighbour] = field(default_factory=list)


@dataclass(slots=True)
class View:
    """All that a driver knows of one moment. `chain` is the way ahead, s metres of which lie behind us; `light` holds
    for it; `junction_m` from the front bumper to the stop line, or the junction's entry; 0 inside; None: out of sight.
    """

    own: Body
    chain: Chain
    strand: Strand
    s: float
    lateral_m: float
    limit_kmh: float
    light: Light
    junction_m: float | None
    lane: Side
    left: Side | None
    right: Side | None


def look(crowd: Crowd, scene: Scene, chain: Chain, s: float, lateral_m: float, sides: bool = True) -> View:
    """What is around our vehicle, s metres after the chain's start. The crowd is at this moment already.

    Without `sides` the lanes beside ours are not looked at."""
    own, strand, road = scene.own, chain.strands[0], crowd.road
    left = right = None
    if sides and strand.left is not None:
        left = _side(crowd, own, *_beside(road, own, chain, strand.left, s))
    if sides and strand.right is not None:
        right = _side(crowd, own, *_beside(road, own, chain, strand.right, s))
    light = _light(scene, chain, s)
    return View(
        own=own,
        chain=chain,
        strand=strand,
        s=s,
        lateral_m=lateral_m,
        limit_kmh=scene.limit_kmh,
        light=light,
        junction_m=junction_m(chain, s, own.half_length_m, WAITS_M if light in ("red", "yellow") else 0.0),
        lane=_side(crowd, own, chain, s),
        left=left,
        right=right,
    )


def place(view: View, shift: int) -> Place:
    """Where the vehicle is, as calls are refused for it."""
    return Place(view.own.speed * KMH, view.strand.index, view.strand.count, shift, view.junction_m)


def observe(road: TownRoad, scene: Scene, driver: Driver) -> dict[str, Any]:
    """The observation's data of the agent `driver`: km/h and metres; what is not there is left out."""
    view = driver.look(scene)
    data: dict[str, Any] = {
        "speed_kmh": view.own.speed * KMH,
        "limit_kmh": view.limit_kmh,
        "lane": view.strand.index,
        "lanes": view.strand.count,
        "shift": driver.shift,
        "light": view.light,
        "junction_m": view.junction_m,
        "turn": driver.intent.turn,
    }
    for name, side in (("", view.lane), ("left_", view.left), ("right_", view.right)):
        if side is not None:
            _tell(data, f"{name}ahead", side.ahead)
            _tell(data, f"{name}behind", side.behind)
    return data


def junction_m(chain: Chain, s: float, half_length_m: float, least: float = 0.0) -> float | None:
    """From the front bumper to the next stop line or junction's entry; 0 inside one; None: none within sight."""
    if chain.strands[0].junction:
        return 0.0
    at = chain.line_at if chain.line_at is not None and chain.line_at > s else chain.junction_at
    if at is None:
        return None
    left = max(at - s - half_length_m, least)
    return left if left < SIGHT_M else None


def _light(scene: Scene, chain: Chain, s: float) -> Light:
    """What holds for us: until the middle of our vehicle is over the line, from then on it is behind us."""
    line = chain.line_at
    if line is None or not s < line <= s + scene.own.half_length_m + LIGHT_SIGHT_M:
        return "none"
    shown = {scene.lights.get(number, "none") for number in chain.lights}
    return next((light for light in WORST if light in shown), "none")


def _beside(road: TownRoad, own: Body, chain: Chain, strand: Strand, s: float) -> tuple[Chain, float]:
    """The way ahead in a lane beside ours, and the place beside us in it."""
    at, _ = strand.project(own.x, own.y, s * strand.length / chain.strands[0].length)
    return road.chain(strand, "straight"), at


def _side(crowd: Crowd, own: Body, chain: Chain, s: float) -> Side:
    strand = chain.strands[0]
    side = Side(seen=list(crowd.ahead(chain, s, own.number)))
    _nearest(side, own, side.seen, strand.width)
    _nearest(side, own, crowd.behind(strand, s, own.number), strand.width)
    return side


def _nearest(side: Side, own: Body, seen: Iterable[Neighbour], width: float) -> None:
    """Keeps the nearest of each direction; one beside us is ahead if its front bumper is ahead of ours."""
    for other in seen:
        if not in_lane(other, width):
            continue
        halves = own.half_length_m + other.half_m
        if other.distance + other.half_m >= own.half_length_m:
            gap = max(other.distance - halves, 0.0)
            if gap < SIGHT_M and (side.ahead is None or gap < side.ahead.gap_m):
                side.ahead = Near(gap, other.along)
        else:
            gap = max(-other.distance - halves, 0.0)
            if gap < SIGHT_M and (side.behind is None or gap < side.behind.gap_m):
                side.behind = Near(gap, other.along)


def _tell(data: dict[str, Any], name: str, near: Near | None) -> None:
    if near is not None:
        data[f"{name}_m"] = near.gap_m
        data[f"{name}_kmh"] = near.speed * KMH
