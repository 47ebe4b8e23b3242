"""Pong: the model has the left paddle; asked every 100 ms, whatever it answered moves the paddle 6 pixels a frame until
the next answer."""

from __future__ import annotations

import random

from rtcontrol.envs.simpletool.game import BrowserGame, PageRequest, direction_tool, numbers, whole
from rtcontrol.models.call import Call

HEIGHT, MIDDLE, BALL, PADDLE = 400, 200, 8, 35  # pixels; the last two are half sizes
DIRECTIONS = ("up", "down", "stay")
TOLD = "up=decrease Y, down=increase Y, stay=hold position"
TOOL = direction_tool("move", "Move paddle vertically to intercept ball", DIRECTIONS, TOLD)
# In 100 ms the paddle goes 36 pixels at 60 frames a second, so that it may swing by half of that around what it wants.
NEAR, HOME = 14, 30


def page_request(ball_y: float, paddle_y: float, towards: bool, down: bool, history: tuple[str, ...]) -> PageRequest:
    """What the page sends of a state."""
    ball, paddle = whole(ball_y), whole(paddle_y)
    diff = ball - paddle
    if not towards:
        hint = "Ball moving away. Stay or prepare."
    elif diff > 20:
        hint = f"Ball is {diff}px BELOW paddle. Move DOWN."
    elif diff < -20:
        hint = f"Ball is {-diff}px ABOVE paddle. Move UP."
    else:
        hint = "Ball aligned. STAY."
    lines = (
        f"ball_y={ball}",
        f"paddle_y={paddle}",
        f"diff={diff}",
        f"ball_moving_{'towards' if towards else 'away'}",
        f"ball_vy={'down' if down else 'up'}",
    )
    return PageRequest(f"Pong AI. {hint} Choose: up/down/stay", lines, history[-6:])


def state(rng: random.Random) -> tuple[float, float, bool, bool, tuple[str, ...]]:
    """What `asked` takes, anywhere; mostly with ball and paddle near each other, as in play."""
    ball = rng.uniform(BALL, HEIGHT - BALL)
    near = min(max(rng.gauss(ball, 40), PADDLE), HEIGHT - PADDLE)
    paddle = near if rng.random() < 0.6 else rng.uniform(PADDLE, HEIGHT - PADDLE)
    past = [rng.choice(DIRECTIONS)]
    while len(past) < 6:
        past.append(past[-1] if rng.random() < 0.6 else rng.choice(DIRECTIONS))
    shown = past[: rng.choice((0, 1, 2, 3, 4, 5, 6, 6, 6, 6, 6, 6))]
    return ball, paddle, rng.random() < 0.5, rng.random() < 0.5, tuple(shown)


def rule(observation: str) -> Call:
    """Follow a ball that comes; wait for the next one in the middle."""
    seen = numbers(observation)
    towards = "ball_moving_towards" in observation
    off, near = (seen["diff"][0], NEAR) if towards else (MIDDLE - seen["paddle_y"][0], HOME)
    return Call("move", {"direction": "down" if off > near else "up" if off < -near else "stay"})


GAME = BrowserGame("pong", "pong_game.html", (TOOL,), lambda rng: page_request(*state(rng)), rule)
