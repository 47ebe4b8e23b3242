"""Undoing what a bridge did to a server, in its own process or, when it died, in another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import carla

from rtcontrol.bridges.carla import estate
from rtcontrol.bridges.carla.connect import connect
from rtcontrol.bridges.carla.errors import BridgeError
from rtcontrol.bridges.carla.estate import Left
from rtcontrol.bridges.carla.options import WorldOptions

FIELDS = (
    "synchronous_mode",
    "no_rendering_mode",
    "fixed_delta_seconds",
    "substepping",
    "max_substep_delta_time",
    "max_substeps",
    "max_culling_distance",
    "deterministic_ragdolls",
    "tile_stream_distance",
    "actor_active_distance",
    "spectator_as_ego",
)


def settings_of(world: Any) -> dict[str, Any]:
    """The server's settings as plain values."""
    found = world.get_settings()
    return {name: getattr(found, name) for name in FIELDS}


def apply_settings(world: Any, values: Mapping[str, Any]) -> None:
    """Raises RuntimeError where the server does not answer."""
    settings = world.get_settings()
    for name, value in values.items():
        # Of an unset step carla gives None, and takes it.
        setattr(settings, name, value)
    world.apply_settings(settings)


def vehicles(world: Any) -> dict[int, str]:
    """The role names of the vehicles there, by id."""
    return {actor.id: actor.attributes.get("role_name", "") for actor in world.get_actors().filter("vehicle.*")}


def undo(client: Any, world: Any, left: Left) -> list[str]:
    """Destroy what is ours, and put the settings back; gives what was done. Raises RuntimeError where the server does
    not answer: then the rest was tried all the same."""
    done: list[str] = []
    if left.episode is not None and left.episode != world.id:
        if left.settings is not None and world.get_settings().synchronous_mode:
            apply_settings(world, left.settings)
        return ["the server has another world by now: no vehicle of ours is in it"]
    try:
        there = vehicles(world)
        ours = {i for i in left.actors if i in there}
        for role, before in left.spawning.items():
            ours |= {i for i, name in there.items() if name == role and i not in before}
        if ours:
            destroy(client, ours)
            done.append(f"{len(ours)} vehicle{'s' if len(ours) > 1 else ''} destroyed")
    finally:
        if left.settings is not None:
            apply_settings(world, left.settings)
            mode = "synchronous" if left.settings["synchronous_mode"] else "asynchronous"
            done.append(f"settings restored ({mode})")
    return done


def destroy(client: Any, actors: Iterable[int]) -> None:
    """Destroy actors by id; those that are gone already are none the less."""
    client.apply_batch_sync([carla.command.DestroyActor(i) for i in actors], False)


def clean(path: Path) -> list[str]:
    """Undo what the bridge of this file left, and remove the file; gives what was done. Raises BridgeError where the
    file is none or the server cannot be reached (the file is kept then)."""
    left = estate.read(path)
    client = connect(WorldOptions(host=left.host, port=left.port))
    try:
        done = [] if left.nothing else undo(client, client.get_world(), left)
    except RuntimeError as error:
        raise BridgeError(
            f"Not undone: the CARLA server at {left.host}:{left.port} broke off ({error}).",
            f"Restart it, or try again: python -m rtcontrol.bridges.carla --clean {path}",
        ) from None
    path.unlink(missing_ok=True)
    return done or ["nothing was left to undo"]
