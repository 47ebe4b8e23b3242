"""What the plain rule reads off instructions to a driver."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.agents.road.goals import KINDS, SPEEDS, VALUES, RoadGoal, recognise

GOALS = [RoadGoal(kind, value) for kind in KINDS for value in VALUES.get(kind, (None,))]


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.text())
def test_the_canonical_sentence_is_read_as_its_goal(goal: RoadGoal) -> None:
    assert recognise(goal.text()) == goal
    assert recognise(goal.text().capitalize() + ".") == goal


@pytest.mark.parametrize(("kind", "value"), [("speed", 55), ("speed", None), ("lane", "straight"), ("stop", 0)])
def test_a_value_that_no_goal_of_the_kind_has_is_refused(kind: str, value: object) -> None:
    with pytest.raises(AssertionError, match="one of"):
        RoadGoal(kind, value)  # type: ignore[arg-type]


READ: dict[RoadGoal | None, str] = {
    RoadGoal("speed", 20): "brake to 20",
    RoadGoal("speed", 30): "slow down to 30",
    RoadGoal("speed", 50): "go 50 km/h; Drive at 48, please.; drive at fifty",
    RoadGoal("speed", 60): "do not go faster than 60",
    RoadGoal("lane", "left"): "take the left lane; move over to the left; take the left lane, not the right one; "
    "take the left lane at the next junction",
    RoadGoal("lane", "middle"): "leave the right lane and take the middle one",
    RoadGoal("lane", "right"): "move over to the right lane",
    RoadGoal("follow", 15): "follow the car in front at 15 metres; follow at 15m",
    RoadGoal("follow", 20): "follow the car ahead; do not overtake, stay behind the car ahead",
    RoadGoal("follow", 30): "keep 30 m behind the car ahead",
    RoadGoal("turn", "left"): "turn left right now; turn left at the junction ahead; go to the left at the crossing; "
    "take the next left",
    RoadGoal("turn", "right"): "turn right at the next crossing; turn right now",
    RoadGoal("turn", "straight"): "go straight on at the junction",
    RoadGoal("overtake"): "overtake slow cars; do not stay behind slow cars; pass the car ahead on the left",
    RoadGoal("stop"): "stop; halt now; stop right now; stop in your lane; stop at the next junction; do not drive on; "
    "pull over to the right",
    RoadGoal("drive"): "do not stop, drive on; follow the road; go at the limit",
    None: "take the left or the right lane; turn left or right at the junction; take the second left; stop overtaking; "
    "let the others pass; you do not have to stop; make tea; 50",
}


@pytest.mark.parametrize(("goal", "text"), [(goal, text) for goal in READ for text in READ[goal].split("; ")])
def test_plain_instructions_are_recognised(goal: RoadGoal | None, text: str) -> None:
    assert recognise(text) == goal


@given(st.integers(0, 1000))
def test_any_speed_is_read_as_the_nearest_that_there_is(number: int) -> None:
    goal = recognise(f"drive at {number} km/h")
    assert goal is not None
    assert goal.kind == "speed"
    assert isinstance(goal.value, int)
    assert all(abs(goal.value - number) <= abs(speed - number) for speed in SPEEDS)


@given(st.text())
def test_any_text_is_read_or_left(text: str) -> None:
    assert recognise(text) in (*GOALS, None)


def test_a_number_of_thousands_of_digits_is_no_error() -> None:
    assert recognise(f"drive at {'9' * 5000}") == RoadGoal("speed", max(SPEEDS))
