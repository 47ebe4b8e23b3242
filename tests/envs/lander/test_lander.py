"""The lander's engines, observation and judge."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rtcontrol.agents.lander.goals import LanderGoal, LanderKind, recognise
from rtcontrol.envs.lander.world import Lander, LanderJudge, engine_action
from rtcontrol.models.errors import UserError

STEP_S = 0.02


@given(st.integers(-120, 120), st.integers(-120, 120))
@example(50, -50)
@example(0, 0)
def test_percentages_are_shares_of_thrust_that_fire_from_fifty_and_others_are_refused(main: int, side: int) -> None:
    if (main and not 50 <= main <= 100) or (side and not 50 <= abs(side) <= 100):
        with pytest.raises(ValueError, match=r"0 or 50\.\.100 %"):
            engine_action(main, side)
        return
    up, across = engine_action(main, side)
    assert up == pytest.approx(main / 50 - 1, abs=1e-5) and (up > 0) == (main > 0)
    assert across == pytest.approx(side / 100, abs=1e-5) and (abs(across) > 0.5) == (side != 0)


def flown(main: int, side: int, steps: int = 10) -> dict[str, float]:
    sim = Lander()
    sim.reset(5)
    before = sim.observe()
    sim.engines(main, side)
    for _ in range(steps):
        sim.step()
    after = sim.observe()
    return {key: after[key] - before[key] for key in before}


def test_half_thrust_fires_and_full_thrust_beats_gravity() -> None:
    assert flown(0, 0)["vy"] < flown(50, 0)["vy"] < 0 < flown(100, 0)["vy"]


def test_positive_side_pushes_and_tips_to_the_right() -> None:
    right, idle, left = flown(0, 100), flown(0, 0), flown(0, -100)
    assert right["vx"] > idle["vx"] > left["vx"]
    assert right["angle"] < idle["angle"] < left["angle"]
    assert flown(0, 50)["spin"] > right["spin"]


def test_the_leg_that_touches_first_is_the_low_one() -> None:
    sim = Lander()
    for tilt, leg in ((0.3, "right_leg"), (-0.3, "left_leg")):
        # A positive angle is counterclockwise: the left side is down.
        low = "left_leg" if tilt > 0 else "right_leg"
        sim.reset(3)
        sim.place(0.0, 0.15, 0.0, 0.0, tilt, 0.0)
        while not (sim.observe()["left_leg"] or sim.observe()["right_leg"]):
            sim.step()
        assert sim.observe()[low] == 1.0
        assert sim.observe()[leg] == 0.0


def test_place_puts_the_lander_where_it_was_asked() -> None:
    sim = Lander()
    sim.reset(1)
    sim.place(-0.4, 0.9, 0.2, -0.1, 0.2, -0.1)
    seen = sim.observe()
    assert seen["x"] == pytest.approx(-0.4, abs=0.01)
    assert seen["y"] == pytest.approx(0.9, abs=0.02)
    assert seen["vx"] == pytest.approx(0.2, abs=0.02)
    assert seen["angle"] == pytest.approx(0.2, abs=0.03)


def test_the_same_seed_and_calls_give_the_same_flight() -> None:
    assert flown(70, 50, 40) == flown(70, 50, 40)


def test_an_unpowered_lander_crashes_and_fails() -> None:
    sim = Lander("land")
    sim.reset(0)
    while sim.outcome() is None:
        sim.step()
    episode = sim.outcome()
    assert episode is not None
    assert (episode.success, episode.detail["end"]) == (False, "crash")
    assert episode.ret < -50
    assert 0.5 < episode.seconds < 5


def test_goal_option_outlives_the_instruction() -> None:
    sim = Lander("left")
    sim.instruct("land on the right side of the pad")
    assert sim.goal == LanderGoal("left")
    free = Lander()
    free.instruct("hover at 0.7")
    assert free.goal == LanderGoal("hover", 0.0, 0.7)


def test_goal_option_that_names_no_goal_is_a_user_error() -> None:
    with pytest.raises(UserError, match="hover at 0.7"):
        Lander("make tea")


def judged(goal: LanderGoal | None, x: float, y: float = 0.0, **last: bool) -> bool | None:
    judge = LanderJudge(goal, STEP_S)
    flags = {"contact": False, "crashed": False, "outside": False, "asleep": False}
    judge.step(x, y, **flags)
    judge.step(x, y, **{**flags, **last})
    assert judge.end is not None
    return judge.success(x)


IN_PLACE: list[tuple[LanderKind, float]] = [("land", 0.149), ("left", -0.05), ("right", 0.1)]
BESIDE: list[tuple[LanderKind, float]] = [("land", -0.151), ("right", -0.1)]
BESIDE += [("left", x) for x in (-0.03, -0.25, 0.1)]


@pytest.mark.parametrize(("kind", "x"), [*IN_PLACE, *BESIDE])
def test_at_rest_counts_only_in_its_place(kind: LanderKind, x: float) -> None:
    assert judged(LanderGoal(kind), x, contact=True, asleep=True) is ((kind, x) in IN_PLACE)


def test_a_crash_on_the_pad_is_no_landing() -> None:
    assert judged(LanderGoal("land"), 0.0, contact=True, crashed=True) is False
    assert judged(LanderGoal("land"), 0.0, contact=True, crashed=True, asleep=True) is False


def test_leaving_the_field_fails() -> None:
    assert judged(LanderGoal("hover", 0.0, 0.7), 1.0, 0.7, outside=True) is False


def test_without_a_goal_nothing_is_judged() -> None:
    assert judged(None, 0.0, contact=True, asleep=True) is None


def hovered(x: float, y: float, settle_y: float, seconds: float = 12.0) -> LanderJudge:
    judge = LanderJudge(LanderGoal("hover", 0.2, 0.7), STEP_S)
    for step in range(round(seconds / STEP_S)):
        late = step * STEP_S >= 4.0
        judge.step(x, y if late else settle_y, contact=False, crashed=False, outside=False, asleep=False)
    return judge


def test_hover_is_judged_from_second_four_to_twelve() -> None:
    judge = hovered(0.2, 0.75, settle_y=1.4)
    assert judge.end == "time"
    assert judge.success(0.2) is True
    assert judge.mean_distance == pytest.approx(0.05)
    assert hovered(0.2, 0.83, settle_y=0.7).success(0.2) is False
    assert hovered(0.2, 0.7, settle_y=0.7, seconds=11.9).end is None


def test_touching_down_ends_a_hover() -> None:
    assert judged(LanderGoal("hover", 0.0, 0.7), 0.0, 0.7, contact=True) is False


def test_a_hover_asked_for_on_the_ground_may_take_off() -> None:
    judge = LanderJudge(LanderGoal("land"), STEP_S)
    ground = {"contact": True, "crashed": False, "outside": False, "asleep": False}
    judge.step(0.0, 0.0, **ground)
    judge.change(LanderGoal("hover", 0.0, 0.7))
    judge.step(0.0, 0.0, **ground)
    assert judge.end is None
    judge.step(0.0, 0.1, **{**ground, "contact": False})
    judge.step(0.0, 0.0, **ground)
    assert judge.end == "touchdown"


def test_a_new_goal_restarts_the_hover_clock_and_the_same_one_does_not() -> None:
    judge = hovered(0.2, 0.7, settle_y=0.7, seconds=11.0)
    judge.change(LanderGoal("hover", 0.2, 0.7))
    assert judge.mean_distance < math.inf
    judge.change(LanderGoal("hover", 0.0, 0.9))
    assert judge.mean_distance == math.inf


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("land on the pad", LanderGoal("land")),
        ("Touch down, please", LanderGoal("land")),
        ("land a little left of the centre", LanderGoal("left")),
        ("land on the right not on the left", LanderGoal("right")),
        ("hover at 0.7", LanderGoal("hover", 0.0, 0.7)),
        ("do not land hover at 0.70 and x -0.2", LanderGoal("hover", -0.2, 0.7)),
        ("hover at x 0.3 and height 1", LanderGoal("hover", 0.3, 1.0)),
        ("hover at 0.1 0.8", LanderGoal("hover", 0.1, 0.8)),
        ("make tea", None),
        ("left or right", None),
        ("hover somewhere", None),
    ],
)
def test_plain_instructions_are_recognised(text: str, goal: LanderGoal | None) -> None:
    assert recognise(text) == goal
