"""Rows as they are written and read again, and what is said of a file that has none."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import Check, DataRow, read_rows, write_rows
from rtcontrol.models.errors import UserError

TOOL = {"type": "function", "function": {"name": "go", "parameters": {"type": "object", "properties": {}}}}
LEAST = {"instruction": "go", "observation": "", "tools": [TOOL], "history": [], "call": None}

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
calls = st.builds(Call, st.just("go"), st.dictionaries(text, values, max_size=3))
rows = st.builds(
    DataRow,
    text,
    text,
    text,
    text,
    text,
    st.just((TOOL,)),
    st.lists(text, max_size=3).map(tuple),
    st.none() | calls,
    st.lists(calls, max_size=2).map(tuple),
    st.floats(0, 1e9),
    st.none() | st.builds(Check, text, st.just(({"name": "go"},)), values),
)


@given(st.lists(rows, max_size=4, unique_by=lambda row: row.id))
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, made: list[DataRow]) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    assert write_rows(path, made) == len(made)
    assert list(read_rows(path)) == made


def test_a_recordings_row_has_its_place_for_an_id(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"\n{json.dumps({**LEAST, 'source': 'record:lander', 'weight': 1.0})}\n")
    (row,) = read_rows(path)
    assert (row.id, row.sample, row.source) == (f"{path}:2", f"{path}:2", "record:lander")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tools": "go"}, "tools is"),
        ({"tools": [{"function": {"name": ""}}]}, "is no tool"),
        ({"history": [{"name": "go"}]}, "list of strings"),
        ({"history": "go()"}, "must be a list"),
        ({"instruction": 3}, "instruction is 3"),
        ({"call": "go()"}, "call is 'go()'"),
        ({"call": {"name": "go"}}, "or null where"),
        ({"call": {"name": "stay", "arguments": {}}}, "calls 'stay'"),
        ({"allowed": [{"name": "stay", "arguments": {}}]}, "allowed calls 'stay'"),
        ({"allowed": [None]}, "null is among"),
        ({"weight": -1}, "weight is -1"),
        ({"weight": True}, "weight is true"),
        ({"check": {"category": "simple"}}, "check is"),
    ],
)
def test_what_is_wrong_with_a_row_is_said_with_file_and_line(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(LEAST)}\n{json.dumps({**LEAST, **change})}\n")
    with pytest.raises(UserError) as caught:
        list(read_rows(path))
    assert caught.value.what.startswith(f"{path}:2: ") and said in str(caught.value)


@pytest.mark.parametrize("field", ["instruction", "observation", "tools", "history", "call"])
def test_a_row_without_a_field_is_refused(tmp_path: Path, field: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({k: v for k, v in LEAST.items() if k != field}))
    with pytest.raises(UserError, match=f"has no '{field}'"):
        list(read_rows(path))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"[1]", "is no row"),
        (b"{", "is no JSON"),
        (json.dumps({**LEAST, "weight": float("nan")}).encode(), "NaN is no JSON number"),
        (b'{"weight": 1e400}', "1e400 is no JSON number"),
        (json.dumps({**LEAST, "instruction": "\ud800"}).encode(), "half a character"),
        (b'{"a": "\xff"}', "no UTF-8"),
        (b"[" * 100_000, "is no JSON"),
    ],
)
def test_a_line_that_is_no_row_is_told(tmp_path: Path, line: bytes, said: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(json.dumps(LEAST).encode() + b"\n" + line + b"\n")
    with pytest.raises(UserError, match=said) as caught:
        list(read_rows(path))
    assert str(path) in caught.value.what and "2" in caught.value.what.removeprefix(str(path))[:9]


def test_two_rows_of_one_id_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps({**LEAST, 'id': 'a'})}\n" * 2)
    with pytest.raises(UserError, match="that of line 1 too"):
        list(read_rows(path))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        list(read_rows(tmp_path / "none.jsonl"))


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("before")

    def full() -> Iterator[DataRow]:
        yield DataRow.from_dict(LEAST)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError, match="No space left"):
        write_rows(path, full())
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]
