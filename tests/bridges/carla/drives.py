"""Drives without a server, on the stand-in's town as an offline map, with the stand-in's bicycle models."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from rtcontrol_client.carla.driver import Driver
from rtcontrol_client.carla.lanes import LaneLine, TownRoad
from rtcontrol_client.carla.lights import Lamp, set_stop_lines
from rtcontrol_client.carla.observing import Body, Light, Scene
from rtcontrol_client.carla.standin.town import ARMS, opendrive, signal_number, trigger_boxes
from rtcontrol_client.carla.standin.world import Bicycle

DT = 1 / 16
HALF_LENGTH, HALF_WIDTH = 2.3, 0.95
KMH = 3.6


@cache
def road() -> TownRoad:
    import carla

    found = TownRoad(carla.Map("standin", opendrive()))
    set_stop_lines(found, lamps())
    return found


def lamps() -> list[Lamp]:
    """Return the town's traffic lights, numbered like their signals, without data that only a server has."""
    found = []
    for arm in ARMS:
        xs, ys = zip(*((box.x, box.y) for box in trigger_boxes(arm)), strict=True)
        middle = 0.5 * (min(xs) + max(xs)), -0.5 * (min(ys) + max(ys))
        found.append(Lamp(signal_number(arm), str(signal_number(arm)), middle))
    return found


def all_lights(light: Light) -> dict[int, Light]:
    """Return the same light for all arms."""
    return {signal_number(arm): light for arm in ARMS}


def lane_line(index: int) -> LaneLine:
    """Return one of a loop's three lanes into the junction, by its number from the left."""
    return next(
        known
        for known in road().lanes()
        if not known.junction and known.index == index and known.count == 3 and known.after and known.after[0].junction
    )


def body(lane_line: LaneLine, s: float, speed: float = 0.0, lateral: float = 0.0, number: int = 1) -> Body:
    x, y, tx, ty = lane_line.at(s)
    x, y = x - ty * lateral, y + tx * lateral
    yaw = math.degrees(math.atan2(ty, tx))
    return Body(number, x, y, 0.0, yaw, speed * tx, speed * ty, HALF_LENGTH, HALF_WIDTH)


class Drive:
    """A stepwise drive of our car, a bicycle model, among other cars that stand or drive straight on. The model's axes
    are mirrored to OpenDRIVE's: y and yaw."""

    def __init__(
        self, start: Body, others: Callable[[float], list[Body]] = lambda time: [], on: TownRoad | None = None
    ) -> None:
        self.bicycle = Bicycle(start.x, -start.y, -math.radians(start.yaw_deg))
        self.bicycle.speed = start.speed
        self.driver = Driver(on or road(), DT)
        self.control: Any = None
        self.others = others
        self.time = 0.0
        self.lights: dict[int, Light] = {}
        self.scene = self._scene()
        self.driver.look(self.scene)

    def obey(self, name: str, **arguments: Any) -> str | None:
        return self.driver.obey(name, arguments)

    def step(self) -> Body:
        self.control = self.bicycle.control = self.driver.step(self.scene)
        self.bicycle.step(DT, 7)
        self.time += DT
        self.scene = self._scene()
        self.driver.look(self.scene)
        return self.scene.own

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Step until a condition is true or the time is over; return whether the condition became true."""
        for _ in range(round(seconds / DT)):
            self.step()
            if until():
                return True
        return False

    def _scene(self) -> Scene:
        car = self.bicycle
        vx, vy = car.velocity()
        yaw = -math.degrees(math.remainder(car.heading, 2 * math.pi))
        own = Body(1, car.x, -car.y, 0.0, yaw, vx, -vy, HALF_LENGTH, HALF_WIDTH)
        return Scene(own, self.others(self.time), 60.0, self.lights)


# A road with features that the stand-in's town lacks: sections with new lanes, a shoulder, a dead end.


LENGTH_M = 300.0
SECOND_M = 150.0


def country_opendrive() -> str:
    """Return a dead-end road of 300 m to the east: two lanes, three from 150 m on, a shoulder, and one lane back."""
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<OpenDRIVE>
  <header revMajor="1" revMinor="4" name="country" version="1.00">
    <geoReference>+proj=tmerc +lat_0=0 +lon_0=0 +k=1 +x_0=0 +y_0=0 +datum=WGS84</geoReference>
  </header>
  <road name="country" length="{LENGTH_M}" id="7" junction="-1">
    <link/>
    <type s="0.0" type="rural"><speed max="60" unit="km/h"/></type>
    <planView><geometry s="0.0" x="0.0" y="0.0" hdg="0.0" length="{LENGTH_M}"><line/></geometry></planView>
    <elevationProfile><elevation s="0.0" a="0.0" b="0.0" c="0.0" d="0.0"/></elevationProfile>
    <lateralProfile/>
    <lanes>
      {_section(0.0, 2)}
      {_section(SECOND_M, 3)}
    </lanes>
  </road>
</OpenDRIVE>"""


def _section(s: float, lanes: int) -> str:
    other = "predecessor" if s else "successor"
    rights = "".join(_lane(-n, "driving", other if n <= 2 else None) for n in range(1, lanes + 1))
    return f"""<laneSection s="{s}">
        <left>{_lane(1, "driving", other)}</left>
        <center><lane id="0" type="none" level="false"/></center>
        <right>{rights}{_lane(-lanes - 1, "shoulder", None)}</right>
      </laneSection>"""


def _lane(number: int, kind: str, other: str | None) -> str:
    link = f'<{other} id="{number}"/>' if other else ""
    return (
        f'<lane id="{number}" type="{kind}" level="false"><link>{link}</link>'
        f'<width sOffset="0.0" a="3.5" b="0.0" c="0.0" d="0.0"/></lane>'
    )
