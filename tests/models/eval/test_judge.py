"""What each rule takes for right."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import Check, DataRow
from rtcontrol.models.metrics.judge import RULES, alike, answers, argument_right, by_answer, judge

NAMES = st.sampled_from(["go", "stop", "a.b"])
PLAIN = st.one_of(st.text(max_size=8), st.integers(-99, 99), st.floats(-9, 9), st.booleans())
VALUES = st.one_of(PLAIN, st.lists(PLAIN, max_size=3)).filter(lambda v: v != "")
CALLS = st.builds(Call, NAMES, st.dictionaries(st.sampled_from("xyz"), VALUES, max_size=3))


def row(call: Call | None, *allowed: Call, check: Check | None = None) -> DataRow:
    return DataRow("1", "1", "test", "go on", "", (), (), call, allowed, check=check)


@given(CALLS, CALLS)
def test_a_rows_own_call_and_the_allowed_ones_are_right_by_every_rule(call: Call, other: Call) -> None:
    for rule in RULES:
        for one in (call, other):
            found = judge([one], row(call, other), rule)
            assert found.right and found.function and not found.why


@given(CALLS, CALLS)
def test_each_rule_is_as_hard_as_the_next_or_harder(right: Call, given: Call) -> None:
    found = [judge([given], row(right), rule) for rule in RULES]
    assert [one.right for one in found] == sorted(one.right for one in found)
    assert len({one.function for one in found}) == 1 and found[0].function == (right.name == given.name)
    assert all(one.function or not one.right for one in found)
    assert all(bool(one.why) != one.right for one in found)


@given(CALLS, VALUES)
def test_an_argument_more_is_wrong_but_by_the_loose_rule(call: Call, value: Any) -> None:
    more = Call(call.name, {**call.arguments, "more": value})
    assert [judge([more], row(call), rule).right for rule in RULES] == [False, False, True]


@given(CALLS.filter(lambda c: bool(c.arguments)))
def test_a_required_argument_less_is_wrong(call: Call) -> None:
    name = next(iter(call.arguments))
    less = Call(call.name, {k: v for k, v in call.arguments.items() if k != name})
    for rule in RULES:
        found = judge([less], row(call), rule)
        assert found.function and not found.right and name in found.why


@given(CALLS, CALLS)
def test_the_strict_rule_asks_for_one_call_and_the_loose_one_reads_the_first(call: Call, other: Call) -> None:
    assert [judge([call, other], row(call), rule).right for rule in RULES] == [False, False, True]
    assert not any(judge([], row(call), rule).right for rule in RULES)


@given(st.lists(CALLS, max_size=2))
def test_where_the_call_in_force_stays_no_call_is_right(calls: list[Call]) -> None:
    for rule in RULES:
        assert judge(calls, row(None), rule).right == (not calls)


@given(VALUES)
def test_a_value_is_like_itself(value: Any) -> None:
    assert alike(value, value) and argument_right(value, [value])


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("New  York ", "new york"),
        ("3", 3),
        (3.0000001, 3),
        (True, 1),
        ([1, "A "], ["1", "a"]),
        (None, ""),
        ("[1]", [1]),
    ],
)
def test_values_that_are_taken_for_the_same(a: Any, b: Any) -> None:
    assert alike(a, b) and alike(b, a)


@pytest.mark.parametrize(("a", "b"), [("done.", "done"), (3, 3.1), ([1], [1, 2]), ("nan", "na"), ("", "a"), ({}, [])])
def test_values_that_differ(a: Any, b: Any) -> None:
    assert not alike(a, b) and not alike(b, a)


def test_what_may_be_left_out_may() -> None:
    allowed = [{"go": {"speed": [3, ""], "way": ["left"]}}]
    assert by_answer([Call("go", {"way": "LEFT"})], allowed, "strict").right
    assert by_answer([Call("go", {"way": "left", "speed": "3"})], allowed, "strict").right
    assert not by_answer([Call("go", {"way": "left", "speed": 4})], allowed, "strict").right
    assert by_answer([Call("go", {"speed": 3})], allowed, "loose").why == "argument way"


def test_an_official_answer_comes_before_the_rows_own_call() -> None:
    one = row(Call("go", {"x": 1}), check=Check("simple", (), [{"go": {"x": [1, 2]}}]))
    assert answers(one) == [{"go": {"x": [1, 2]}}]
    assert judge([Call("go", {"x": 2})], one, "strict").right
    assert not judge([Call("go", {"x": 2})], one, "exact").right


def test_whole_and_other_numbers_are_not_exactly_the_same() -> None:
    assert not judge([Call("go", {"x": 1.0})], row(Call("go", {"x": 1})), "exact").right
