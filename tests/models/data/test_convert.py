"""Samples become rows, or are counted with the reason why not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.call import Call
from rtcontrol.models.data.convert import CUT, REPEATED, ConvertOptions, rows
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.data.sample import Dropped, Sample, Unusable
from rtcontrol.models.data.stats import Tally
from rtcontrol.models.data.types import tool
from rtcontrol.models.schema.tool_schema import MAX_HEADS, ToolSchema

STRING = {"type": "string"}
SPEED = {"type": "object", "properties": {"z": {"type": "number"}, "a": {"type": "integer"}}, "required": ["z"]}


def many(count: int, required: int = 0) -> dict[str, Any]:
    names = [f"p{n}" for n in range(count)]
    return tool(
        "many", "", {"type": "object", "properties": dict.fromkeys(names, STRING), "required": names[:required]}
    )


def sample(call: Call, shown: dict[str, Any], name: str = "s") -> Sample:
    return Sample(name, "set", f"file:{name}", "go", "", (shown,), (call,))


def made(found: list[Sample | Dropped | DataRow], **options: Any) -> tuple[list[DataRow], Tally]:
    tally = Tally()
    return list(rows(found, ConvertOptions(**options), tally)), tally


def test_arguments_are_in_head_order_and_of_the_declared_type() -> None:
    (row,), _ = made([sample(Call("go", {"a": 3.0, "z": 2}), tool("go", "", SPEED))])
    assert row.call is not None and row.call.text() == "go(z=2.0, a=3)"
    assert list(row.tools[0]["function"]["parameters"]["properties"]) == ["z", "a"]


@given(st.integers(1, 12), st.integers(0, 12), st.data())
def test_tools_keep_at_most_six_heads_and_the_calls_what_they_carry(
    count: int, required: int, data: st.DataObject
) -> None:
    shown = many(count, min(required, count))
    used = data.draw(st.sets(st.sampled_from([f"p{n}" for n in range(count)])))
    call = Call("many", {name: name for name in {*used, *(f"p{n}" for n in range(min(required, count)))}})
    for overflow in ("merge", "cut", "drop"):
        found, tally = made([sample(call, shown)], overflow=overflow)
        if overflow == "drop" and count > MAX_HEADS:
            assert not found and tally.dropped[("set", "a tool with more than 6 parameters")] == 1
            continue
        (row,) = found
        assert row.call is not None
        schema = ToolSchema.from_openai(row.tools[0])
        kept = {p.name for p in schema.parameters}
        assert len(schema.slots()) <= MAX_HEADS and len(schema.parameters) == (
            min(count, 6) if overflow == "cut" else count
        )
        assert dict(row.call.arguments) == {k: v for k, v in call.arguments.items() if k in kept}
        assert tally.noted[("set", CUT)] == (set(call.arguments) - kept != set())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"z": 1.0, "b": 1}, "an argument that its tool does not have"),
        ({"a": 1}, "a required argument that is missing"),
        ({"z": "fast"}, "a value that its parameter does not take"),
        ({"z": None}, "a value that its parameter does not take"),
        ({"z": True}, "a value that its parameter does not take"),
        ({"z": 1.0, "a": 1.5}, "a value that its parameter does not take"),
    ],
)
def test_a_call_that_its_tool_forbids_teaches_nothing_and_is_judged_all_the_same(arguments: Any, reason: str) -> None:
    found = [sample(Call("go", arguments), tool("go", "", SPEED))]
    taught, tally = made(found, purpose="train")
    assert not taught and tally.dropped == {("set", reason): 1}
    assert tally.places["set", reason][0].startswith("file:s")
    judged, tally = made(found, purpose="eval")
    assert len(judged) == 1 and tally.noted == {("set", reason): 1} and not tally.dropped


def test_null_for_what_may_be_left_out_is_left_out_where_it_is_learnt() -> None:
    found = [sample(Call("go", {"z": 1.0, "a": None}), tool("go", "", SPEED))]
    taught, tally = made(found, purpose="train")
    assert taught[0].call == Call("go", {"z": 1.0}) and not tally.noted
    assert made(found, purpose="eval")[0][0].call == Call("go", {"z": 1.0, "a": None})


@pytest.mark.parametrize("schema", [{"type": "null"}, {"const": None}, {"enum": [None]}, {}, {"description": "any"}])
def test_null_that_a_required_argument_takes_is_a_value_of_it(schema: dict[str, Any]) -> None:
    shown = tool("go", "", {"type": "object", "properties": {"z": schema}, "required": ["z"]})
    found, tally = made([sample(Call("go", {"z": None}), shown)], purpose="train")
    assert [row.call for row in found] == [Call("go", {"z": None})] and not tally.dropped


def test_half_a_character_is_no_part_of_a_sample_nor_of_a_tool() -> None:
    for call in (Call("go", {"\ud800": 1}), Call("go", {"z": ["\ud800"]})):
        with pytest.raises(Unusable, match="half a character"):
            sample(call, tool("go", "", SPEED))
    found, tally = made([Dropped("no call", "file:1", "\ud800", "set")])
    assert tally.places["set", "no call"] == ["file:1 (\\ud800)"]
    found, tally = made([sample(Call("go", {"z": 1.0}), tool("go", "\ud800", SPEED))], purpose="eval")
    assert not found and tally.dropped == {("set", "half a character (a lone surrogate)"): 1}


def test_an_integer_that_is_no_float_is_no_value_of_a_number() -> None:
    found, tally = made([sample(Call("go", {"z": 10**400}), tool("go", "", SPEED))])
    assert not found and tally.dropped == {("set", "a value that its parameter does not take"): 1}


def test_what_is_judged_keeps_its_values_as_the_set_has_them() -> None:
    (row,), _ = made([sample(Call("go", {"a": 3, "z": 2}), tool("go", "", SPEED))], purpose="eval")
    assert row.call is not None and row.call.text() == "go(z=2, a=3)"


def test_every_sample_is_a_row_or_a_reason() -> None:
    good, bad = Call("go", {"z": 1.0}), Call("stop", {})
    found: list[Any] = [
        sample(good, tool("go", "", SPEED)),
        sample(good, tool("go", "", SPEED), "again"),
        sample(bad, tool("go", "", SPEED), "b"),
        sample(
            good, tool("go", "", {"type": "object", "properties": {"z": {"type": "object", "$ref": "#/gone"}}}), "c"
        ),
        Sample("d", "set", "file:d", "go", "", (tool("go", "", SPEED),) * 2, (good,)),
        Dropped("no call", "file:e", "", "set"),
    ]
    taught, tally = made(found)
    assert len(taught) == 1 == tally.rows["set"] and tally.samples["set"] == 6
    assert sum(tally.dropped.values()) == 5
    assert {reason for _, reason in tally.dropped} == {
        *(REPEATED, "a call of a function that is not shown", "a tool that cannot be decoded"),
        *("two tools of one name", "no call"),
    }


def test_samples_of_one_id_are_told_apart() -> None:
    shown = tool("go", "", SPEED)
    found, _ = made([sample(Call("go", {"z": float(n)}), shown) for n in range(3)])
    assert [row.id for row in found] == ["s", "s~2", "s~3"] == [row.sample for row in found]


def test_rows_of_several_files_are_told_apart_and_samples_stay_together() -> None:
    calls = (Call("go", {"z": 1.0}), Call("go", {"z": 2.0}))
    first, _ = made([Sample("s", "set", "file:1", "go", "", (tool("go", "", SPEED),), calls)], purpose="eval")
    both, tally = made([*first, *first], purpose="eval")
    assert [(row.id, row.sample) for row in both[2:]] == [("s/1~2", "s~2"), ("s/2~2", "s~2")]
    assert tally.samples["set"] == 2 and tally.rows["set"] == 4


def test_a_row_that_is_one_already_goes_through_as_it_is() -> None:
    first, _ = made([sample(Call("go", {"z": 1.0}), tool("go", "", SPEED))])
    again, tally = made(list(first))
    assert again == first and tally.samples["set"] == 1
