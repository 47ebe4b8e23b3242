"""What a test may ask about the stand-in: a JSON file that is written anew each second and at the end."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bridges.carla.standin.world import World


def state(world: World, clients: int) -> dict[str, Any]:
    """Its settings, who is alive, who was destroyed, and every collision since the start."""
    return {
        "what": "the CARLA stand-in, not CARLA",
        "frame": world.frame,
        "elapsed_s": round(world.elapsed_s, 4),
        "episode": world.episode,
        "clients": clients,
        "settings": asdict(world.settings),
        "alive": [world.told(one) | {"speed_kmh": round(one.body.speed * 3.6, 2)} for one in world.vehicles],
        "destroyed": world.gone,
        "collisions": world.collisions,
    }


def write(path: Path, found: dict[str, Any]) -> None:
    """Whole or not at all, so that a reader never sees half of it."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(found, indent=1))
    part.replace(path)
