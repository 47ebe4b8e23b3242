"""The observation text of the lander's agent."""

from __future__ import annotations

from rtcontrol.agents.lander.tools import agent, observe, read_back

STATE = {"x": -0.123, "y": 0.7, "vx": 0.03, "vy": -0.2, "angle": 0.04, "spin": -0.02, "left_leg": 0.0, "right_leg": 1.0}


def test_the_state_reads_in_hundredths() -> None:
    assert observe(STATE) == "x -12 y 70 vx 3 vy -20 angle 4 spin -2 legs 0 1"


def test_wild_values_are_clamped_and_zero_has_no_sign() -> None:
    assert observe({**STATE, "spin": -9.7, "angle": 6.1, "x": -0.001}).startswith(
        "x 0 y 70 vx 3 vy -20 angle 200 spin -200"
    )


def test_the_text_reads_back() -> None:
    text = observe(STATE)
    assert observe(read_back(text)) == text


def test_the_safe_call_is_engines_off() -> None:
    assert agent.fallback.safe_call.text() == "engines(main=0, side=0)"
    assert agent.instruction == "land on the pad"
    assert agent.history == 0
