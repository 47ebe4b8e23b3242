"""Goals of one's own: said in many ways, read back, and refused where they cannot be told apart."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.agents import Goal, Goals
from rtcontrol.models.errors import UserError

YARD = Goals(
    {
        "go to the {thing}": [
            "{lead} drive to the {thing}", "head for the {thing}", "find {thing}", "the {thing}", "{thing}!",
        ],
        "turn to {angle} degrees": ["face {angle}"],
        "stop": ["halt", "Stay where you are."],
    },
    {"thing": ["red box", "box"], "angle": range(0, 360, 15)},
    {"lead": ["please", "now", ""]},
)  # fmt: skip


@given(st.randoms(use_true_random=False))
def test_whatever_is_said_for_a_goal_is_read_as_it(rng: random.Random) -> None:
    goal = YARD.sample(rng)
    for said in (YARD.sentence(rng, goal), *YARD.held_out(goal)):
        assert YARD.recognise(said) == YARD.recognise(f"  {said.upper()}. ") == YARD.recognise(goal.text()) == goal


def test_a_number_between_those_listed_is_read_and_others_are_not() -> None:
    assert YARD.recognise("turn to 37.5 degrees") == Goal("turn to {angle} degrees", (("angle", 37.5),))
    between = YARD.recognise("turn to 37 degrees")
    assert between is not None and between.text() == "turn to 37 degrees"
    assert YARD.recognise("turn to 400 degrees") is None
    assert YARD.recognise("go to the green box") is None and YARD.recognise("") is None


def test_a_small_number_is_told_as_people_write_it() -> None:
    small = Goals({"leave {gap} open": ["a gap of {gap}"]}, {"gap": [0.00001, 0.5]})
    assert [goal.text() for goal in small] == ["leave 0.00001 open", "leave 0.5 open"]
    assert small.recognise("a gap of 0.00001") == next(iter(small))


def test_people_are_told_what_can_stand_for_a_placeholder() -> None:
    kinds = '"go to the {thing}", "turn to {angle} degrees", "stop"'
    assert YARD.known() == f"{kinds} (thing: red box, box; angle: 0 to 345)"
    assert YARD.known(2).startswith('"go to the {thing}", "turn to {angle} degrees" and 1 more (')
    assert Goals(["stop"]).known() == '"stop"'


def test_every_fifth_way_is_kept_from_training() -> None:
    goal = Goal("go to the {thing}", (("thing", "box"),))
    assert YARD.held_out(goal) == ("box!",)
    trained = {YARD.sentence(random.Random(i), goal) for i in range(200)}
    assert "box!" not in trained and {"go to the box", "drive to the box", "please drive to the box"} <= trained
    assert YARD.held_out(Goal("stop")) == ()


def test_no_way_is_held_out_that_a_trained_one_says_with_some_of_its_words() -> None:
    ways = ["drive to the {thing}", "{lead} find the {thing}", "reach {thing}", "to {thing}", "Find the  {thing}!"]
    told = Goals(
        {"go to the {thing}": [*ways, *ways[:1] * 4, "the {thing}, {lead}"]},
        YARD.placeholders,
        {"lead": ["please", ""]},
    )
    assert told.held_out(Goal("go to the {thing}", (("thing", "box"),))) == ("the box, please",)


def test_goals_are_spread_over_kinds_and_values() -> None:
    assert len(list(YARD)) == 2 + 24 + 1
    some = YARD.spread(9)
    assert some == YARD.spread(9) and len(some) == len(set(some)) and {g.kind for g in some} == set(YARD.ways)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"goals": {}}, "there is no goal"),
        ({"goals": "stop"}, "goals is a str"),
        ({"goals": {"go to {x}": []}}, "nothing is listed for {x}"),
        ({"goals": {"go to {x}": ["go there"]}, "placeholders": {"x": ["a"]}}, "leaves {x}"),
        ({"goals": {"go": ["go to {x}"]}, "placeholders": {"x": ["a"]}}, "has a {x}"),
        ({"goals": {"go": ["move"], "come": ["move"]}}, '"move" asks for "come" and for "go"'),
        ({"goals": {"go": "move"}}, "no list of ways"),
        ({"goals": {"go": [3]}}, "said as 3"),
        ({"goals": {"go to {x}": []}, "placeholders": {"x": "abc"}}, "{x} is no list"),
        ({"goals": {"go to {x}": []}, "placeholders": {"x": [True]}}, "{x} lists True"),
        ({"goals": {"go to {x}": []}, "placeholders": {"x": ["a"]}, "words": {"x": ["b"]}}, "a placeholder and a word"),
    ],
)
def test_goals_that_cannot_be_learnt_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as raised:
        Goals(**given)
    assert says in raised.value.what and raised.value.remedy


def test_a_goal_that_is_wrong_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "goals.yaml"
    file.write_text("goals:\n  stop: []\n  go:\n    - move to {x}\n")
    with pytest.raises(UserError, match=r"goals\.yaml:4: .move to \{x\}."):
        Goals({"stop": [], "go": ["move to {x}"]}, source=str(file))


def test_what_is_kept_from_training_and_cannot_be_known_is_named() -> None:
    told = Goals(
        {
            "take {who} home": ["drive {who} home", "bring {who} home", "on with {who}", "{who} home", "{who} sleeps"],
            "wait": ["stop", "halt"],
            "honk": ["blow the horn", "make noise", "sound it", "beep", "make the horn sound"],
        },
        {"who": ["anna", "ben"]},
    )  # fmt: skip
    assert told.gaps() == (["wait"], [("{who} sleeps", "sleeps")])
    asked = {"wait": ["{ask} stop", "halt", "rest", "pause", "please halt schön"]}
    assert Goals(asked, words={"ask": ["please", "now"]}).gaps() == ([], [("please halt schön", "schön")])
    asked["wait"][-1] = "{odd} halt"
    assert Goals(asked, words={"ask": ["please"], "odd": ["kindly"]}).gaps()[1] == [("{odd} halt", "kindly")]


def test_an_undefined_slot_is_told_where_it_belongs() -> None:
    with pytest.raises(UserError, match=r"under words: ask: \[\.\.\.\]"):
        Goals({"wait": ["{ask} stop"]})
    with pytest.raises(UserError, match=r"under placeholders: who: \[\.\.\.\]"):
        Goals({"take {who} home": []})


def test_a_slot_that_is_spelt_otherwise_is_asked_for_by_the_listed_name() -> None:
    for goals in ({"go to {colour}": ["to {color}"]}, {"go to {color}": []}):
        with pytest.raises(UserError, match=r"Did you mean \{colour\}\? Else: list what"):
            Goals(goals, {"colour": ["red"]})


def test_words_that_no_trained_way_has_are_unknown_and_fillers_are_not() -> None:
    told = Goals({"go to the {colour} box": [], "wait": []}, {"colour": ["red", "blue"]})
    assert told.unknown("would you please go to the boxes that are blue") == ()
    assert told.unknown("both of the blue boxes") == ("both",)


def test_a_word_that_yaml_reads_as_false_is_named_with_its_line(tmp_path: Path) -> None:
    (file := tmp_path / "goals.yaml").write_text("goals:\n  take {who} home: []\nplaceholders:\n  'who' : [anna, no]\n")
    with pytest.raises(UserError, match=r"goals\.yaml:4: \{who\} lists False, no text and no number\..*in quotes"):
        Goals({"take {who} home": []}, {"who": ["anna", False]}, source=str(file))
