"""The vehicles that can be spawned: a few of CARLA's type names with their sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BOOL, INT, FLOAT, STRING, COLOR = 1, 2, 3, 4, 5
COLORS = ["200,30,30", "30,60,200", "230,230,230", "20,20,20"]


@dataclass(frozen=True)
class Blueprint:
    """Half the length, width and height in metres."""

    type_id: str
    extent: tuple[float, float, float]
    generation: str = "2"

    def definition(self, number: int) -> list[Any]:
        texts = [
            ("number_of_wheels", INT, "4", [], False),
            ("base_type", STRING, "car", [], False),
            ("generation", INT, self.generation, [], False),
            ("special_type", STRING, "", [], False),
            ("has_lights", BOOL, "false", [], False),
            ("object_type", STRING, "", [], False),
            ("color", COLOR, COLORS[0], COLORS, True),
            ("role_name", STRING, "autopilot", ["autopilot", "scenario", "ego_vehicle"], True),
            ("sticky_control", BOOL, "true", [], True),
        ]
        attributes = [[name, kind, text, choices, free, False] for name, kind, text, choices, free in texts]
        return [number, self.type_id, self.type_id.replace(".", ","), attributes]


BLUEPRINTS = {
    one.type_id: one
    for one in (
        Blueprint("vehicle.tesla.model3", (2.40, 1.08, 0.74), "1"),
        Blueprint("vehicle.lincoln.mkz_2020", (2.45, 1.06, 0.75)),
        Blueprint("vehicle.audi.tt", (2.09, 1.00, 0.69), "1"),
        Blueprint("vehicle.nissan.micra", (1.82, 0.92, 0.75), "1"),
        Blueprint("vehicle.toyota.prius", (2.26, 1.00, 0.76), "1"),
    )
}


def definitions() -> list[Any]:
    return [one.definition(number) for number, one in enumerate(BLUEPRINTS.values(), start=1)]


def description(type_id: str, role: str) -> list[Any]:
    """What an actor that the server itself has made is described as."""
    uid = list(BLUEPRINTS).index(type_id) + 1 if type_id in BLUEPRINTS else 0
    return [uid, type_id, [["role_name", STRING, role]] if role else []]
