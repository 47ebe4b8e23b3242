"""Which calls are right by each rule, and the statistics of many calls: shares, intervals, times."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import Row
from rtcontrol.models.evaluate.judge import RULES, Answer, judge, judge_rows, nearly_equal, scores
from rtcontrol.models.intervals import share_of_right, wilson_interval

NAMES = st.sampled_from(["go", "stop", "a.b"])
PLAIN = st.one_of(st.text(max_size=8), st.integers(-99, 99), st.floats(-9, 9), st.booleans())
VALUES = st.one_of(PLAIN, st.lists(PLAIN, max_size=3)).filter(lambda v: v != "")
CALLS = st.builds(Call, NAMES, st.dictionaries(st.sampled_from("xyz"), VALUES, max_size=3))


def row(call: Call | None, *allowed: Call) -> Row:
    return Row("go on", "", call, allowed=allowed)


@given(CALLS, CALLS)
def test_expected_and_allowed_calls_are_right(call: Call, other: Call) -> None:
    for rule in RULES:
        for one in (call, other):
            found = judge([one], row(call, other), rule)
            assert found.right and found.function and not found.reason


@given(CALLS, CALLS)
def test_each_rule_is_at_least_as_strict_as_the_next(right: Call, given: Call) -> None:
    found = [judge([given], row(right), rule) for rule in RULES]
    assert [one.right for one in found] == sorted(one.right for one in found)
    assert len({one.function for one in found}) == 1 and found[0].function == (right.name == given.name)
    assert all(one.function or not one.right for one in found)
    assert all(bool(one.reason) != one.right for one in found)


@given(st.lists(CALLS, max_size=2))
def test_no_call_is_right_when_none_is_expected(calls: list[Call]) -> None:
    for rule in RULES:
        assert judge(calls, row(None), rule).right == (not calls)


SAME = [("New  York ", "new york"), ("3", 3), (3.0000001, 3), (True, 1), ([1, "A "], ["1", "a"]), ("[1]", [1])]
DIFFERENT = [("done.", "done"), (3, 3.1), ([1], [1, 2]), ("nan", "na"), ("", "a"), ({}, [])]


@pytest.mark.parametrize(
    ("a", "b", "same"), [*((*pair, True) for pair in SAME), *((*pair, False) for pair in DIFFERENT)]
)
def test_loose_rule_compares_values_by_meaning(a: Any, b: Any, same: bool) -> None:
    assert nearly_equal(a, b) == nearly_equal(b, a) == same


# Statistics of answers by samples, sources and failures.


def scores_row(name: str, call: Call | None, sample: str = "") -> Row:
    return Row("go on", "", call, id=name, sample=sample or name, source="set")


def scores_answers(*given: Answer) -> dict[str, Answer]:
    return {one.id: one for one in given}


def go(x: Any) -> Call:
    return Call("go", {"x": x})


def test_sample_is_right_if_all_its_calls_are() -> None:
    rows = [scores_row(f"{sample}/{x}", go(x), sample) for sample in "ab" for x in (1, 2)]
    given = [Answer(row.id, (row.call,)) for row in rows[1:] if row.call]
    found = scores(judge_rows(rows, scores_answers(Answer("a/1", (go(9),)), *given), "exact"), "exact")
    assert (found["overall"]["right"], found["overall"]["count"]) == (1, 2)
    assert (found["function"]["right"], found["rows"]["right"], found["rows"]["count"]) == (2, 3, 4)
    assert found["samples"] == {"a": 0, "b": 1}


def test_failed_answer_is_wrong_even_without_expected_call() -> None:
    rows = [scores_row("1", None), scores_row("2", None), scores_row("3", go(1))]
    given = scores_answers(Answer("1", ()), Answer("2", (), error="timeout"), Answer("3", (), error="timeout"))
    found = scores(judge_rows(rows, given, "strict"), "strict")
    assert found["overall"]["right"] == 1 and found["wrong"] == {"timeout": 2}


# Confidence intervals of shares.


def test_wilson_interval_has_known_values() -> None:
    assert wilson_interval(19, 20) == pytest.approx((0.764, 0.991), abs=0.001)
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert wilson_interval(20, 20)[1] == pytest.approx(1.0)
    assert share_of_right(1, 4)["share"] == 0.25 and share_of_right(0, 0)["share"] is None
