"""The town as OpenDRIVE text."""

from __future__ import annotations

from functools import cache
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from tests.bridges.carla.standin.roads import (
    ARMS,
    HALVES,
    JUNCTION,
    LANES,
    LIMIT_KMH,
    WIDTH_M,
    Link,
    Road,
    incoming,
    outgoing,
    roads,
    signal_number,
)

TRAFFIC_LIGHT = "1000001"
# How far before the end of its road a signal is written: one at the very end would be beyond it after rounding.
SIGNAL_BACK_M = 0.1


@cache
def opendrive() -> str:
    """The whole town, the same text at each call."""
    top = Element("OpenDRIVE")
    header = SubElement(top, "header", revMajor="1", revMinor="4", name="standin", version="1.00")
    SubElement(header, "geoReference").text = "+proj=tmerc +lat_0=0 +lon_0=0 +k=1 +x_0=0 +y_0=0 +datum=WGS84"
    for road in roads().values():
        write_road(top, road)
    for arm in ARMS:
        number = str(signal_number(arm))
        controller = SubElement(top, "controller", name=f"light {arm}", id=number, sequence="0")
        SubElement(controller, "control", signalId=number, type="0")
    write_junction(top)
    indent(top)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(top, encoding="unicode")


def write_road(top: Element, road: Road) -> None:
    link = road.link
    node = SubElement(
        top,
        "road",
        name=f"Road {road.number}",
        length=f"{road.curve.length:.9f}",
        id=str(road.number),
        junction=str(JUNCTION if link else -1),
    )
    ends = SubElement(node, "link")
    if link:
        for end, arm in (("predecessor", link.arm), ("successor", link.to)):
            number, begins, _ = ARMS[arm]
            contact = "start" if begins else "end"
            SubElement(ends, end, elementType="road", elementId=str(number), contactPoint=contact)
    else:
        first = road.number in HALVES
        near, far = ("predecessor", "successor") if first else ("successor", "predecessor")
        SubElement(ends, near, elementType="junction", elementId=str(JUNCTION))
        other, contact = (HALVES[road.number], "start") if first else (road.number - 1, "end")
        SubElement(ends, far, elementType="road", elementId=str(other), contactPoint=contact)
    kind = SubElement(node, "type", s="0.0", type="town")
    SubElement(kind, "speed", max=f"{LIMIT_KMH:.0f}", unit="km/h")
    write_plan(node, road)
    SubElement(SubElement(node, "elevationProfile"), "elevation", s="0.0", a="0.0", b="0.0", c="0.0", d="0.0")
    SubElement(node, "lateralProfile")
    write_lanes(node, road)
    write_signals(node, road)


def write_plan(node: Element, road: Road) -> None:
    plan = SubElement(node, "planView")
    for s, piece in zip(road.curve.starts, road.curve.pieces, strict=True):
        places = {"s": s, "x": piece.x, "y": piece.y, "hdg": piece.heading, "length": piece.length}
        geometry = SubElement(plan, "geometry", {name: f"{value:.9f}" for name, value in places.items()})
        if piece.curvature:
            SubElement(geometry, "arc", curvature=f"{piece.curvature:.12f}")
        else:
            SubElement(geometry, "line")


def write_lanes(node: Element, road: Road) -> None:
    section = SubElement(SubElement(node, "lanes"), "laneSection", s="0.0")
    if not road.link:
        left = SubElement(section, "left")
        for lane in range(road.lanes, 0, -1):
            write_lane(left, lane, road)
    centre = SubElement(SubElement(section, "center"), "lane", id="0", type="none", level="false")
    write_mark(centre, "none" if road.link else "solid")
    right = SubElement(section, "right")
    for lane in range(1, road.lanes + 1):
        write_lane(right, -lane, road)


def write_lane(side: Element, lane: int, road: Road) -> None:
    node = SubElement(side, "lane", id=str(lane), type="driving", level="false")
    ends = SubElement(node, "link")
    if road.link:
        before, after = lane_ends(road.link, -lane)
        SubElement(ends, "predecessor", id=str(before))
        SubElement(ends, "successor", id=str(after))
    else:
        SubElement(ends, "successor" if road.number in HALVES else "predecessor", id=str(lane))
    SubElement(node, "width", sOffset="0.0", a=str(WIDTH_M), b="0.0", c="0.0", d="0.0")
    if road.link:
        write_mark(node, "none")
    else:
        write_mark(node, "solid" if abs(lane) == LANES else "broken")


def write_mark(node: Element, kind: str) -> None:
    change = "both" if kind == "broken" else "none"
    SubElement(
        node, "roadMark", sOffset="0.0", type=kind, weight="standard", color="white", width="0.15", laneChange=change
    )


def lane_ends(link: Link, lane: int) -> tuple[int, int]:
    """OpenDRIVE lane numbers that the `lane`-th lane of a connecting road comes from and goes to."""
    number = link.lane + lane - 1
    return incoming(link.arm, number)[1], outgoing(link.to, number)[1]


def write_signals(node: Element, road: Road) -> None:
    """As RoadRunner wrote CARLA's own towns (Town01.xodr): the pole stands beside a road and holds for no lane of it
    (validity 0 to 0); each lane that leads over the junction refers to it from where it begins."""
    signals = SubElement(node, "signals")
    if road.link:
        number = str(signal_number(road.link.arm))
        reference = SubElement(signals, "signalReference", id=number, s="0.0", t="0.0", orientation="-")
        SubElement(reference, "validity", fromLane=str(-road.lanes), toLane="-1")
        return
    for arm, (number, begins, _) in ARMS.items():
        if number != road.number:
            continue
        signal = SubElement(
            signals,
            "signal",
            name=f"light {arm}",
            id=str(signal_number(arm)),
            s=f"{SIGNAL_BACK_M if begins else road.curve.length - SIGNAL_BACK_M:.9f}",
            t=f"{(LANES + 0.5) * WIDTH_M * (1 if begins else -1)}",
            zOffset="5.0",
            hOffset="0.0",
            roll="0.0",
            pitch="0.0",
            orientation="-" if begins else "+",
            dynamic="yes",
            country="OpenDRIVE",
            type=TRAFFIC_LIGHT,
            subtype="-1",
            value="-1",
            text="",
            height="0.5",
            width="0.5",
        )
        SubElement(signal, "validity", fromLane="0", toLane="0")


def write_junction(top: Element) -> None:
    junction = SubElement(top, "junction", name="junction", id=str(JUNCTION))
    for road in roads().values():
        link = road.link
        if not link:
            continue
        incoming_road = str(incoming(link.arm, 1)[0])
        connection = SubElement(
            junction,
            "connection",
            id=str(road.number),
            incomingRoad=incoming_road,
            connectingRoad=str(road.number),
            contactPoint="start",
        )
        for lane in range(1, road.lanes + 1):
            SubElement(connection, "laneLink", {"from": str(lane_ends(link, lane)[0]), "to": str(-lane)})
    for arm in ARMS:
        SubElement(junction, "controller", id=str(signal_number(arm)), type="")
