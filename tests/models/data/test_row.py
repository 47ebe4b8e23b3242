"""Rows are written and read, balanced, and synthesised from templates."""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtcontrol.models.call import Call
from rtcontrol.models.data import synthesis
from rtcontrol.models.data.convert import PAPER, balance_rows, canonical_tool, check_row, parse_shares
from rtcontrol.models.data.row import Row, read_rows, write_rows
from rtcontrol.models.data.sample import Tally, UnusableSample
from rtcontrol.models.data.synthesis import read_tools, sample_value
from rtcontrol.models.data.types import tool_definition
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import ToolSchema
from tests.models.small import tool_lists

TOOL = {"type": "function", "function": {"name": "go", "parameters": {"type": "object", "properties": {}}}}
LEAST = {"instruction": "go", "observation": "", "tools": [TOOL], "history": [], "call": None}

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
calls = st.builds(Call, st.just("go"), st.dictionaries(text, values, max_size=3))
name = text.filter(bool)
rows = st.builds(
    Row,
    text,
    text,
    st.none() | calls,
    st.lists(text, max_size=3).map(tuple),
    st.just((canonical_tool(TOOL),)),
    allowed=st.lists(calls, max_size=2).map(tuple),
    weight=st.floats(1e-9, 1e6),
    id=name,
    sample=name,
    source=name,
)


@settings(max_examples=40)
@given(st.lists(rows, max_size=4, unique_by=lambda row: row.id))
def test_rows_are_read_back_as_written(tmp_path_factory: pytest.TempPathFactory, made: list[Row]) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    assert write_rows(path, made) == len(made)
    assert list(read_rows(path)) == made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tools": [{"function": {"name": ""}}]}, "has no name"),
        ({"history": [{"name": "go"}]}, "history.0 is"),
        ({"history": "go()"}, "valid list"),
        ({"instruction": 3}, "instruction is 3"),
        ({"call": {"name": "go", "arguments": 3}}, "call.arguments is"),
        ({"call": {"name": "stay", "arguments": {}}}, "calls 'stay'"),
        ({"allowed": [None]}, "allowed.0 is null"),
        ({"weight": -1}, "weight is -1"),
    ],
)
def test_invalid_row_is_named_by_file_and_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(LEAST)}\n{json.dumps({**LEAST, **change})}\n")
    with pytest.raises(UserError) as caught:
        list(read_rows(path))
    assert caught.value.what.startswith(f"{path}:2: ") and message in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"[1]", "the row is"),
        (b"{", "is not JSON"),
        (json.dumps({k: v for k, v in LEAST.items() if k != "call"}).encode(), "call is .*Field required"),
        (json.dumps({**LEAST, "weight": float("nan")}).encode(), "NaN is not a JSON number"),
        (json.dumps({**LEAST, "instruction": "\ud800"}).encode(), "half a character"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b"[" * 100_000, "is not JSON"),
    ],
)
def test_line_without_a_row_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(json.dumps(LEAST).encode() + b"\n" + line + b"\n")
    with pytest.raises(UserError, match=message) as caught:
        list(read_rows(path))
    assert str(path) in caught.value.what and "2" in caught.value.what.removeprefix(str(path))[:9]


def test_rows_from_standard_input_are_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path / "rows.jsonl", [Row("go", "x 1", None)])
    duplicate = os.dup
    with (tmp_path / "rows.jsonl").open("rb") as piped:
        monkeypatch.setattr(os, "dup", lambda descriptor: duplicate(piped.fileno()))
        assert [row.observation for row in read_rows(Path("-"))] == ["x 1"]
    assert "Reading rows from standard input" in capsys.readouterr().err


def test_row_file_is_written_completely_or_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("before")

    def full() -> Iterator[Row]:
        yield Row.from_dict(LEAST)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError, match="No space left"):
        write_rows(path, full())
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


# Rows balanced by the number of their calls' arguments.


def row_with(n: int, arguments: int | None) -> Row:
    names = [f"p{k}" for k in range(arguments or 0)]
    call = None if arguments is None else Call("f", dict.fromkeys(names, "v"))
    return Row(f"Query {n}.", "", call, id=f"r{n}", source="set")


@given(st.lists(st.none() | st.integers(0, 8), max_size=40), st.integers(0, 3))
def test_balanced_rows_have_the_requested_shares(others: list[int | None], seed: int) -> None:
    made = [row_with(n, count) for n, count in enumerate([1, 2, 3, 4, 5, 6, *others])]
    shares = parse_shares(PAPER)
    found = balance_rows(made, shares, seed, Tally())
    kept = {r.id for r in found}
    assert all(r.id in kept for r in made if r.call is None or not r.call.arguments)  # no share was asked for
    most = min(sum(min(len(r.call.arguments), 6) == c for r in made if r.call) / s for c, s in shares.items())
    held = Counter(min(len(r.call.arguments), 6) for r in found if r.call)
    assert all(held[c] == int(most * s + 1e-9) for c, s in shares.items())


def test_argument_count_without_rows_cannot_have_a_share() -> None:
    with pytest.raises(UserError, match="No row has a call of 3 arguments"):
        balance_rows([row_with(0, 1), row_with(1, 2)], parse_shares("1,1,1,0,0,0"), 0, Tally())
    assert parse_shares("1,1,0,0,0,0,0") == {0: 0.5, 1: 0.5, 2: 0, 3: 0, 4: 0, 5: 0, 6: 0}
    for bad in ("1,2", "a,b,c,d,e,f", "0,0,0,0,0,0", "-1,1,1,1,1,1", "nan,1,1,1,1,1"):
        with pytest.raises(UserError, match="not a list of shares"):
            parse_shares(bad)


ANY = dict.fromkeys(range(7), 1 / 7)
# Synthetic rows: every call is legal, every value occurs in the sentence, and a seed always gives the same rows.


@settings(max_examples=40, deadline=None)
@given(tool_lists(parameters=8), st.integers(0, 99))
def test_every_synthetic_row_fits_its_tools(tools: list[dict[str, Any]], seed: int) -> None:
    sets = [tuple(map(ToolSchema.from_openai, tools))]
    made = []
    try:
        for row in synthesis.random_rows(sets, 5, seed, Tally(), ANY):
            made.append(row)
    except UserError as error:
        assert "different rows" in str(error)
    for row in made:
        assert row.call is not None
        check_row(row)
        assert all(v in row.instruction for v in row.call.arguments.values() if isinstance(v, str))
    assert len({(row.instruction, row.call.text()) for row in made if row.call}) == len(made)


def test_synthetic_rows_follow_shares_and_repeat_by_seed() -> None:
    properties = {f"p{n}": {"type": "string"} for n in range(8)}
    sets = [(canonical_tool(tool_definition("f", "", {"type": "object", "properties": properties})),)]
    made = list(synthesis.random_rows(sets, 600, 1, Tally(), parse_shares("1,0,1,0,0,0")))
    counts = Counter(len(row.call.arguments) for row in made if row.call)
    assert set(counts) == {1, 3} and 250 < counts[1] < 350
    assert made == list(synthesis.random_rows(sets, 600, 1, Tally(), parse_shares("1,0,1,0,0,0")))


@pytest.mark.parametrize("schema", [{"type": "string", "pattern": "a+"}, {"type": "array"}, {"type": "object"}])
def test_value_that_templates_cannot_make_is_refused(schema: dict[str, Any]) -> None:
    made = canonical_tool(tool_definition("f", "", {"type": "object", "properties": {"p": schema}}))
    with pytest.raises(UnusableSample, match="cannot be sampled"):
        sample_value(made.parameters[0], Random(0))


def test_tools_are_read_from_definitions_and_from_rows(tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([{"name": "f", "parameters": {"type": "dict", "properties": {"a": {"type": "float"}}}}]))
    sets = read_tools(path)
    assert sets[0][0].parameters[0].schema == {"type": "number"}
    made = list(synthesis.random_rows(sets, 3, 0, Tally(), ANY))
    lines = tmp_path / "rows.jsonl"
    lines.write_text("\n".join(json.dumps(row.to_dict()) for row in made))
    assert read_tools(lines) == sets
    for text, message in (("{", "is not a list of tools"), ("[]", "has no tools"), ("[3]", "is not a list of tools")):
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            read_tools(path)
    path.write_text(json.dumps([{"name": "f", "parameters": {"properties": {"a": {"type": "quark"}}}}]))
    with pytest.raises(UserError, match="tools.json: a parameter of an unknown type"):
        read_tools(path)
