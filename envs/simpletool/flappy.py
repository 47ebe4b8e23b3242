"""Flappy bird: flap or wait, asked every third frame; the game stands still until the answer is there.

The page's own hints are no help: far from a pipe it says FLAP where the bird is above the gap (measured: none of 200
simulated games that follow them passes ten pipes). What it says of the state is right, and the rule reads nothing else.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from rtcontrol.envs.simpletool.game import BrowserGame, PageRequest, enum_tool, numbers, whole
from rtcontrol.models.call import Call

WIDTH, HEIGHT, BIRD = 400, 600, 15  # pixels; the bird's radius
GRAVITY, FLAP = 0.4, -7.0  # pixels a frame, and frame
GAPS = {"easy": 180, "normal": 150, "hard": 120}
TOLD = "flap=jump up ~50px, wait=fall by gravity ~3px/frame"
DESCRIPTION = "Flappy bird action. Flap to gain height, wait to fall by gravity."
TOOL = enum_tool("act", DESCRIPTION, "action", ("flap", "wait"), TOLD)


@dataclass(frozen=True)
class FlapLine:
    """For pipes further than `beyond`: frames of `speed` to look ahead, how much of the gap below its centre the line
    is, and how much it gives way towards the screen's middle."""

    beyond: float
    speed: float
    share: float
    middle: float


# Found by a random search over 300 simulated flights each, half easy and half normal.
LINES = (
    FlapLine(35, 0.87, 0.46, 0.01),
    FlapLine(15, -0.30, 0.00, 0.0),
    FlapLine(-50, 0.54, 0.07, 0.05),
    FlapLine(-math.inf, 0.42, 0.20, 0.38),
)


def page_request(y: float, vy: float, pipe_x: float, gap_top: float, gap: float) -> PageRequest:
    """What the page sends of a state; `pipe_x` is how far the next pipe's left edge is."""
    centre = gap_top + gap / 2
    off = centre - y
    if y < 30:
        hint = "DANGER: Too high! WAIT to fall."
    elif y > HEIGHT - 50:
        hint = "DANGER: Too low! FLAP now!"
    elif pipe_x < 100:
        if y > centre + 20:
            hint = "Approaching pipe, below center. FLAP to rise!"
        elif y < centre - 30:
            hint = "Approaching pipe, above center. WAIT to fall."
        else:
            hint = f"Aligned with gap. {'FLAP to slow descent.' if vy > 2 else 'WAIT to maintain.'}"
    elif off > 40:
        hint = f"Far from pipe. Below gap center by {whole(off)}px. FLAP!"
    elif off < -40:
        hint = "Far from pipe. Above gap center. WAIT."
    else:
        hint = f"Good position. {'FLAP to control speed.' if vy > 3 else 'WAIT.'}"
    lines = (
        f"bird_y={whole(y)}",
        f"bird_vy={vy:.1f}",
        f"pipe_x={whole(pipe_x)}",
        f"gap_top={whole(gap_top)}",
        f"gap_bottom={whole(gap_top + gap)}",
        f"gap_center={whole(centre)}",
        f"bird_to_center={whole(off)}",
        f"predicted_y={whole(y + vy * 5 + 0.5 * GRAVITY * 25)}",
        "ceiling=0",
        f"floor={HEIGHT}",
    )
    return PageRequest(f"Flappy bird. Screen {WIDTH}x{HEIGHT}. {hint} Call act(flap) or act(wait).", lines)


def state(rng: random.Random) -> tuple[float, float, float, float, float]:
    """What `asked` takes, anywhere; mostly with the bird near the gap, a few decisions after its last flap."""
    gap = rng.choices(list(GAPS.values()), (3, 5, 2))[0]
    top = rng.uniform(80, HEIGHT - gap - 80)
    near = rng.gauss(top + gap / 2, 60)
    y = min(max(near, 1), HEIGHT - 1) if rng.random() < 0.7 else rng.uniform(BIRD, HEIGHT - BIRD)
    frames = rng.choice((rng.randrange(3, 24), rng.randrange(1, 55)))
    vy = FLAP + GRAVITY * frames if rng.random() < 0.85 else rng.randrange(1, 130) / 10
    pipe_x = rng.uniform(-60, 95) if rng.random() < 0.85 else rng.uniform(95, 370)
    return y, vy, pipe_x, top, gap


def rule(observation: str) -> Call:
    """Flap where the bird, by its speed, is below a line through the gap. Which line depends on how far the pipe is:
    behind it the next one may be anywhere, so the bird leaves a high gap low, and a low one high."""
    seen = {key: values[0] for key, values in numbers(observation).items()}
    line = next((line for line in LINES if seen["pipe_x"] > line.beyond), LINES[-1])
    low = line.speed * seen["bird_vy"] - seen["bird_to_center"] + line.middle * (seen["gap_center"] - HEIGHT / 2)
    flap = low > line.share * (seen["gap_bottom"] - seen["gap_top"])
    return Call("act", {"action": "flap" if flap else "wait"})


GAME = BrowserGame("flappy", "flappy_bird.html", (TOOL,), lambda rng: page_request(*state(rng)), rule)
