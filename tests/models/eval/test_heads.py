"""Which heads of a call are right."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.metrics.judge import heads, judge
from rtcontrol.models.schema.tool_schema import MAX_HEADS

NAMES = [f"p{n}" for n in range(8)]
ARGUMENTS = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3), max_size=8)


def tool(name: str, parameters: list[str]) -> dict[str, Any]:
    properties = {p: {"type": "integer"} for p in parameters}
    return {"name": name, "parameters": {"type": "object", "properties": properties, "required": []}}


def row(call: Call | None, *allowed: Call, parameters: list[str] = NAMES) -> DataRow:
    tools = (tool("go", parameters), tool("stop", []))
    return DataRow("1", "1", "test", "go on", "", tools, (), call, allowed)


@given(ARGUMENTS, ARGUMENTS)
def test_all_heads_are_right_where_the_call_is_right_by_the_strict_rule(right: Any, given: Any) -> None:
    one, call = row(Call("go", right)), Call("go", given)
    found = heads(call, one, {})
    assert len(found) == 1 + MAX_HEADS  # eight parameters share six heads
    assert all(head.right for head in found) == judge([call], one, "strict").right


def test_each_argument_has_its_head_and_its_confidence() -> None:
    one = row(Call("go", {"p0": 1, "p1": 2}), parameters=["p0", "p1", "p2"])
    found = heads(Call("go", {"p0": 1, "p1": 3}), one, {"function": 0.9, "arg2": 0.4})
    assert [(head.name, head.right, head.confidence) for head in found] == [
        ("function", True, 0.9),
        ("arg1", True, None),
        ("arg2", False, 0.4),
        ("arg3", True, None),
    ]


def test_of_another_function_the_function_alone_is_judged() -> None:
    for call in (Call("stop", {}), None):
        assert [(h.name, h.right) for h in heads(call, row(Call("go", {"p0": 1})), {})] == [("function", False)]


def test_no_call_is_right_where_none_is_due() -> None:
    assert [h.right for h in heads(None, row(None), {})] == [True]
    assert [h.right for h in heads(Call("stop", {}), row(None), {})] == [False]


def test_of_several_right_calls_the_closest_counts() -> None:
    one = row(Call("go", {"p0": 1, "p1": 1}), Call("go", {"p0": 2, "p1": 2}), parameters=["p0", "p1"])
    assert all(head.right for head in heads(Call("go", {"p0": 2, "p1": 2}), one, {}))
