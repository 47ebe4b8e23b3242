"""Draw pictures of bundled worlds from recorded observations."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

# A function that draws an observation: (seed of the episode, observation) -> uint8 [height, width, 3].
Painter = Callable[[int, Mapping[str, Any]], np.ndarray]
FILE_SIGNATURES = (b"\x89PNG", b"\xff\xd8")  # the first bytes of PNG and JPEG files
MAX_PIXELS = 640  # maximum width and height of a picture of a user's world
SCALE = 6  # pixels per unit of the paddle's court
COURT, BALL, PERSON, MODEL = (24, 25, 22), (236, 232, 222), (134, 169, 255), (255, 127, 82)


def find_painter(name: str) -> Painter | None:
    """Return a function that draws observations of the world `name`, or None if this world has no painter."""
    return {"lander": _lander_painter, "paddle": lambda: _paint_court}.get(name, lambda: None)()


def _lander_painter() -> Painter:
    from rtcontrol.envs.lander.world import Lander

    world = Lander(pictures=True)
    painted_seed: list[int] = []

    def paint(seed: int, data: Mapping[str, Any]) -> np.ndarray:
        if painted_seed != [seed]:  # the shape of the ground depends on the seed
            world.reset(seed)
            painted_seed[:] = [seed]
        world.show(data)
        return world.picture()

    return paint


def _paint_court(seed: int, data: Mapping[str, Any]) -> np.ndarray:
    """Return a picture of the paddle game's court, seen from above."""
    from rtcontrol.envs.paddle.world import BALL_HALF, HEIGHT, PADDLE_HALF, WIDTH

    court = np.empty((round(HEIGHT * SCALE), round(WIDTH * SCALE), 3), dtype=np.uint8)
    court[:] = COURT

    def box(x: float, y: float, half_x: float, half_y: float, colour: tuple[int, int, int]) -> None:
        left, right = (max(0, round((x + half) * SCALE)) for half in (-half_x, half_x))
        top, bottom = (max(0, round((y + half) * SCALE)) for half in (-half_y, half_y))
        court[top:bottom, left:right] = colour

    box(3.0, data["other_y"], 1.0, PADDLE_HALF, PERSON)
    box(WIDTH - 3.0, data["own_y"], 1.0, PADDLE_HALF, MODEL)
    box(data["ball_x"], data["ball_y"], BALL_HALF, BALL_HALF, BALL)
    return court


def encode_picture(picture: Any) -> bytes:
    """Convert a world's picture to the bytes of an image file. The picture is an array (uint8, [height, width] or
    [height, width, 3 or 4]), a Pillow image, or the bytes of a PNG or JPEG file; other values raise ValueError.

    An array with more than MAX_PIXELS on a side is scaled down.
    """
    if isinstance(picture, bytes):
        if picture.startswith(FILE_SIGNATURES):
            return picture
        raise ValueError("it returned bytes that are not a PNG or JPEG file")
    array = np.asarray(picture)
    if array.ndim == 2:
        array = np.repeat(array[..., None], 3, axis=2)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (3, 4) or not array.size:
        shape = f"shape {array.shape}, type {array.dtype}"
        raise ValueError(f"it returned {type(picture).__name__} ({shape}), not uint8 [height, width, 3]")
    every = -(-max(array.shape[:2]) // MAX_PIXELS)
    return encode_png(array[::every, ::every, :3])


def encode_png(picture: np.ndarray) -> bytes:
    """Return the PNG file of a picture (uint8 [height, width, 3])."""
    height, width, _ = picture.shape
    rows = np.zeros((height, 1 + 3 * width), dtype=np.uint8)  # each row starts with the byte 0 (no filter)
    rows[:, 1:] = picture.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
