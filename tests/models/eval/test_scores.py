"""Figures of answers: samples, sources, heads, failures."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.metrics.bfcl import CheckerAnswer
from rtcontrol.models.metrics.judge import RULES
from rtcontrol.models.metrics.predictions import Prediction
from rtcontrol.models.metrics.scores import OFFICIAL, judged, scores

GO = {"name": "go", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}}
STOP = {"name": "stop", "parameters": {"type": "object", "properties": {}}}


def row(name: str, call: Call | None, sample: str = "", source: str = "one") -> DataRow:
    return DataRow(name, sample or name, source, "go on", "", (GO, STOP), (), call)


def answers(*given: Prediction) -> dict[str, Prediction]:
    return {one.id: one for one in given}


def go(x: Any) -> Call:
    return Call("go", {"x": x})


def test_a_sample_of_several_calls_is_right_where_all_of_them_are() -> None:
    rows = [row("a/1", go(1), "a"), row("a/2", go(2), "a"), row("b/1", go(1), "b"), row("b/2", go(2), "b")]
    given = [Prediction("a/1", (go(9),)), Prediction("a/2", (go(2),)), Prediction("b/1", (go(1),))]
    found = scores(judged(rows, answers(*given, Prediction("b/2", (go(2),))), {}), "exact")
    assert (found["overall"]["right"], found["overall"]["count"]) == (1, 2)
    assert (found["function"]["right"], found["rows"]["right"], found["rows"]["count"]) == (2, 3, 4)
    assert found["samples"] == {"a": [0, 1], "b": [1, 1]}


def test_an_answer_that_failed_is_wrong_even_where_no_call_is_due() -> None:
    rows = [row("1", None), row("2", None), row("3", go(1))]
    given = answers(Prediction("1", ()), Prediction("2", (), error="timeout"), Prediction("3", (), error="timeout"))
    found = scores(judged(rows, given, {}), "loose")
    assert found["overall"]["right"] == 1 and found["errors"] == {"timeout": 2}
    assert {name: one["right"] for name, one in found["by_rule"].items()} == dict.fromkeys(RULES, 1)


def test_each_source_and_each_head_is_counted_apart() -> None:
    rows = [row("1", go(1), source="one"), row("2", go(2), source="two"), row("3", go(3), source="two")]
    sure = {"function": 0.9, "arg1": 0.5}
    given = [Prediction("1", (go(1),), sure), Prediction("2", (go(9),), sure), Prediction("3", (Call("stop"),), sure)]
    found = scores(judged(rows, answers(*given), {}), "strict")
    by = {name: (one["overall"]["right"], one["function"]["right"]) for name, one in found["by_source"].items()}
    assert by == {"one": (1, 1), "two": (0, 1)}
    heads = {name: (one["right"], one["count"]) for name, one in found["by_head"].items()}
    assert heads == {"function": (2, 3), "arg1": (1, 2)}
    assert found["by_head"]["arg1"]["confidence"] == 0.5
    assert found["wrong"] == {"argument x": 1, "function stop": 1}
    assert found["calibration"]["call"]["decisions"] == 3


def test_the_official_verdict_is_that_of_the_checker() -> None:
    rows = [row("1", go(1)), row("2", go(2))]
    given = answers(Prediction("1", (go(1),)), Prediction("2", (go(2),)))
    checked = {"1": CheckerAnswer(True), "2": CheckerAnswer(False, "Invalid value for 3", kind="value_error:string")}
    found = scores(judged(rows, given, checked), OFFICIAL)
    assert found["overall"]["right"] == 1 and found["by_rule"]["exact"]["right"] == 2
    assert found["function"]["right"] == 2 and found["wrong"] == {"value_error:string": 1}
    assert OFFICIAL not in scores(judged(rows, given, {"1": CheckerAnswer(True)}), "exact")["by_rule"]


def test_many_reasons_are_told_by_their_kind() -> None:
    rows = [row(str(n), go(n)) for n in range(20)]
    few = answers(*(Prediction(str(n), (Call(f"f{n % 2}"),)) for n in range(20)))
    many = answers(*(Prediction(str(n), (Call(f"f{n}x"),)) for n in range(20)))
    assert scores(judged(rows, few, {}), "exact")["wrong"] == {"function f…": 20}
    assert scores(judged(rows, many, {}), "exact")["wrong"] == {"function f…x": 20}
    named = answers(*(Prediction(str(n), (Call("ab"[n % 2] + "cdefghijklmnopq"[n % 15]),)) for n in range(20)))
    assert scores(judged(rows, named, {}), "exact")["wrong"] == {"function …": 20}


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans()), min_size=1, max_size=12))
def test_sources_add_up_to_the_whole(drawn: list[tuple[int, int, bool]]) -> None:
    rows = [row(str(n), go(right), source=str(other)) for n, (right, _, other) in enumerate(drawn)]
    given = answers(*(Prediction(str(n), (go(x),), {"function": 0.5}, 1.0) for n, (_, x, _) in enumerate(drawn)))
    found = scores(judged(rows, given, {}), "exact")
    assert sum(one["overall"]["right"] for one in found["by_source"].values()) == found["overall"]["right"]
    assert sum(found["wrong"].values()) == found["overall"]["count"] - found["overall"]["right"]
    assert found["latency_ms"]["count"] == len(rows)
