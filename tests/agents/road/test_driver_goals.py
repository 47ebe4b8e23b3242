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


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("go 50 km/h", RoadGoal("speed", 50)),
        ("slow down to 30", RoadGoal("speed", 30)),
        ("do not go faster than 60", RoadGoal("speed", 60)),
        ("Drive at 48, please.", RoadGoal("speed", 50)),
        ("brake to 20", RoadGoal("speed", 20)),
        ("drive at fifty", RoadGoal("speed", 50)),
        ("take the left lane", RoadGoal("lane", "left")),
        ("move over to the right lane", RoadGoal("lane", "right")),
        ("move over to the left", RoadGoal("lane", "left")),
        ("leave the right lane and take the middle one", RoadGoal("lane", "middle")),
        ("take the left lane, not the right one", RoadGoal("lane", "left")),
        ("take the left lane at the next junction", RoadGoal("lane", "left")),
        ("take the left or the right lane", None),
        ("follow the car in front at 15 metres", RoadGoal("follow", 15)),
        ("follow at 15m", RoadGoal("follow", 15)),
        ("keep 30 m behind the car ahead", RoadGoal("follow", 30)),
        ("follow the car ahead", RoadGoal("follow", 20)),
        ("do not overtake, stay behind the car ahead", RoadGoal("follow", 20)),
        ("turn right at the next crossing", RoadGoal("turn", "right")),
        ("turn left right now", RoadGoal("turn", "left")),
        ("turn right now", RoadGoal("turn", "right")),
        ("go straight on at the junction", RoadGoal("turn", "straight")),
        ("turn left at the junction ahead", RoadGoal("turn", "left")),
        ("turn left or right at the junction", None),
        ("go to the left at the crossing", RoadGoal("turn", "left")),
        ("take the next left", RoadGoal("turn", "left")),
        ("take the second left", None),
        ("overtake slow cars", RoadGoal("overtake")),
        ("do not stay behind slow cars", RoadGoal("overtake")),
        ("pass the car ahead on the left", RoadGoal("overtake")),
        ("stop overtaking", None),
        ("let the others pass", None),
        ("stop", RoadGoal("stop")),
        ("halt now", RoadGoal("stop")),
        ("stop right now", RoadGoal("stop")),
        ("stop in your lane", RoadGoal("stop")),
        ("stop at the next junction", RoadGoal("stop")),
        ("do not drive on", RoadGoal("stop")),
        ("do not stop, drive on", RoadGoal("drive")),
        ("you do not have to stop", None),
        ("pull over to the right", RoadGoal("stop")),
        ("follow the road", RoadGoal("drive")),
        ("go at the limit", RoadGoal("drive")),
        ("make tea", None),
        ("50", None),
    ],
)
def test_plain_instructions_are_recognised(text: str, goal: RoadGoal | None) -> None:
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
