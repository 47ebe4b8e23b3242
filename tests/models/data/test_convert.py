"""Samples become rows or are counted with a reason, and types and values are read in the notations of the data sets."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.call import Call
from rtcontrol.models.data.convert import Purpose, convert_rows, rows_of_sample
from rtcontrol.models.data.row import Row
from rtcontrol.models.data.sample import DroppedSample, Sample, Tally, UnusableSample
from rtcontrol.models.data.types import convert_value, parse_annotation, parse_call, tool_definition
from rtcontrol.models.schema.tool_schema import MAX_HEADS, ToolSchema

STRING = {"type": "string"}
SPEED = {"type": "object", "properties": {"z": {"type": "number"}, "a": {"type": "integer"}}, "required": ["z"]}


def many(count: int, required: int = 0) -> dict[str, Any]:
    names = [f"p{n}" for n in range(count)]
    return tool_definition(
        "many", "", {"type": "object", "properties": dict.fromkeys(names, STRING), "required": names[:required]}
    )


def sample(call: Call, shown: dict[str, Any], name: str = "s") -> Sample:
    return Sample(name, "set", f"file:{name}", "go", "", (shown,), (call,))


def made(samples: list[Sample | DroppedSample | Row], purpose: Purpose = "train") -> tuple[list[Row], Tally]:
    tally = Tally()
    return list(convert_rows(samples, tally, purpose)), tally


def test_arguments_are_in_head_order_and_of_the_declared_type() -> None:
    (row,), _ = made([sample(Call("go", {"a": 3.0, "z": 2}), tool_definition("go", "", SPEED))])
    assert row.call is not None and row.call.text() == "go(z=2.0, a=3)"
    assert [p.name for p in row.tools[0].parameters] == ["z", "a"]


@given(st.integers(1, 12), st.integers(0, 12), st.data())
def test_tools_keep_at_most_six_heads_with_the_calls_arguments(count: int, required: int, data: st.DataObject) -> None:
    shown = many(count, min(required, count))
    used = data.draw(st.sets(st.sampled_from([f"p{n}" for n in range(count)])))
    call = Call("many", {name: name for name in {*used, *(f"p{n}" for n in range(min(required, count)))}})
    (row,), _ = made([sample(call, shown)])
    schema = row.tools[0]
    assert len(schema.slots()) <= MAX_HEADS and len(schema.parameters) == count
    assert row.call == call


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"z": 1.0, "b": 1}, "an unknown argument"),
        ({"a": 1}, "a missing required argument"),
        ({"z": "fast"}, "a value that its parameter does not allow"),
        ({"z": 1.0, "a": 1.5}, "a value that its parameter does not allow"),
        ({"z": 10**400}, "a value that its parameter does not allow"),
    ],
)
def test_forbidden_call_is_dropped_only_for_training(arguments: Any, reason: str) -> None:
    found = [sample(Call("go", arguments), tool_definition("go", "", SPEED))]
    taught, tally = made(found, purpose="train")
    assert not taught and tally.dropped == {("set", reason): 1}
    assert tally.places["set", reason][0].startswith("file:s")
    judged, tally = made(found, purpose="eval")
    assert len(judged) == 1 and tally.noted == {("set", reason): 1} and not tally.dropped


def test_optional_null_is_left_out_for_training() -> None:
    found = [sample(Call("go", {"z": 1.0, "a": None}), tool_definition("go", "", SPEED))]
    taught, tally = made(found, purpose="train")
    assert taught[0].call == Call("go", {"z": 1.0}) and not tally.noted
    assert made(found, purpose="eval")[0][0].call == Call("go", {"z": 1.0, "a": None})


def test_lone_surrogate_makes_a_sample_unusable() -> None:
    for call in (Call("go", {"\ud800": 1}), Call("go", {"z": ["\ud800"]})):
        with pytest.raises(UnusableSample, match="half a character"):
            sample(call, tool_definition("go", "", SPEED))
    found, tally = made([sample(Call("go", {"z": 1.0}), tool_definition("go", "\ud800", SPEED))], purpose="eval")
    assert not found and tally.dropped == {("set", "half a character (a lone surrogate)"): 1}


def test_rows_of_several_files_keep_samples_together() -> None:
    calls = (Call("go", {"z": 1.0}), Call("go", {"z": 2.0}))
    one = Sample("s", "set", "file:1", "go", "", (tool_definition("go", "", SPEED),), calls)
    assert [row.sample for row in made([one, one], purpose="eval")[0]] == ["s", "s", "s~2", "s~2"]
    first, _ = made([one], purpose="eval")
    both, tally = made([*first, *first], purpose="eval")
    assert [(row.id, row.sample) for row in both[2:]] == [("s/1~2", "s~2"), ("s/2~2", "s~2")]
    assert tally.samples["set"] == 2 and tally.rows["set"] == 4


# K parallel calls become K rows, and no row's history contains its own call.


calls = st.lists(st.integers(0, 3), min_size=1, max_size=6).map(lambda found: [Call("go", {"n": n}) for n in found])


def several(made: list[Call], name: str = "s") -> Sample:
    shown = tool_definition("go", "", {"properties": {"n": {"type": "integer"}}})
    return Sample(name, "set", "file:1", "go", "now", (shown,), tuple(made), ("before()",))


@given(calls)
def test_evaluation_history_is_a_prefix_of_calls(made: list[Call]) -> None:
    rows = rows_of_sample(several(made), "eval")
    assert [row.call for row in rows] == made
    for n, row in enumerate(rows):
        assert row.history == ("before()", *(call.text() for call in made[:n]))
    assert {row.sample for row in rows} == {"s"} and len({row.id for row in rows}) == len(made)


@given(calls, st.integers(0, 9))
def test_training_history_is_a_prefix_of_shuffled_calls(made: list[Call], seed: int) -> None:
    rows = rows_of_sample(several(made), "train", seed)
    order = [row.call for row in rows if row.call is not None]
    assert Counter(c.text() for c in order) == Counter(c.text() for c in made)
    for n, row in enumerate(rows):
        assert row.history[1:] == tuple(call.text() for call in order[:n])
    assert rows == rows_of_sample(several(made), "train", seed)


# Types in the notation of the data sets become JSON Schema.


@pytest.mark.parametrize(
    ("text", "schema", "optional"),
    [
        ("str", {"type": "string"}, False),
        ("int, optional", {"type": "integer"}, True),
        ("Optional[float]", {"type": "number"}, True),
        ("int | None", {"type": "integer"}, False),
        ("List[int]", {"type": "array", "items": {"type": "integer"}}, False),
        ("Dict[str, int]", {"type": "object", "additionalProperties": {"type": "integer"}}, False),
        ("Union[int, float]", {"anyOf": [{"type": "integer"}, {"type": "number"}]}, False),
        ("Literal['a', 'b']", {"enum": ["a", "b"]}, False),
    ],
)
def test_python_annotations_become_schemas(text: str, schema: dict[str, Any], optional: bool) -> None:
    assert parse_annotation(text) == (schema, optional)
    ToolSchema.from_openai(tool_definition("t", "", {"type": "object", "properties": {"p": schema}}))


@pytest.mark.parametrize("text", ["Callable[[float], float]", "np.ndarray", "List["])
def test_unknown_annotation_is_refused(text: str) -> None:
    with pytest.raises(UnusableSample, match="unknown type"):
        parse_annotation(text)


# Calls and values in the notation of the data sets.


values = st.recursive(
    st.booleans() | st.none() | st.integers(-(2**53), 2**53) | st.floats(-1e300, 1e300) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["a", "b", "c_d"]), values))
def test_call_in_python_source_is_parsed(arguments: dict[str, Any]) -> None:
    written = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    assert parse_call(f"shop.find({written})") == Call("shop.find", arguments)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("f(on=true, off=False, gone=null)", {"on": True, "off": False, "gone": None}),
        ("f(loc=Berkeley)", {"loc": "Berkeley"}),
        ("f(at=(1, 2))", {"at": [1, 2]}),
    ],
)
def test_call_with_bare_names_is_parsed(text: str, arguments: dict[str, Any]) -> None:
    assert parse_call(text).arguments == arguments


@pytest.mark.parametrize(
    "text",
    ["f(1)", "f(**k)", "f(", "f", "f(a=g(1))", "f(a=9**9**9)", "f(a=1e999)", "f(a={1})"],
)
def test_unreadable_call_is_refused(text: str) -> None:
    with pytest.raises(UnusableSample):
        parse_call(text)


@pytest.mark.parametrize(
    ("value", "schema", "read"),
    [
        ("3", {"type": "integer"}, 3),
        ("1e400", {"type": "number"}, "1e400"),
        ("True", {"type": "boolean"}, True),
        ("3", {"type": "string"}, "3"),
        ("Wi-Fi", {"type": "array", "items": {"type": "string"}}, ["Wi-Fi"]),
        ("['1', '2']", {"type": "array", "items": {"type": "integer"}}, [1, 2]),
        ("{'a': 1}", {"type": "object"}, {"a": 1}),
    ],
)
def test_string_is_converted_to_the_parameters_type(value: Any, schema: dict[str, Any], read: Any) -> None:
    assert convert_value(value, schema) == read
