"""Pictures of bundled worlds, drawn from what is observed: whoever looks on needs nothing of the running world."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rtcontrol.envs import registry

# Of the episode's seed and an observation: uint8 [height, width, 3].
Painter = Callable[[int, Mapping[str, Any]], np.ndarray]


def painter(name: str) -> Painter | None:
    """What draws the world of this name; None where it has no picture."""
    world = registry.known().get(name)
    return None if world is None else world.painter()


def png(picture: np.ndarray) -> bytes:
    """A picture (uint8 [height, width, 3]) as a PNG file."""
    height, width, _ = picture.shape
    rows = np.zeros((height, 1 + 3 * width), dtype=np.uint8)  # each begins with its filter: none
    rows[:, 1:] = picture.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
