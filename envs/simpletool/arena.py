"""Neon arena: the model has each of the ships against a person; asked for each as soon as it has answered, 20 ms apart
at least. A move is a jump of 28 pixels and a drift that dies away; a shot flies along a row or a column."""

from __future__ import annotations

import math
import random

from rtcontrol.envs.simpletool.game import BrowserGame, PageRequest, direction_tool, numbers, whole
from rtcontrol.models.call import Call

WIDTH, HEIGHT, EDGE, COOLING = 900, 600, 20, 35  # pixels, and frames between two shots
DIRECTIONS = ("up", "down", "left", "right")
TOOLS = tuple(
    direction_tool(name, told, DIRECTIONS) for name, told in (("move", "Move spaceship"), ("fire", "Fire bullet"))
)
START = (80.0, 300.0)  # where the player begins, and stays until a key is pressed
HIT = 14  # pixels; a shot that passes within 16 hits
SOON = 6  # frames; it takes its aim before the gun has cooled


def page_request(
    x: float, y: float, player: tuple[float, float], cooling: int, history: tuple[str, ...]
) -> PageRequest:
    """What the page sends of a ship's state."""
    dx, dy = player[0] - x, player[1] - y
    distance = whole(math.hypot(dx, dy))
    across, along = "right" if dx > 0 else "left", "down" if dy > 0 else "up"
    mainly = across if abs(dx) > abs(dy) else along
    row, column = abs(dy) < 35, abs(dx) < 35
    sides = {"left": x < 60, "right": x > WIDTH - 60, "top": y < 60, "bottom": y > HEIGHT - 60}
    wall = next((side for side, near in sides.items() if near), "no")
    if cooling > 0:
        hint = f"Cooling. MOVE {mainly}."
    elif distance >= 400:
        hint = f"MOVE {mainly} to approach (dist={distance})."
    elif row:
        hint = f"FIRE {across}! Aligned horizontally."
    elif column:
        hint = f"FIRE {along}! Aligned vertically."
    else:
        hint = f"MOVE {mainly} to align."
    lines = (
        f"pos={whole(x)},{whole(y)}",
        f"player={whole(player[0])},{whole(player[1])}",
        f"dist={distance}",
        f"align_h={str(row).lower()}",
        f"align_v={str(column).lower()}",
        f"cd={cooling}",
        f"wall={wall}",
    )
    query = f"Arena {WIDTH}x{HEIGHT}. {hint} Call move(dir) or fire(dir). dir:up/down/left/right"
    return PageRequest(query, lines, history[-6:])


def state(rng: random.Random) -> tuple[float, float, tuple[float, float], int, tuple[str, ...]]:
    """What `asked` takes, anywhere; mostly with ship and player near one row or column."""

    def place(middle: float, size: int) -> float:
        return min(max(rng.gauss(middle, 30), EDGE), size - EDGE)

    player = START if rng.random() < 0.35 else (rng.uniform(EDGE, WIDTH - EDGE), rng.uniform(EDGE, HEIGHT - EDGE))
    x, y = rng.uniform(EDGE, WIDTH - EDGE), rng.uniform(EDGE, HEIGHT - EDGE)
    near = rng.random()
    if near < 0.5:
        y = place(player[1], HEIGHT)
    elif near < 0.75:
        x = place(player[0], WIDTH)
    cooling = 0 if rng.random() < 0.4 else rng.randint(1, COOLING)
    past = [f"{rng.choice(('move', 'move', 'fire'))}({rng.choice(DIRECTIONS)})" for _ in range(6)]
    return x, y, player, cooling, tuple(past[: rng.choice((0, 1, 2, 3, 4, 5, 6, 6, 6, 6, 6, 6))])


def rule(observation: str) -> Call:
    """Get onto the player's row or column, whichever is nearer, and shoot; while the gun cools, leave it for the
    middle, or stand still, which is to fire in vain."""
    seen = numbers(observation)
    (x, y), (px, py) = seen["pos"], seen["player"]
    dx, dy = px - x, py - y
    across, along = "right" if dx > 0 else "left", "down" if dy > 0 else "up"
    row = abs(dy) <= abs(dx)  # whether the player's row is nearer than its column
    if seen["cd"][0] > SOON:
        if f"align_{'h' if row else 'v'}=true" in observation:
            middle = ("up" if y > HEIGHT / 2 else "down") if row else ("left" if x > WIDTH / 2 else "right")
            return Call("move", {"direction": middle})
        return Call("fire", {"direction": across if row else along})
    if (abs(dy) if row else abs(dx)) <= HIT:
        return Call("fire", {"direction": across if row else along})
    return Call("move", {"direction": along if row else across})


GAME = BrowserGame("arena", "neon_arena/neon_arena.html", TOOLS, lambda rng: page_request(*state(rng)), rule)
