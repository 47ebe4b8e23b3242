"""Vehicles that the bridge itself puts on the road: each keeps its lane, a gap and a speed, and stops at red.

CARLA's own traffic manager is not used: an error in its thread ends the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from rtcontrol_client.carla.control import Control
from rtcontrol_client.carla.driver import Driver
from rtcontrol_client.carla.intent import Intent
from rtcontrol_client.carla.lanes import TownRoad
from rtcontrol_client.carla.neighbours import Body, LaneOccupancy
from rtcontrol_client.carla.observing import Light, Scene

GAP_M, GAP_S = 5.0, 1.0


NO_LIGHTS: Mapping[int, Light] = MappingProxyType({})


LIMIT_KMH = 50.0


class TrafficDrivers:
    """The drivers of many vehicles, stepped together: what is where is found out once for all of them."""

    def __init__(self, road: TownRoad, dt_s: float) -> None:
        self.road, self.dt_s = road, dt_s
        self._occupancy = LaneOccupancy(road)
        self.drivers: dict[int, Driver] = {}  # by the vehicles' numbers
        self._share: dict[int, float] = {}

    def add(self, number: int, share: float = 1.0) -> None:
        """A vehicle by its number; it likes to drive at a share of the speed limit."""
        driver = self.drivers[number] = Driver(self.road, self.dt_s, alone=True)
        driver.intent = Intent("follow", gap_m=GAP_M)
        self._share[number] = share

    def step(
        self,
        bodies: Iterable[Body],
        limits_kmh: Mapping[int, float],
        lights: Mapping[int, Light] = NO_LIGHTS,
    ) -> list[tuple[int, Control]]:
        """What each of ours does until the next step; `bodies` are all vehicles of the moment, ours among them.

        Limits by vehicle; where none is told: 50 km/h. Lights by their own numbers. Who is not among the bodies does
        nothing.
        """
        here = list(bodies)
        self._occupancy.update(here)
        told = []
        for body in here:
            driver = self.drivers.get(body.number)
            if driver is None:
                continue
            driver.intent.gap_m = GAP_M + GAP_S * body.speed
            limit_kmh = self._share[body.number] * limits_kmh.get(body.number, LIMIT_KMH)
            scene = Scene(body, (), limit_kmh, lights, self._occupancy)
            told.append((body.number, driver.step(scene)))
        return told
