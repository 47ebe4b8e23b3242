"""Which calls and heads are right, by each rule, and what is said of many: shares, intervals, times, calibration."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import Check, DataRow
from rtcontrol.models.errors import UserError
from rtcontrol.models.metrics.bfcl import CheckerAnswer, check
from rtcontrol.models.metrics.intervals import BINS, calibration, mcnemar, paired, share, wilson
from rtcontrol.models.metrics.judge import RULES, alike, answers, by_answer, heads, judge
from rtcontrol.models.metrics.predictions import Prediction, Predictions, read
from rtcontrol.models.metrics.published import rescore
from rtcontrol.models.metrics.scores import OFFICIAL, curve, judged, latency, scores
from rtcontrol.models.schema.tool_schema import MAX_HEADS
from tests.helpers.disks import files_of

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


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("New  York ", "new york"), ("3", 3), (3.0000001, 3), (True, 1), ([1, "A "], ["1", "a"]), (None, ""),
        ("[1]", [1]),
    ],
)  # fmt: skip
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


# Which heads of a call are right.


HEADS_NAMES = [f"p{n}" for n in range(8)]
ARGUMENTS = st.dictionaries(st.sampled_from(HEADS_NAMES), st.integers(0, 3), max_size=8)


def tool(name: str, parameters: list[str]) -> dict[str, Any]:
    properties = {p: {"type": "integer"} for p in parameters}
    return {"name": name, "parameters": {"type": "object", "properties": properties, "required": []}}


def heads_row(call: Call | None, *allowed: Call, parameters: list[str] = HEADS_NAMES) -> DataRow:
    tools = (tool("go", parameters), tool("stop", []))
    return DataRow("1", "1", "test", "go on", "", tools, (), call, allowed)


@given(ARGUMENTS, ARGUMENTS)
def test_all_heads_are_right_where_the_call_is_right_by_the_strict_rule(right: Any, given: Any) -> None:
    one, call = heads_row(Call("go", right)), Call("go", given)
    found = heads(call, one, {})
    assert len(found) == 1 + MAX_HEADS  # eight parameters share six heads
    assert all(head.right for head in found) == judge([call], one, "strict").right


def test_each_argument_has_its_head_and_its_confidence() -> None:
    one = heads_row(Call("go", {"p0": 1, "p1": 2}), parameters=["p0", "p1", "p2"])
    found = heads(Call("go", {"p0": 1, "p1": 3}), one, {"function": 0.9, "arg2": 0.4})
    assert [(head.name, head.right, head.confidence) for head in found] == [
        ("function", True, 0.9),
        ("arg1", True, None),
        ("arg2", False, 0.4),
        ("arg3", True, None),
    ]


def test_of_another_function_the_function_alone_is_judged() -> None:
    for call in (Call("stop", {}), None):
        assert [(h.name, h.right) for h in heads(call, heads_row(Call("go", {"p0": 1})), {})] == [("function", False)]


def test_no_call_is_right_where_none_is_due() -> None:
    assert [h.right for h in heads(None, heads_row(None), {})] == [True]
    assert [h.right for h in heads(Call("stop", {}), heads_row(None), {})] == [False]


def test_of_several_right_calls_the_closest_counts() -> None:
    one = heads_row(Call("go", {"p0": 1, "p1": 1}), Call("go", {"p0": 2, "p1": 2}), parameters=["p0", "p1"])
    assert all(head.right for head in heads(Call("go", {"p0": 2, "p1": 2}), one, {}))


# Figures of answers: samples, sources, heads, failures.


GO = {"name": "go", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}}
STOP = {"name": "stop", "parameters": {"type": "object", "properties": {}}}


def scores_row(name: str, call: Call | None, sample: str = "", source: str = "one") -> DataRow:
    return DataRow(name, sample or name, source, "go on", "", (GO, STOP), (), call)


def scores_answers(*given: Prediction) -> dict[str, Prediction]:
    return {one.id: one for one in given}


def go(x: Any) -> Call:
    return Call("go", {"x": x})


def test_a_sample_of_several_calls_is_right_where_all_of_them_are() -> None:
    rows = [
        scores_row("a/1", go(1), "a"),
        scores_row("a/2", go(2), "a"),
        scores_row("b/1", go(1), "b"),
        scores_row("b/2", go(2), "b"),
    ]
    given = [Prediction("a/1", (go(9),)), Prediction("a/2", (go(2),)), Prediction("b/1", (go(1),))]
    found = scores(judged(rows, scores_answers(*given, Prediction("b/2", (go(2),))), {}), "exact")
    assert (found["overall"]["right"], found["overall"]["count"]) == (1, 2)
    assert (found["function"]["right"], found["rows"]["right"], found["rows"]["count"]) == (2, 3, 4)
    assert found["samples"] == {"a": [0, 1], "b": [1, 1]}


def test_an_answer_that_failed_is_wrong_even_where_no_call_is_due() -> None:
    rows = [scores_row("1", None), scores_row("2", None), scores_row("3", go(1))]
    given = scores_answers(
        Prediction("1", ()), Prediction("2", (), error="timeout"), Prediction("3", (), error="timeout")
    )
    found = scores(judged(rows, given, {}), "loose")
    assert found["overall"]["right"] == 1 and found["errors"] == {"timeout": 2}
    assert {name: one["right"] for name, one in found["by_rule"].items()} == dict.fromkeys(RULES, 1)


def test_each_source_and_each_head_is_counted_apart() -> None:
    rows = [
        scores_row("1", go(1), source="one"),
        scores_row("2", go(2), source="two"),
        scores_row("3", go(3), source="two"),
    ]
    sure = {"function": 0.9, "arg1": 0.5}
    given = [Prediction("1", (go(1),), sure), Prediction("2", (go(9),), sure), Prediction("3", (Call("stop"),), sure)]
    found = scores(judged(rows, scores_answers(*given), {}), "strict")
    by = {name: (one["overall"]["right"], one["function"]["right"]) for name, one in found["by_source"].items()}
    assert by == {"one": (1, 1), "two": (0, 1)}
    heads = {name: (one["right"], one["count"]) for name, one in found["by_head"].items()}
    assert heads == {"function": (2, 3), "arg1": (1, 2)}
    assert found["by_head"]["arg1"]["confidence"] == 0.5
    assert found["wrong"] == {"argument x": 1, "function stop": 1}
    assert found["calibration"]["call"]["decisions"] == 3


def test_the_official_verdict_is_that_of_the_checker() -> None:
    rows = [scores_row("1", go(1)), scores_row("2", go(2))]
    given = scores_answers(Prediction("1", (go(1),)), Prediction("2", (go(2),)))
    checked = {"1": CheckerAnswer(True), "2": CheckerAnswer(False, "Invalid value for 3", kind="value_error:string")}
    found = scores(judged(rows, given, checked), OFFICIAL)
    assert found["overall"]["right"] == 1 and found["by_rule"]["exact"]["right"] == 2
    assert found["function"]["right"] == 2 and found["wrong"] == {"value_error:string": 1}
    assert OFFICIAL not in scores(judged(rows, given, {"1": CheckerAnswer(True)}), "exact")["by_rule"]


def test_many_reasons_are_told_by_their_kind() -> None:
    rows = [scores_row(str(n), go(n)) for n in range(20)]
    few = scores_answers(*(Prediction(str(n), (Call(f"f{n % 2}"),)) for n in range(20)))
    many = scores_answers(*(Prediction(str(n), (Call(f"f{n}x"),)) for n in range(20)))
    assert scores(judged(rows, few, {}), "exact")["wrong"] == {"function f…": 20}
    assert scores(judged(rows, many, {}), "exact")["wrong"] == {"function f…x": 20}
    named = scores_answers(*(Prediction(str(n), (Call("ab"[n % 2] + "cdefghijklmnopq"[n % 15]),)) for n in range(20)))
    assert scores(judged(rows, named, {}), "exact")["wrong"] == {"function …": 20}


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans()), min_size=1, max_size=12))
def test_sources_add_up_to_the_whole(drawn: list[tuple[int, int, bool]]) -> None:
    rows = [scores_row(str(n), go(right), source=str(other)) for n, (right, _, other) in enumerate(drawn)]
    given = scores_answers(*(Prediction(str(n), (go(x),), {"function": 0.5}, 1.0) for n, (_, x, _) in enumerate(drawn)))
    found = scores(judged(rows, given, {}), "exact")
    assert sum(one["overall"]["right"] for one in found["by_source"].values()) == found["overall"]["right"]
    assert sum(found["wrong"].values()) == found["overall"]["count"] - found["overall"]["right"]
    assert found["latency_ms"]["count"] == len(rows)


# Others' predictions, judged again.


def lines(path: Path, *values: Any) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def question(name: str, parameters: int = 1, history: list[str] | None = None) -> dict[str, Any]:
    message = {"role": "user", "content": "go", "history": history or []}
    properties = {f"p{n}": {"type": "string"} for n in range(parameters)}
    functions = [{"name": "go", "parameters": {"properties": properties}}]
    return {"id": name, "question": [[message]], "function": functions}


def published_go(**arguments: Any) -> list[dict[str, Any]]:
    return [{"name": "go", "arguments": arguments}]


@pytest.fixture
def published_answers(tmp_path: Path) -> Path:
    gold = {"go": {"to": ["Paris", "paris, france"], "speed": [3, ""]}}
    return lines(tmp_path / "answers.jsonl", *({"id": str(n), "ground_truth": [gold]} for n in range(4)))


def test_both_rules_and_what_toldsay_of_themselves(tmp_path: Path, published_answers: Path) -> None:
    given = lines(
        tmp_path / "given.jsonl",
        {"id": "0", "result": published_go(to="PARIS"), "overall_correct": True},
        {"id": "1", "result": published_go(to="paris", speed="3", more=1), "overall_correct": True},
        {"id": "2", "result": [{"go": {"to": "Rome"}}], "overall_correct": True},
        {"id": "3", "result": [], "overall_correct": False},
    )
    found = rescore(given, published_answers)
    assert (found["strict"]["right"], found["loose"]["right"], found["strict"]["count"]) == (1, 2, 4)
    assert found["function"]["right"] == 3 and found["agreement"] == {"loose": [3, 4]}
    assert found["left_out"] == {} and found["answers_without_prediction"] == 0


def test_what_is_left_out_is_counted_with_its_reason(tmp_path: Path, published_answers: Path) -> None:
    given = lines(
        tmp_path / "given.jsonl",
        {"id": "0", "result": published_go(to="paris")},
        {"id": "1", "result": published_go(to="paris")},
        {"id": "2", "excluded": "missing_ground_truth"},
        {"id": "9", "result": published_go(to="paris")},
    )
    asked = lines(tmp_path / "asked.jsonl", question("0", 7), question("1", 6))
    found = rescore(given, published_answers, asked)
    assert found["strict"]["right"] == found["strict"]["count"] == 1
    assert found["left_out"] == {
        "a tool with more than 6 parameters": 1,
        "missing_ground_truth": 1,
        "no answer of that id": 1,
    }
    assert found["answers_without_prediction"] == 1


def test_an_answer_that_is_no_json_is_told_by_its_line_and_left_out(tmp_path: Path, published_answers: Path) -> None:
    whole, broken = published_answers.read_text(), '{"id": "x", "ground_truth": [{"go": {"to": [0.5, 1/6]}}]}\n'
    published_answers.write_text(broken + whole)
    told = (
        {"id": "0", "prediction": published_go(to="paris"), "strict_correct": True},
        {"id": "x", "excluded": "no answer"},
    )
    found = rescore(lines(tmp_path / "given.jsonl", *told), published_answers)
    assert (found["strict"]["right"], found["strict"]["count"], found["unreadable_answers"]) == (1, 1, [1])
    assert found["left_out"] == {"no answer of that id that can be read": 1}
    published_answers.write_text(broken)
    with pytest.raises(UserError, match=r"answers.jsonl:1.*no JSON"):
        rescore(tmp_path / "given.jsonl", published_answers)


def test_an_answer_may_be_one_call_that_stands_in_no_list(tmp_path: Path) -> None:
    published_answers = lines(tmp_path / "answers.jsonl", {"id": "0", "ground_truth": {"go": {"to": "Paris"}}})
    given = lines(tmp_path / "given.jsonl", {"id": "0", "result": published_go(to="paris"), "overall_correct": True})
    assert rescore(given, published_answers)["agreement"] == {"loose": [1, 1]}


def test_of_several_calls_the_strict_rule_takes_the_one_that_is_due(tmp_path: Path) -> None:
    several = [{"go": {"to": ["a"]}}, {"go": {"to": ["b"]}}]
    published_answers = lines(
        tmp_path / "answers.jsonl", *({"id": name, "ground_truth": several} for name in ("first", "last"))
    )
    given = lines(
        tmp_path / "g.jsonl",
        {"id": "first", "result": published_go(to="a")},
        {"id": "last", "result": published_go(to="a")},
    )
    with pytest.raises(UserError, match=r"g.jsonl:1.*2 calls.*questions"):
        rescore(given, published_answers)
    asked = lines(tmp_path / "asked.jsonl", question("first"), question("last", history=["go(to=a)"]))
    found = rescore(given, published_answers, asked)
    assert (found["strict"]["right"], found["loose"]["right"]) == (1, 2)


@pytest.mark.parametrize(
    "line", [3, {"result": []}, {"id": "0"}, {"id": "0", "result": [3]}, {"id": "0", "result": [{"go": "{"}]}]
)
def test_a_line_that_is_no_prediction_is_named(tmp_path: Path, published_answers: Path, line: Any) -> None:
    given = lines(tmp_path / "given.jsonl", {"id": "1", "result": []}, line)
    with pytest.raises(UserError, match=r"given.jsonl:2"):
        rescore(given, published_answers)


def test_an_id_that_comes_twice_and_answers_that_are_none_are_named(tmp_path: Path, published_answers: Path) -> None:
    given = lines(tmp_path / "given.jsonl", {"id": "1", "result": []}, {"id": "1", "result": []})
    with pytest.raises(UserError, match=r"given.jsonl:2.*before"):
        rescore(given, published_answers)
    with pytest.raises(UserError, match=r"bad.jsonl:1"):
        rescore(given, lines(tmp_path / "bad.jsonl", {"id": "1"}))


# A file of answers: gone on with, never mixed with those of something else.


HEAD = {"model": {"name": "a", "weights": "1"}, "data": {"digest": "x", "rows": 2}}
ONE = Prediction("1", (Call("go", {"x": 1}),), {"function": 0.5}, 1.5, passes=2, tokens=30)
TWO = Prediction("2", (), error="no legal call")


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "new" / "answers.jsonl"
    with Predictions(HEAD, path) as first:
        first.add(ONE)
    with Predictions(HEAD, path) as second:
        assert second.found == {"1": ONE}
        second.add(TWO)
    assert read(path) == (HEAD, {"1": ONE, "2": TWO})


def test_an_answer_that_was_not_written_whole_comes_again(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with Predictions(HEAD, path) as first:
        first.add(ONE)
        first.add(TWO)
    path.write_bytes(path.read_bytes()[:-9])
    with Predictions(HEAD, path) as second:
        assert second.found == {"1": ONE}
        second.add(TWO)
    assert read(path)[1] == {"1": ONE, "2": TWO}


@pytest.mark.parametrize(
    ("part", "key", "named"),
    [("model", "weights", "another model: weights"), ("data", "digest", "another data: digest")],
)
def test_answers_of_another_model_or_data_are_refused_and_stay(tmp_path: Path, part: str, key: str, named: str) -> None:
    path = tmp_path / "answers.jsonl"
    with Predictions(HEAD, path) as first:
        first.add(ONE)
    before = path.read_bytes()[:-3]
    path.write_bytes(before)
    other = {**HEAD, part: {**HEAD[part], key: "other"}}  # type: ignore[dict-item]
    with pytest.raises(UserError, match=named):
        Predictions(other, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", ["", "{}\n", '{"rtcontrol_predictions": 9}\n', "\x00", '{"a": 1'])
def test_a_file_that_holds_something_else_is_refused_and_stays(tmp_path: Path, text: str) -> None:
    path = tmp_path / "precious.jsonl"
    path.write_text(text)
    if text:
        with pytest.raises(UserError, match="holds no answers"):
            Predictions(HEAD, path)
    with pytest.raises(UserError, match="holds no answers"):
        read(path)
    assert path.read_text() == text


@pytest.mark.parametrize("line", ['{"id": "3"}', "[]", '{"id": "3", "calls": [3]}', '{"id": "1", "calls": []}'])
def test_a_line_that_is_no_answer_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "answers.jsonl"
    with Predictions(HEAD, path) as first:
        first.add(ONE)
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(UserError, match=rf"{path.name}:3"):
        read(path)


def test_what_was_answered_before_the_disk_was_full_is_kept(tmp_path: Path) -> None:
    path, kept = tmp_path / "answers.jsonl", 0
    with files_of(100_000), Predictions(HEAD, path) as found, pytest.raises(UserError, match="Make room"):
        for n in range(100):
            found.add(Prediction(str(n), (), error="x" * 5000))
            kept += 1
    with Predictions(HEAD, path) as again:
        assert len(again.found) == kept > 10
        again.add(ONE)


# Intervals of shares, and of differences of the same samples.


PAIRS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60)


def test_wilson_interval() -> None:
    assert wilson(19, 20) == pytest.approx((0.764, 0.991), abs=0.001)
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(20, 20)[1] == pytest.approx(1.0)
    assert share(1, 4)["share"] == 0.25 and share(0, 0)["share"] is None


@given(PAIRS)
def test_a_difference_lies_in_its_interval_and_turns_with_the_runs(pairs: list[tuple[bool, bool]]) -> None:
    a, b = zip(*pairs, strict=True)
    found, turned = paired(a, b), paired(b, a)
    assert found.both + found.only_a + found.only_b + found.neither == len(pairs)
    assert found.difference == pytest.approx((sum(b) - sum(a)) / len(pairs))
    assert found.low - 1e-9 <= found.difference <= found.high + 1e-9
    assert turned.difference == -found.difference and turned.p == found.p
    assert 0 < found.p <= 1


def test_the_interval_is_that_of_pairs_and_not_of_two_shares() -> None:
    a = [True] * 50 + [False] * 50
    b = [True] * 60 + [False] * 40
    found = paired(a, b)
    assert 0.03 < found.low < found.difference < found.high < 0.17  # unpaired it would reach below nothing
    assert found.p == pytest.approx(2 / 2**10)


def test_mcnemars_exact_test() -> None:
    assert mcnemar(0, 0) == 1 and mcnemar(5, 5) == 1
    assert mcnemar(1, 9) == mcnemar(9, 1) == pytest.approx(22 / 1024)


# Percentiles of times that were measured.


TIMES = st.lists(st.floats(0.01, 1e4), min_size=1, max_size=200)


@given(TIMES)
def test_percentiles_are_times_that_were_measured_and_grow(ms: list[float]) -> None:
    found = latency(ms)
    shown = [found[name] for name in ("p50", "p90", "p95", "p99", "max")]
    assert shown == sorted(shown) and {round(one, 3) for one in ms} >= set(shown)
    assert min(ms) - 1e-3 <= found["mean"] <= max(ms) + 1e-3 and found["count"] == len(ms)
    assert sum(one <= found["p90"] + 5e-4 for one in ms) >= 0.9 * len(ms)
    assert [one for _, one in curve(ms)] == sorted(one for _, one in curve(ms))


def test_nothing_measured_is_none() -> None:
    assert latency([]) == {"count": 0, **dict.fromkeys(("p50", "p90", "p95", "p99", "mean", "max", "hz"))}
    assert curve([]) == []


# Calibration.


DECIDED = st.lists(st.tuples(st.floats(0.01, 1), st.integers(0, 1)), min_size=1, max_size=200)


@given(DECIDED)
def test_bins_are_of_equal_mass_and_their_error_is_a_share(decided: list[tuple[float, int]]) -> None:
    found = calibration(*zip(*decided, strict=True))
    counts = [count for count, _, _ in found["bins"]]
    assert sum(counts) == found["decisions"] == len(decided)
    assert len(counts) == min(BINS, len(decided)) and max(counts) - min(counts) <= 1
    means = [mean for _, mean, _ in found["bins"]]
    assert means == sorted(means) and 0 <= found["ece"] <= 1


def test_who_is_as_often_right_as_sure_has_no_error_and_who_is_always_wrong_has_all() -> None:
    sure = [i / 100 for i in range(10, 100, 6)]
    honest = [(c, int(k < round(100 * c))) for c in sure for k in range(100)]
    assert calibration(*zip(*honest, strict=True))["ece"] == pytest.approx(0, abs=1e-4)
    assert calibration([0.9] * 30, [0] * 30)["ece"] == pytest.approx(0.9)
    # One bin of all would call this right.
    assert calibration([0.25] * 32 + [1.0] * 28, [1] * 32 + [0] * 28)["ece"] == pytest.approx(52 / 60, abs=1e-4)


# BFCL's own checker: what it takes, what it refuses, and what is left where it is not there.


PROPERTIES = {
    "speed": {"type": "float"},
    "count": {"type": "integer"},
    "on": {"type": "boolean"},
    "way": {"type": "string"},
    "path": {"type": "array", "items": {"type": "float"}},
}


@pytest.fixture(scope="module")
def official() -> None:
    if not os.environ.get("RTCONTROL_BFCL"):
        pytest.skip("RTCONTROL_BFCL names no interpreter that has bfcl-eval, nor the package's folder")


def case(name: str, allowed: list[Any], value: Any, category: str = "simple") -> tuple[Check, list[Call]]:
    parameters = {"type": "dict", "properties": {name: PROPERTIES[name]}, "required": [name]}
    function = {"name": "a.go", "description": "", "parameters": parameters}
    return Check(category, (function,), [{"a.go": {name: allowed}}]), [Call("a.go", {name: value})]


TAKEN = [("speed", [3.0], 3), ("way", ["New York"], "new-york, "), ("path", [[1.0, 2.0]], [1.0, 2.0])]
REFUSED = [
    ("count", [3], 3.0), ("count", [3], "3"), ("on", [True], "true"), ("way", ["94103"], 94103), ("way", ["go"], None),
    ("way", ["go"], '"go"x'), ("path", [[1.5, 2.5]], [1, 2]),
]  # fmt: skip


def test_the_checker_takes_and_refuses_as_it_does(official: None) -> None:
    found = check([case(*one) for one in (*TAKEN, *REFUSED)])
    assert [one.valid for one in found] == [True] * len(TAKEN) + [False] * len(REFUSED)
    assert all(one.error for one in found if not one.valid)


def test_a_wrong_function_none_and_one_too_many_are_refused(official: None) -> None:
    asked, calls = case("count", [3], 3)
    given = [[Call("b.go", {"count": 3})], [], calls * 2, calls]
    assert [one.valid for one in check([(asked, one) for one in given])] == [False, False, False, True]


def test_what_the_checker_chokes_on_counts_as_wrong(official: None) -> None:
    asked, calls = case("count", [3], 3)
    unknown = Check("simple", ({**asked.functions[0], "parameters": {"properties": {}}},), asked.answer)
    first, second = check([(unknown, calls), (asked, calls)])
    assert (first.valid, first.raised) == (False, True) and second.valid


def test_no_package_is_told_with_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no folder `data` of BFCL.*pip install --no-deps bfcl-eval"):
        check([case("count", [3], 3)], tmp_path)


def test_a_folder_that_only_looks_like_the_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "bfcl_eval" / "data").mkdir(parents=True)
    with pytest.raises(UserError, match=r"does not run \(ModuleNotFoundError"):
        check([case("count", [3], 3)], tmp_path)
