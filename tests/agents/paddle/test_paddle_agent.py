"""The observation text of the paddle's agent."""

from __future__ import annotations

from rtcontrol.agents.paddle.tools import agent, observe, read_back

STATE = {"ball_x": 50.0, "ball_y": 30.2, "ball_vx": 45.0, "ball_vy": -12.4, "own_y": 30.0, "other_y": 28.6}


def test_places_read_in_half_units_and_speeds_in_units() -> None:
    assert observe(STATE) == "x 100 y 60 vx 45 vy -12 own 60 ball 0 other -3"


def test_wild_values_are_clamped_and_zero_has_no_sign() -> None:
    wild = {**STATE, "ball_x": 1e9, "ball_vy": -0.2, "own_y": -90.0, "ball_y": 90.0}
    assert observe(wild) == "x 200 y 180 vx 45 vy 0 own -180 ball 200 other 200"


def test_the_text_reads_back() -> None:
    text = observe(STATE)
    assert observe(read_back(text)) == text


def test_the_safe_call_stands_still() -> None:
    assert agent.fallback.safe_call is not None
    assert agent.fallback.safe_call.text() == "move(velocity=0)"
    assert agent.instruction == "return every ball"
    assert agent.history == 0
