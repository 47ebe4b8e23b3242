"""The observation texts of the lander's and the paddle's agents, and their safe calls."""

from __future__ import annotations

from typing import Any

import pytest

from rtcontrol.agents.lander import tools as lander
from rtcontrol.agents.paddle import tools as paddle

FALL = {"x": -0.123, "y": 0.7, "vx": 0.03, "vy": -0.2, "angle": 0.04, "spin": -0.02, "left_leg": 0.0, "right_leg": 1.0}
BALL = {"ball_x": 50.0, "ball_y": 30.2, "ball_vx": 45.0, "ball_vy": -12.4, "own_y": 30.0, "other_y": 28.6}
WILD_FALL = {**FALL, "spin": -9.7, "angle": 6.1, "x": -0.001}
WILD_BALL = {**BALL, "ball_x": 1e9, "ball_vy": -0.2, "own_y": -90.0, "ball_y": 90.0}


@pytest.mark.parametrize(
    ("of", "state", "text"),
    [
        (lander, FALL, "x -12 y 70 vx 3 vy -20 angle 4 spin -2 legs 0 1"),
        (lander, WILD_FALL, "x 0 y 70 vx 3 vy -20 angle 200 spin -200 legs 0 1"),
        (paddle, BALL, "x 100 y 60 vx 45 vy -12 own 60 ball 0 other -3"),
        (paddle, WILD_BALL, "x 200 y 180 vx 45 vy 0 own -180 ball 200 other 200"),
    ],
)
def test_a_state_reads_in_whole_units_clamped_and_without_a_negative_zero_and_back(
    of: Any, state: dict[str, float], text: str
) -> None:
    assert of.observe(state) == text
    assert of.observe(of.read_back(text)) == text


@pytest.mark.parametrize(
    ("agent", "safe", "instruction"),
    [
        (lander.agent, "engines(main=0, side=0)", "land on the pad"),
        (paddle.agent, "move(velocity=0)", "return every ball"),
    ],
)
def test_the_safe_call_does_nothing(agent: Any, safe: str, instruction: str) -> None:
    assert agent.fallback.safe_call.text() == safe
    assert (agent.instruction, agent.history) == (instruction, 0)
