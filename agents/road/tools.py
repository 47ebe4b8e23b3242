"""The driver agent: six tools, and the observation text, which describes the traffic around the car with integers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from rtcontrol.agents.agent import Agent, Fallback
from rtcontrol.agents.tool import OneOf, Tools, tool
from rtcontrol.models.call import Call

FREE_M = 150  # metres; if no car or junction is nearer, the text shows this gap
NO_LANE = -1  # the text shows this gap for a lane that does not exist
CLAMP = 200
LIGHTS = ("none", "green", "yellow", "red")
# Words for directions in observations. Instructions use other words, so the model cannot confuse the two.
WAYS = {"straight": "onward", "left": "lefthand", "right": "righthand"}
TURNS = {word: turn for turn, word in WAYS.items()}
WORDS = ("speed", "limit", "lane", "shift", "ahead", "behind", "l", "r", "light", "junction", "way", *WAYS.values())


@tool
def set_speed(kmh: Annotated[int, OneOf(10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120)]) -> None:
    """Drive at this speed, whoever is ahead."""


@tool
def change_lane(direction: Literal["left", "right"]) -> None:
    """Change to the next lane on that side; speed stays as it was called."""


@tool
def follow(gap: Annotated[int, OneOf(5, 10, 15, 20, 30, 40, 50)]) -> None:
    """Follow the vehicle ahead at this gap in metres; drive at the limit where nobody is ahead."""


@tool
def brake(level: Annotated[int, OneOf(20, 40, 60, 80, 100)]) -> None:
    """Brake, in percent of full braking."""


@tool
def turn(at_next_junction: Literal["left", "right", "straight"]) -> None:
    """Choose the way at the next junction; a left turn starts in the leftmost lane, a right turn in the rightmost."""


@tool
def stop() -> None:
    """Come to a halt in the lane and stand."""


def observe(data: Mapping[str, Any]) -> str:
    """Return the observation text, such as `speed 48 limit 60 lane 2 3 shift 0 ahead 35 -6 behind 20 2 l 12 5 60 -10 r
    150 0 150 0 light green junction 80 way onward`, in km/h and metres, rounded.

    `lane` has our lane, counted from the left, and the number of lanes. `shift` is -1 or 1 during a change to the left
    or right. `ahead` and `behind` have the gap to the nearest car and its speed relative to ours (`150 0` if no car is
    near). `l` and `r` have these four numbers for the lanes on the left and right (`-1 0 -1 0` if it does not exist).
    `junction` is the distance to the next junction (0: inside, 150: none near), `way` the direction chosen there.
    """
    ego_kmh = _integer(data["speed_kmh"])
    lane, lanes = int(data["lane"]), int(data["lanes"])
    junction = data["junction_m"]
    parts = [
        f"speed {ego_kmh} limit {_integer(data['limit_kmh'])} lane {lane} {lanes} shift {int(data['shift'])}",
        f"ahead {_other_car_text(data, 'ahead', ego_kmh)} behind {_other_car_text(data, 'behind', ego_kmh)}",
        f"l {_side_text(data, 'left', ego_kmh, lane > 1)} r {_side_text(data, 'right', ego_kmh, lane < lanes)}",
        f"light {data['light']} junction {FREE_M if junction is None else _metres(junction)} way {WAYS[data['turn']]}",
    ]
    return " ".join(parts)


def parse_observation(text: str) -> dict[str, Any]:
    """Parse an observation text to the data, whose values are rounded and clamped as in the text."""
    words = text.split()
    ego_kmh = int(words[1])
    data: dict[str, Any] = {
        "speed_kmh": float(ego_kmh),
        "limit_kmh": float(words[3]),
        "lane": int(words[5]),
        "lanes": int(words[6]),
        "shift": int(words[8]),
        "light": words[26],
        "junction_m": None if int(words[28]) >= FREE_M else float(words[28]),
        "turn": TURNS[words[30]],
    }
    names = ("ahead", "behind", "left_ahead", "left_behind", "right_ahead", "right_behind")
    for name, at in zip(names, (10, 13, 16, 18, 21, 23), strict=True):
        data |= _parse_other_car(name, words[at : at + 2], ego_kmh)
    return data


def _other_car_text(data: Mapping[str, Any], name: str, ego_kmh: int) -> str:
    gap, speed = data.get(f"{name}_m"), data.get(f"{name}_kmh")
    if gap is None or speed is None or _metres(gap) == FREE_M:
        return f"{FREE_M} 0"
    return f"{_metres(gap)} {max(-CLAMP, min(CLAMP, _integer(speed) - ego_kmh))}"


def _side_text(data: Mapping[str, Any], side: str, ego_kmh: int, exists: bool) -> str:
    if not exists:
        return f"{NO_LANE} 0 {NO_LANE} 0"
    return f"{_other_car_text(data, f'{side}_ahead', ego_kmh)} {_other_car_text(data, f'{side}_behind', ego_kmh)}"


def _parse_other_car(name: str, words: list[str], ego_kmh: int) -> dict[str, float | None]:
    gap = int(words[0])
    near = 0 <= gap < FREE_M
    return {f"{name}_m": float(gap) if near else None, f"{name}_kmh": float(ego_kmh + int(words[1])) if near else None}


def _metres(metres: float) -> int:
    return max(0, min(FREE_M, round(metres)))


def _integer(value: float) -> int:
    return max(-CLAMP, min(CLAMP, round(value)))


agent = Agent(
    name="driver",
    description="Drives a car in traffic: speed, lane, following, turns and stops as told in words.",
    tools=Tools([set_speed, change_lane, follow, brake, turn, stop]),
    observe=observe,
    instruction="drive on at the speed limit",
    fallback=Fallback(Call("stop", {}), hold_ms=500.0),
    model="driver",
    history=0,
)
