"""The town as OpenDRIVE text."""

from __future__ import annotations

from functools import cache

from rtcontrol_client.carla.standin.roads import (
    ARMS,
    HALVES,
    JUNCTION,
    LANES,
    LIMIT_KMH,
    WIDTH_M,
    Link,
    Piece,
    Road,
    incoming,
    outgoing,
    roads,
    signal_number,
)

TRAFFIC_LIGHT = "1000001"
# How far before the end of its road a signal is written: one at the very end would be beyond it after rounding.
SIGNAL_BACK_M = 0.1
FLAT = '<elevationProfile><elevation s="0.0" a="0.0" b="0.0" c="0.0" d="0.0"/></elevationProfile><lateralProfile/>'


@cache
def opendrive() -> str:
    """The whole town, the same text at each call."""
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<OpenDRIVE><header revMajor="1" revMinor="4" name="standin" version="1.00">
<geoReference>+proj=tmerc +lat_0=0 +lon_0=0 +k=1 +x_0=0 +y_0=0 +datum=WGS84</geoReference></header>
{"".join(map(_road, roads().values()))}
<junction name="junction" id="{JUNCTION}">{"".join(map(_connection, roads().values()))}</junction>
</OpenDRIVE>"""


def _road(road: Road) -> str:
    plan = "".join(_geometry(s, piece) for s, piece in zip(road.curve.starts, road.curve.pieces, strict=True))
    left = "" if road.link else f"<left>{''.join(_lane(lane, road) for lane in range(road.lanes, 0, -1))}</left>"
    right = "".join(_lane(-lane, road) for lane in range(1, road.lanes + 1))
    return f"""
<road name="Road {road.number}" length="{road.curve.length:.9f}" id="{road.number}" \
junction="{JUNCTION if road.link else -1}">
<link>{_ends(road)}</link><type s="0.0" type="town"><speed max="{LIMIT_KMH:.0f}" unit="km/h"/></type>
<planView>{plan}</planView>{FLAT}
<lanes><laneSection s="0.0">{left}
<center><lane id="0" type="none" level="false"></lane></center>
<right>{right}</right></laneSection></lanes>
<signals>{_signals(road)}</signals></road>"""


def _ends(road: Road) -> str:
    def at(end: str, number: int, contact: str) -> str:
        return f'<{end} elementType="road" elementId="{number}" contactPoint="{contact}"/>'

    if link := road.link:
        arms = zip(("predecessor", "successor"), (ARMS[link.arm], ARMS[link.to]), strict=True)
        return "".join(at(end, number, "start" if begins else "end") for end, (number, begins, _) in arms)
    junction = f'elementType="junction" elementId="{JUNCTION}"'
    if road.number in HALVES:
        return f"<predecessor {junction}/>{at('successor', HALVES[road.number], 'start')}"
    return f"<successor {junction}/>{at('predecessor', road.number - 1, 'end')}"


def _geometry(s: float, piece: Piece) -> str:
    shape = f'<arc curvature="{piece.curvature:.12f}"/>' if piece.curvature else "<line/>"
    place = f's="{s:.9f}" x="{piece.x:.9f}" y="{piece.y:.9f}" hdg="{piece.heading:.9f}" length="{piece.length:.9f}"'
    return f"<geometry {place}>{shape}</geometry>"


def _lane(lane: int, road: Road) -> str:
    if road.link:
        before, after = _lane_ends(road.link, -lane)
        ends = f'<predecessor id="{before}"/><successor id="{after}"/>'
    else:
        ends = f'<{"successor" if road.number in HALVES else "predecessor"} id="{lane}"/>'
    width = f'<width sOffset="0.0" a="{WIDTH_M}" b="0.0" c="0.0" d="0.0"/>'
    return f'<lane id="{lane}" type="driving" level="false"><link>{ends}</link>{width}</lane>'


def _lane_ends(link: Link, lane: int) -> tuple[int, int]:
    """OpenDRIVE lane numbers that the `lane`-th lane of a connecting road comes from and goes to."""
    number = link.lane + lane - 1
    return incoming(link.arm, number)[1], outgoing(link.to, number)[1]


def _signals(road: Road) -> str:
    """As RoadRunner wrote CARLA's own towns (Town01.xodr): the pole stands beside a road and holds for no lane of it
    (validity 0 to 0); each lane that leads over the junction refers to it from where it begins."""
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


def _connection(road: Road) -> str:
    if not road.link:
        return ""
    lanes = range(1, road.lanes + 1)
    links = "".join(f'<laneLink from="{_lane_ends(road.link, lane)[0]}" to="{-lane}"/>' for lane in lanes)
    ends = f'incomingRoad="{incoming(road.link.arm, 1)[0]}" connectingRoad="{road.number}" contactPoint="start"'
    return f'<connection id="{road.number}" {ends}>{links}</connection>'
