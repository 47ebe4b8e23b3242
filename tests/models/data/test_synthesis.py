"""Rows by templates: legal, each once, balanced, the same for a seed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtcontrol.models.call import Call
from rtcontrol.models.data.balance import shares_of
from rtcontrol.models.data.convert import canonical, check_call, declared
from rtcontrol.models.data.sample import Tally, Unusable
from rtcontrol.models.data.synthesis import draw, read_tools, rows
from rtcontrol.models.data.written import tool
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import ToolSchema
from tests.models.small import tool_lists

ANY = dict.fromkeys(range(7), 1 / 7)
# Rows by templates: every call is legal, every value is in the sentence, and the same seed gives the same rows.


@settings(max_examples=40, deadline=None)
@given(tool_lists(parameters=8), st.integers(0, 99))
def test_every_row_is_one_of_its_tools(tools: list[dict[str, Any]], seed: int) -> None:
    sets = [tuple(map(ToolSchema.from_openai, tools))]
    made = []
    try:
        for row in rows(sets, 5, seed, Tally(), ANY):
            made.append(row)
    except UserError as error:
        assert "different rows" in str(error)
    for row in made:
        assert row.call is not None
        called = next(one for one in row.tools if one["function"]["name"] == row.call.name)
        check_call(row.call, canonical(called))
        assert all(v in row.instruction for v in row.call.arguments.values() if isinstance(v, str))
    assert len({(row.instruction, row.call.text()) for row in made if row.call}) == len(made)


def test_the_shares_of_arguments_are_followed_and_a_seed_repeats() -> None:
    properties = {f"p{n}": {"type": "string"} for n in range(8)}
    sets = [(canonical(tool("f", "", {"type": "object", "properties": properties})),)]
    made = list(rows(sets, 600, 1, Tally(), shares_of("1,0,1,0,0,0")))
    counts = Counter(len(row.call.arguments) for row in made if row.call)
    assert set(counts) == {1, 3} and 250 < counts[1] < 350
    assert made == list(rows(sets, 600, 1, Tally(), shares_of("1,0,1,0,0,0")))


def test_shares_that_no_tool_can_have_fall_to_no_other() -> None:
    one, two = ({f"p{n}": {"type": "integer", "minimum": 0, "maximum": 900} for n in range(k)} for k in (1, 2))
    required = ({"type": "object", "properties": own, "required": [*own]} for own in (one, two))
    sets = [tuple(canonical(tool(name, "", own)) for name, own in zip("ab", required, strict=True))]
    counts = Counter(
        len(row.call.arguments) for row in rows(sets, 400, 1, Tally(), shares_of("1,1,1,1,1,1")) if row.call
    )
    assert 160 < counts[1] < 240 and counts[1] + counts[2] == 400


def test_tools_that_give_too_little_are_told() -> None:
    with pytest.raises(UserError, match="4 were made"):
        list(rows([(canonical(tool("stop", "", None)),)], 5, 0, Tally(), ANY))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer"},
        {"type": "integer", "minimum": 1000},
        {"type": "number", "maximum": -5},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 10},
        {"enum": ["x", "y"]},
        {"type": "boolean"},
    ],
)
def test_values_are_what_the_parameter_takes(schema: dict[str, Any]) -> None:
    made = canonical(tool("f", "", {"type": "object", "properties": {"p": schema}, "required": ["p"]}))
    for seed in range(50):
        check_call(declared(Call("f", {"p": draw(made.parameters[0], Random(seed))}), made), made)


@pytest.mark.parametrize("schema", [{"type": "string", "pattern": "a+"}, {"type": "array"}, {"type": "object"}])
def test_what_only_a_model_could_make_up_is_no_value(schema: dict[str, Any]) -> None:
    made = canonical(tool("f", "", {"type": "object", "properties": {"p": schema}}))
    with pytest.raises(Unusable, match="cannot be drawn"):
        draw(made.parameters[0], Random(0))


def test_tools_are_read_from_definitions_and_from_rows(tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([{"name": "f", "parameters": {"type": "dict", "properties": {"a": {"type": "float"}}}}]))
    sets = read_tools(path)
    assert sets[0][0].parameters[0].schema == {"type": "number"}
    made = list(rows(sets, 3, 0, Tally(), ANY))
    lines = tmp_path / "rows.jsonl"
    lines.write_text("\n".join(json.dumps(row.to_dict()) for row in made))
    assert read_tools(lines) == sets
    for text, said in (("{", "is no JSON"), ("[]", "has no tools"), ("[3]", "no list of tools")):
        path.write_text(text)
        with pytest.raises(UserError, match=said):
            read_tools(path)
    path.write_text(json.dumps([{"name": "f", "parameters": {"properties": {"a": {"type": "quark"}}}}]))
    with pytest.raises(UserError, match="tools.json: a parameter of a type"):
        read_tools(path)
