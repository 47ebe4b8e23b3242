"""How a Gymnasium world is made by its id, and why one cannot be."""

from __future__ import annotations

import importlib
import json
import linecache
import math
import os
import re
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import gymnasium

from rtcontrol.envs.thread import half_made, shut
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


REGISTRATION = gymnasium.envs.registration.__file__
# How ids begin, the module that registers them when it is imported, and what to install (None: they may be others').
PACKAGES = (
    (r"(MiniGrid|BabyAI)-", "minigrid", "minigrid"),
    (
        r"Fetch|Hand(Manipulate|Reach)|(Point|Ant)Maze|AdroitHand|FrankaKitchen|"
        r"(Ant|HalfCheetah|Hopper|Humanoid(Standup)?|Inverted(Double)?Pendulum|Pusher|Reacher|Swimmer|Walker2d)-v[23]$",
        "gymnasium_robotics",
        "gymnasium-robotics",
    ),
    (
        r"(highway|merge|roundabout|parking|intersection|racetrack|exit|u-turn|two-way|lane-keeping)-",
        "highway_env",
        "highway-env",
    ),
    (r"ALE/|\w+NoFrameskip-v[04]$", "ale_py", "ale-py"),
    (r"Vizdoom", "vizdoom.gymnasium_wrapper", "vizdoom"),
    (r"Panda", "panda_gym", "panda-gym"),
    (r"[A-Z]\w+-v[04]$", "ale_py", None),  # Atari's games, before they had a namespace
)


def load(name: str) -> None:
    """Import the module that registers it, where the name says one (`gym:MODULE:ID`). UserError where it cannot be."""
    options = GymOptions.of(name)
    module, named, _ = options.id.rpartition(":")
    try:
        if named:
            importlib.import_module(module)
    except Exception as error:
        raise _unmade(name, options, error) from error


def make(name: str, options: GymOptions) -> Any:
    """UserError where it cannot be made; what was begun is closed."""
    if options.made.get("render_mode") == "human" and not _has_display():
        raise UserError(
            f"{name}: render_mode=human opens a window, and there is no display here.",
            "Leave it out, or give it where there is one (DISPLAY names it).",
        )
    try:
        try:
            return gymnasium.make(options.id, **options.made)
        except (gymnasium.error.UnregisteredEnv, ImportError):  # also ids of packages that Gymnasium once had itself
            if not _registered(name, options.id):
                raise
            return gymnasium.make(options.id, **options.made)
    except UserError:
        raise
    except Exception as error:  # a world's own checks raise whatever they like
        begun = half_made(error, lambda one: isinstance(one, gymnasium.Env) and not isinstance(one, gymnasium.Wrapper))
        with suppress(Exception):  # why it cannot be made is told
            shut(begun)
        raise _unmade(name, options, error) from None


def _has_display() -> bool:
    """Some libraries end the process where they find none."""
    named = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    return sys.platform != "linux" or any(os.environ.get(one) for one in named)


def _unmade(name: str, options: GymOptions, error: Exception) -> UserError:
    package, code, line = _failed_at(error)
    own = isinstance(error, gymnasium.error.Error)
    told = " ".join(map(str, error.args)) if own else str(error)
    told = " ".join(told.replace("`", "").split()) or code
    if not own:
        told = f"{type(error).__name__}: {told}{f', {line}' if line else ''}"
    return UserError(f"{name} cannot be made ({told}).", _remedy(error, options, package))


def _failed_at(error: Exception) -> tuple[str, str, str]:
    """The package of the world that failed, the code, and its `file.py:12`; each "" where none of a world's ran."""
    ran = [(frame.f_globals.get("__name__", "").partition(".")[0], frame.f_code.co_filename, line)
           for frame, line in traceback.walk_tb(error.__traceback__)]  # fmt: skip
    ran = [one for one in ran if one[0] not in ("rtcontrol", "importlib") and one[1] != REGISTRATION]
    its = [one for one in ran if one[0] == ran[0][0]]
    if not its:
        return "", "", ""
    package, file, line = its[-1]
    return package, linecache.getline(file, line).strip(), f"{Path(file).name}:{line}"


def _registered(name: str, place: str) -> bool:
    """Whether a package that is known for such ids was imported, which registers them."""
    for begins, module, package in PACKAGES:
        if not re.match(begins, place):
            continue
        try:
            importlib.import_module(module)
            return True
        except ImportError as error:
            if package is None:
                return False
            if isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
                raise UserError(
                    f"{name} cannot be made: it is of {package}, which is not installed.",
                    f"Install it: `pip install {package}`.",
                ) from None
            raise UserError(
                f"{name} cannot be made: it is of {package}, which cannot be imported ({error}).",
                f"See what `python -c 'import {module}'` says.",
            ) from error
    return False


def _remedy(error: Exception, options: GymOptions, package: str) -> str:
    place = options.id.rpartition(":")[2]
    if isinstance(error, gymnasium.error.VersionNotFound):
        return "Give one of these versions."
    if isinstance(error, gymnasium.error.UnregisteredEnv) and ":" not in options.id:
        return (
            f"Correct the id; one that a package registers when it is imported is named with it: gym:PACKAGE:{place}."
        )
    if isinstance(error, gymnasium.error.DependencyNotInstalled | ImportError):
        newer = _newest(place)
        return "Install what it lacks." if newer is None else f"Take gym:{newer}, or install what this one lacks."
    if (known := gymnasium.registry.get(place)) is not None and known.entry_point is None:
        return "It is registered for many worlds at once alone, and a controller flies one: give it an entry_point."
    if not package or options.made:
        return "Correct the id, its options, or the world."
    if (dist := metadata.packages_distributions().get(package)) is None:
        return "Correct it there."
    return (
        f"{dist[0]} {metadata.version(dist[0])} fails: try versions of it, and of what it is made of, that go together."
    )


def _newest(place: str) -> str | None:
    """The newest version of a world, where it is made by other code."""
    registry, (bare, _, number) = gymnasium.registry, place.rpartition("-v")
    found = {one.version: one for one in registry.values() if one.id.rpartition("-v")[0] == bare and one.version}
    if not found or not number.isdigit() or (newest := max(found)) <= int(number):
        return None
    return None if found[newest].entry_point == registry[place].entry_point else str(found[newest].id)
