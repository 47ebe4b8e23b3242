"""What the name of a Gymnasium world asks for: `gym:ID?key=value&...`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from rtcontrol.models.errors import UserError

PREFIX = "gym:"
OWN = ("levels", "precision", "success", "step_s", "safe", "sees", "actions", "told")
RULE = re.compile(r"(return|steps)(>=|<=|>|<)(-?\d+(?:\.\d+)?)")
# By the beginning of the id: what is seen, what can be done, and which of it is safe.
KNOWN: dict[str, tuple[str, str, str]] = {
    "CartPole-": ("x,v,angle,spin", "left,right", "left"),
    "MountainCar-": ("x,v", "left,none,right", "none"),
    "MountainCarContinuous-": ("x,v", "", ""),
    "Pendulum-": ("cos,sin,spin", "", ""),
    "Acrobot-": ("cos1,sin1,cos2,sin2,spin1,spin2", "left,none,right", "none"),
    "LunarLander-": ("x,y,vx,vy,angle,spin,left_leg,right_leg", "none,left,main,right", "none"),
}


@dataclass(frozen=True)
class GymOptions:
    """A world's id with what its name asks for. `levels`: so many values of each continuous action; `precision`: so
    many decimals of what is seen, shown as a whole number; `success`: a rule on an episode's return or steps (None: by
    the threshold that the world declares, else nothing is judged); `safe`: the action of the safe call; `sees`,
    `actions`: names; `told`: the instruction. `made` is for `gymnasium.make`. `known`: nobody named actions or what is
    safe, and those of the id are for its single choice alone."""

    id: str
    levels: int
    precision: int
    success: str | None
    step_s: float | None
    safe: str | None
    sees: tuple[str, ...]
    actions: tuple[str, ...]
    told: str
    made: Mapping[str, Any]
    known: bool

    @classmethod
    def of(cls, name: str) -> GymOptions:
        """Of `gym:ID?key=value&...`. UserError for a key of ours whose value cannot be used."""
        place, _, query = name.removeprefix(PREFIX).partition("?")
        given = dict(parse_qsl(query, keep_blank_values=True))
        bare = place.rpartition(":")[2]
        sees, actions, safe = next((told for start, told in KNOWN.items() if bare.startswith(start)), ("", "", ""))
        if "actions" in given:  # other names
            safe = ""
        success = given.get("success")
        if success is not None and success not in ("terminated", "truncated") and not RULE.fullmatch(success):
            raise wrong_option(name, "success", success, "return>=475, steps>=500, terminated or truncated")
        step_s = _number(name, "step_s", given["step_s"], 1e-4, 100.0) if "step_s" in given else None
        return cls(
            place,
            int(_number(name, "levels", given.get("levels", "5"), 2, 64)),
            int(_number(name, "precision", given.get("precision", "2"), 0, 6)),
            success,
            step_s,
            given.get("safe", safe) or None,
            _list(given.get("sees", sees)),
            _list(given.get("actions", actions)),
            given.get("told", f"play {place}"),
            {key: _value(name, key, value) for key, value in given.items() if key not in OWN},
            not given.keys() & {"actions", "safe"},
        )


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _value(name: str, key: str, text: str) -> Any:
    """An option of the world's own: a number, true, false, none, an object or list of JSON, or text."""
    if text.startswith(("{", "[")):
        try:
            return json.loads(text)
        except ValueError as error:
            raise wrong_option(name, key, text, f"an object or a list of JSON ({error})") from None
    plain: dict[str, Any] = {"true": True, "false": False, "none": None}
    if text.lower() in plain:
        return plain[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _number(name: str, key: str, text: str, low: float, high: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not low <= number <= high:
        raise wrong_option(name, key, text, f"a number from {low:g} to {high:g}")
    return number


def wrong_option(name: str, key: str, value: str, remedy: str) -> UserError:
    return UserError(f"{name}: {key}={value} cannot be used.", f"Give {remedy}.")
