"""The driver's observation text, its tools and its safe call."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rtcontrol.agents import InvalidCall
from rtcontrol.agents.road.tools import CLAMP, FREE_M, LIGHTS, WORDS, agent, observe, read_back
from rtcontrol.models.call import Call

NEIGHBOURS = ("ahead", "behind", "left_ahead", "left_behind", "right_ahead", "right_behind")
ALONE = {f"{name}_{unit}": None for name in NEIGHBOURS for unit in ("m", "kmh")}
STATE: dict[str, Any] = {
    "speed_kmh": 48.2,
    "limit_kmh": 60.0,
    "lane": 2,
    "lanes": 3,
    "shift": 0,
    **ALONE,
    "ahead_m": 35.4,
    "ahead_kmh": 42.0,
    "behind_m": 20.0,
    "behind_kmh": 50.3,
    "left_ahead_m": 12.0,
    "left_ahead_kmh": 53.0,
    "left_behind_m": 60.0,
    "left_behind_kmh": 38.0,
    "light": "green",
    "junction_m": 80.0,
    "turn": "straight",
}


@st.composite
def states(draw: st.DrawFn) -> dict[str, Any]:
    lanes = draw(st.integers(1, 4))
    state: dict[str, Any] = {
        "speed_kmh": draw(st.floats(-500, 500)),
        "limit_kmh": draw(st.floats(0, 500)),
        "lane": draw(st.integers(1, lanes)),
        "lanes": lanes,
        "shift": draw(st.sampled_from([-1, 0, 1])),
        "light": draw(st.sampled_from(LIGHTS)),
        "junction_m": draw(st.none() | st.floats(-10, 500)),
        "turn": draw(st.sampled_from(["left", "right", "straight"])),
    }
    for name in NEIGHBOURS:
        there = draw(st.booleans())
        state[f"{name}_m"] = draw(st.floats(-10, 500)) if there else None
        state[f"{name}_kmh"] = draw(st.floats(-500, 500)) if there else None
    return state


def test_the_state_reads_in_kilometres_an_hour_and_metres() -> None:
    assert observe(STATE) == (
        "speed 48 limit 60 lane 2 3 shift 0 ahead 35 -6 behind 20 2 l 12 5 60 -10 r 150 0 150 0 light green "
        "junction 80 way onward"
    )


def test_nobody_near_and_no_junction_read_as_free() -> None:
    text = observe({**STATE, **ALONE, "ahead_m": 400.0, "ahead_kmh": 10.0, "junction_m": None})
    assert "ahead 150 0 behind 150 0" in text
    assert "junction 150 " in text
    alone = {key: value for key, value in STATE.items() if key not in ALONE}
    assert observe(alone) == observe({**STATE, **ALONE})


@pytest.mark.parametrize(("lane", "lanes", "missing"), [(1, 2, "l"), (2, 2, "r"), (1, 1, "lr"), (2, 3, "")])
def test_a_lane_that_does_not_exist_reads_as_minus_one(lane: int, lanes: int, missing: str) -> None:
    text = observe({**STATE, "lane": lane, "lanes": lanes})
    for side in "lr":
        assert (f" {side} -1 0 -1 0" in text) == (side in missing)


def test_wild_values_are_clamped() -> None:
    wild = {**STATE, "speed_kmh": 1e6, "limit_kmh": 1e6, "ahead_m": -3.0, "ahead_kmh": -1e6, "junction_m": -2.0}
    text = observe(wild)
    assert text.startswith(f"speed {CLAMP} limit {CLAMP} lane 2 3 shift 0 ahead 0 -{CLAMP} ")
    assert "junction 0 " in text


@example({**STATE, "left_ahead_m": 149.5, "left_ahead_kmh": 1.0})  # rounded, it is out of sight
@given(states())
def test_the_text_reads_back(state: dict[str, Any]) -> None:
    text = observe(state)
    seen = read_back(text)
    assert observe(seen) == text
    assert set(seen) == set(state)
    own = round(max(-CLAMP, min(CLAMP, state["speed_kmh"])))
    assert seen["speed_kmh"] == own
    assert (seen["lane"], seen["lanes"], seen["shift"]) == (state["lane"], state["lanes"], state["shift"])
    assert (seen["light"], seen["turn"]) == (state["light"], state["turn"])
    for name in NEIGHBOURS:
        gap, speed = state[f"{name}_m"], state[f"{name}_kmh"]
        exists = {"left": state["lane"] > 1, "right": state["lane"] < state["lanes"]}.get(name.split("_")[0], True)
        if not exists or gap is None or round(gap) >= FREE_M:
            assert seen[f"{name}_m"] is None
            assert seen[f"{name}_kmh"] is None
        else:
            assert seen[f"{name}_m"] == max(0, round(gap))
            faster = round(max(-CLAMP, min(CLAMP, speed))) - own
            assert seen[f"{name}_kmh"] == own + max(-CLAMP, min(CLAMP, faster))


@given(states())
def test_the_text_is_integers_and_known_words(state: dict[str, Any]) -> None:
    rest = {*WORDS, *LIGHTS}
    words = observe(state).split()
    assert len(words) == 31
    for word in words:
        assert word in rest or -CLAMP <= int(word) <= CLAMP
        assert word != "-0"


def test_the_tools_are_six_calls_of_at_most_one_listed_value() -> None:
    values = {schema.name: [p.domain.values for p in schema.parameters] for schema in agent.tools.schemas}  # type: ignore[union-attr]
    assert values == {
        "set_speed": [tuple(range(10, 121, 10))],
        "change_lane": [("left", "right")],
        "follow": [(5, 10, 15, 20, 30, 40, 50)],
        "brake": [(20, 40, 60, 80, 100)],
        "turn": [("left", "right", "straight")],
        "stop": [],
    }
    assert agent.tools.warnings() == []


@pytest.mark.parametrize(
    "call",
    [Call("set_speed", {"kmh": 55}), Call("turn", {"at_next_junction": "back"}), Call("brake", {}), Call("honk", {})],
)
def test_a_call_that_the_tools_do_not_list_is_refused(call: Call) -> None:
    with pytest.raises(InvalidCall):
        agent.tools.validate(call)


def test_the_safe_call_is_to_stop_after_half_a_second() -> None:
    assert agent.fallback.safe_call is not None
    assert agent.fallback.safe_call.text() == "stop()"
    assert agent.fallback.hold_ms == 500.0
    assert agent.tools.validate(agent.fallback.safe_call) == agent.fallback.safe_call
    assert (agent.instruction, agent.history) == ("drive on at the speed limit", 0)
