"""How a Gymnasium world is made by its id, and why one cannot be."""

from __future__ import annotations

import importlib
import linecache
import os
import re
import sys
import traceback
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium

from rtcontrol.envs.gym_options import GymOptions
from rtcontrol.envs.thread import half_made, shut
from rtcontrol.models.errors import UserError

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
