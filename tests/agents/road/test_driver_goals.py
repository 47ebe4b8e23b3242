"""What the plain rule reads off instructions to a driver."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.agents.road.goals import KINDS, SPEEDS, VALUES, Goal, recognise

GOALS = [Goal(kind, value) for kind in KINDS for value in VALUES.get(kind, (None,))]


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.text())
def test_the_canonical_sentence_is_read_as_its_goal(goal: Goal) -> None:
    assert recognise(goal.text()) == goal
    assert recognise(goal.text().capitalize() + ".") == goal


@pytest.mark.parametrize(("kind", "value"), [("speed", 55), ("speed", None), ("lane", "straight"), ("stop", 0)])
def test_a_value_that_no_goal_of_the_kind_has_is_refused(kind: str, value: object) -> None:
    with pytest.raises(AssertionError, match="one of"):
        Goal(kind, value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("go 50 km/h", Goal("speed", 50)),
        ("slow down to 30", Goal("speed", 30)),
        ("do not go faster than 60", Goal("speed", 60)),
        ("Drive at 48, please.", Goal("speed", 50)),
        ("brake to 20", Goal("speed", 20)),
        ("drive at fifty", Goal("speed", 50)),
        ("take the left lane", Goal("lane", "left")),
        ("move over to the right lane", Goal("lane", "right")),
        ("move over to the left", Goal("lane", "left")),
        ("leave the right lane and take the middle one", Goal("lane", "middle")),
        ("take the left lane, not the right one", Goal("lane", "left")),
        ("take the left lane at the next junction", Goal("lane", "left")),
        ("take the left or the right lane", None),
        ("follow the car in front at 15 metres", Goal("follow", 15)),
        ("follow at 15m", Goal("follow", 15)),
        ("keep 30 m behind the car ahead", Goal("follow", 30)),
        ("follow the car ahead", Goal("follow", 20)),
        ("do not overtake, stay behind the car ahead", Goal("follow", 20)),
        ("turn right at the next crossing", Goal("turn", "right")),
        ("turn left right now", Goal("turn", "left")),
        ("turn right now", Goal("turn", "right")),
        ("go straight on at the junction", Goal("turn", "straight")),
        ("turn left at the junction ahead", Goal("turn", "left")),
        ("turn left or right at the junction", None),
        ("go to the left at the crossing", Goal("turn", "left")),
        ("take the next left", Goal("turn", "left")),
        ("take the second left", None),
        ("overtake slow cars", Goal("overtake")),
        ("do not stay behind slow cars", Goal("overtake")),
        ("pass the car ahead on the left", Goal("overtake")),
        ("stop overtaking", None),
        ("let the others pass", None),
        ("stop", Goal("stop")),
        ("halt now", Goal("stop")),
        ("stop right now", Goal("stop")),
        ("stop in your lane", Goal("stop")),
        ("stop at the next junction", Goal("stop")),
        ("do not drive on", Goal("stop")),
        ("do not stop, drive on", Goal("drive")),
        ("you do not have to stop", None),
        ("pull over to the right", Goal("stop")),
        ("follow the road", Goal("drive")),
        ("go at the limit", Goal("drive")),
        ("make tea", None),
        ("50", None),
    ],
)
def test_plain_instructions_are_recognised(text: str, goal: Goal | None) -> None:
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
    assert recognise(f"drive at {'9' * 5000}") == Goal("speed", max(SPEEDS))
