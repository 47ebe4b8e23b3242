"""Which vehicles touch: rectangles on the ground."""

from __future__ import annotations

import math
from typing import NamedTuple


class Box(NamedTuple):
    """A rectangle: its middle, its heading and half its length and width."""

    x: float
    y: float
    heading: float
    half_length: float
    half_width: float


def overlap(one: Box, other: Box) -> bool:
    """Whether two rectangles touch (separating axes)."""
    reach = one.half_length + one.half_width + other.half_length + other.half_width
    dx, dy = other.x - one.x, other.y - one.y
    if abs(dx) > reach or abs(dy) > reach:
        return False
    for first, second in ((one, other), (other, one)):
        cos, sin = math.cos(first.heading), math.sin(first.heading)
        turned = second.heading - first.heading
        along, across = abs(math.cos(turned)), abs(math.sin(turned))
        if abs(dx * cos + dy * sin) > first.half_length + second.half_length * along + second.half_width * across:
            return False
        if abs(dy * cos - dx * sin) > first.half_width + second.half_length * across + second.half_width * along:
            return False
    return True


class Contacts:
    """Pairs of vehicles in touch; a collision is counted once, as a pair begins to touch."""

    def __init__(self) -> None:
        self.touching: set[tuple[int, int]] = set()

    def update(self, boxes: dict[int, Box]) -> list[tuple[int, int]]:
        """The pairs that have begun to touch since the last call."""
        items = sorted(boxes.items(), key=lambda item: item[1].x)
        touching = set()
        for index, (number, box) in enumerate(items):
            right = box.x + 2 * (box.half_length + box.half_width) + 8.0
            for other_number, other in items[index + 1 :]:
                if other.x > right:
                    break
                if abs(other.y - box.y) < 12.0 and overlap(box, other):
                    touching.add((min(number, other_number), max(number, other_number)))
        begun = sorted(touching - self.touching)
        self.touching = touching
        return begun
