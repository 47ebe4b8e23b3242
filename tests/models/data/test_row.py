"""Rows, and sets of tools that a file stores once, as they are written and read again; balanced, and what they hold."""

from __future__ import annotations

import errno
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtcontrol.models.call import Call
from rtcontrol.models.data.balance import OVER, PAPER, balanced, shares_of
from rtcontrol.models.data.compression import compression, head_texts
from rtcontrol.models.data.row import Check, DataRow, read_rows, write_rows
from rtcontrol.models.data.tally import Tally
from rtcontrol.models.data.tool_sets import set_hash
from rtcontrol.models.data.types import tool
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import ToolSchema
from rtcontrol.models.train.finetune.model import BadRow
from rtcontrol.models.train.finetune.model import read_rows as rows_to_train
from rtcontrol.training.dataset import read_files
from tests.rtcontrol.commands import call as command

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


@settings(max_examples=40)
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


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("before")

    def full() -> Iterator[DataRow]:
        yield DataRow.from_dict(LEAST)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError, match="No space left"):
        write_rows(path, full())
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


# Sets of tools that a file stores once: the same rows as without, one tuple in memory, and what is wrong is named.


GO = {"name": "go", "parameters": {"properties": {"at": {"enum": ["left", "right", "zürich"]}}, "required": ["at"]}}
STOP = {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}}}
SETS: list[tuple[dict[str, Any], ...]] = [(GO,), (GO, STOP), (STOP, GO), ()]


def row(number: int, tools: tuple[dict[str, Any], ...]) -> DataRow:
    given = {"instruction": "go", "observation": f"x={number}", "tools": list(tools), "history": [], "call": None}
    return DataRow.from_dict({**given, "id": f"{number}", "sample": "s", "source": "t"})


def written(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_hash_is_of_the_definitions_in_their_order_as_plain_json() -> None:
    assert set_hash((STOP,)) == hashlib.sha256(json.dumps([STOP], separators=(",", ":")).encode()).hexdigest()
    assert len({set_hash(tools) for tools in SETS}) == len(SETS)


@given(st.lists(st.sampled_from(SETS), max_size=12))
def test_rows_whose_sets_are_stored_once_are_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, sets: list[tuple[dict[str, Any], ...]]
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    made = [row(n, tools) for n, tools in enumerate(sets)]
    assert write_rows(folder / "once.jsonl", made, tool_sets=True) == write_rows(folder / "plain.jsonl", made)
    found = list(read_rows(folder / "once.jsonl"))
    assert found == made == list(read_rows(folder / "plain.jsonl"))
    kinds = {*map(json.dumps, sets)}
    assert len({id(one.tools) for one in found if one.tools}) == len(kinds - {"[]"}), "rows of a set share it"
    assert len((folder / "once.jsonl").read_text().splitlines()) == len(made) + len(kinds)
    for (_, one), (_, other) in zip(
        rows_to_train(folder / "once.jsonl"), rows_to_train(folder / "plain.jsonl"), strict=True
    ):
        assert one == other or (isinstance(one, BadRow) and isinstance(other, BadRow) and one.reason == other.reason)


def plain(tools: Any, **more: Any) -> dict[str, Any]:
    return {"instruction": "go", "observation": "", "tools": tools, "history": [], "call": None, **more}


NAME = set_hash((GO,))[:16]
GIVEN = {"tool_set": NAME, "tools": [GO]}


@pytest.mark.parametrize(
    ("lines", "number", "said"),
    [
        ([GIVEN, plain(NAME), plain("f" * 16)], 3, "no line before it gives the tool set ffff"),
        ([plain(NAME), GIVEN], 1, "no line before it gives the tool set"),
        ([GIVEN, plain("go")], 2, "tools is 'go'"),
        ([GIVEN, plain(NAME[:15])], 2, "tools is"),
        ([plain([GO]), {**GIVEN, "tools": [GO, STOP]}], 2, f"the tools of the set {NAME} have the hash"),
        ([{**GIVEN, "tool_set": "abc"}], 1, "tool_set is 'abc'"),
        ([{**GIVEN, "tool_set": 7}], 1, "tool_set is 7"),
        ([{"tool_set": NAME}], 1, "tools is null"),
        ([{**GIVEN, "tools": [{"name": ""}]}], 1, "is no tool"),
        ([GIVEN, plain(NAME, call={"name": "stay", "arguments": {}})], 2, "calls 'stay'"),
    ],
)
def test_what_is_wrong_with_a_set_is_said_with_file_and_line(
    tmp_path: Path, lines: list[Any], number: int, said: str
) -> None:
    path = written(tmp_path / "rows.jsonl", *lines)
    with pytest.raises(UserError, match=said) as caught:
        list(read_rows(path))
    assert caught.value.what.startswith(f"{path}:{number}: ")
    found: list[Any] = []
    try:
        found = [one for _, one in rows_to_train(path)]
    except UserError as error:
        found = [error]
    (wrong,) = (one for one in found if isinstance(one, UserError))
    assert wrong.what == caught.value.what


def test_the_command_writes_them_and_every_reader_reads_them(tmp_path: Path) -> None:
    call = {"name": "go", "arguments": {"at": "left"}}
    lines = [plain([GO], call=call, id=f"{n}", observation=f"x={n}") for n in range(60)]
    source, once = written(tmp_path / "rows.jsonl", *lines), tmp_path / "once.jsonl"
    assert command("data", "convert", str(source), "--out", str(once), "--tool-sets") == 0
    assert once.read_text().count('"tools": [') == 1 and len(once.read_text().splitlines()) == 61
    assert [one.call for one in read_rows(once)] == [one.call for one in read_rows(source)]
    tools, rows = read_files([once], None, None)
    assert len(rows) == 60 and [tool.name for tool in tools] == ["go"]
    once.write_text(once.read_text().split("\n", 1)[1])
    with pytest.raises(UserError, match=rf"{once}:1: no line before it gives the tool set"):
        read_files([once], None, None)


# Rows balanced by the number of their calls' arguments, and rows of pass-through functions.


def balance_row(n: int, arguments: int | None) -> DataRow:
    names = [f"p{k}" for k in range(arguments or 0)]
    shown = tool("f", "", {"type": "object", "properties": {name: {"type": "string"} for name in names}})
    call = None if arguments is None else Call("f", dict.fromkeys(names, "v"))
    return DataRow(f"r{n}", f"r{n}", "set", f"Query {n}.", "", (shown,), (), call)


def counts(rows: list[DataRow]) -> Counter[int]:
    return Counter(len(r.call.arguments) for r in rows if r.call is not None)


def test_the_papers_shares_are_met_by_as_many_rows_as_there_can_be() -> None:
    made = [balance_row(n, n % 6 + 1) for n in range(6 * 200)]
    tally = Tally()
    tally.rows["set"] = len(made)
    found = balanced(made, shares_of(PAPER), "drop", 0, tally)
    assert counts(found) == {1: 180, 2: 200, 3: 180, 4: 170, 5: 150, 6: 120}
    assert tally.dropped["set", OVER] == 200 == len(made) - len(found) and tally.rows["set"] == len(found)
    assert (
        found
        == balanced(made, shares_of(PAPER), "drop", 0, Tally())
        != balanced(made, shares_of(PAPER), "drop", 1, Tally())
    )


@given(st.lists(st.none() | st.integers(0, 8), max_size=40), st.integers(0, 3))
def test_shares_hold_in_whatever_is_left(others: list[int | None], seed: int) -> None:
    made = [balance_row(n, count) for n, count in enumerate([1, 2, 3, 4, 5, 6, *others])]
    shares = shares_of(PAPER)
    found = balanced(made, shares, "drop", seed, Tally())
    kept = {r.id for r in found}
    assert all(r.id in kept for r in made if r.call is None or not r.call.arguments)  # no share was asked for
    most = min(sum(min(len(r.call.arguments), 6) == c for r in made if r.call) / s for c, s in shares.items())
    held = Counter(min(len(r.call.arguments), 6) for r in found if r.call)
    assert all(held[c] == int(most * s + 1e-9) for c, s in shares.items())
    weighed = balanced(made, shares, "weight", seed, Tally())
    total = sum(r.weight for r in weighed if r.call and r.call.arguments)
    assert total == pytest.approx(sum(1 for r in made if r.call and r.call.arguments))
    for count, share in shares.items():
        own = sum(r.weight for r in weighed if r.call and min(len(r.call.arguments), 6) == count)
        assert own == pytest.approx(share * total)


def test_a_count_without_rows_cannot_have_a_share() -> None:
    with pytest.raises(UserError, match="No row has a call of 3 arguments"):
        balanced([balance_row(0, 1), balance_row(1, 2)], shares_of("1,1,1,0,0,0"), "drop", 0, Tally())
    assert shares_of("1,1,0,0,0,0,0") == {0: 0.5, 1: 0.5, 2: 0, 3: 0, 4: 0, 5: 0, 6: 0}
    for bad in ("", "1,2", "a,b,c,d,e,f", "0,0,0,0,0,0", "-1,1,1,1,1,1", "nan,1,1,1,1,1"):
        with pytest.raises(UserError, match="no shares"):
            shares_of(bad)


# What rows hold, beside the paper's tables.


NAMES = ["a", "b", "c", "d", "e", "f", "g"]
STATS_TOOL = tool("go", "", {"type": "object", "properties": {n: {"type": "array"} for n in NAMES}})


def test_heads_write_values_raw_or_as_json() -> None:
    call = Call("go", {"a": [1, "x"], "b": [], "f": [True], "g": [0.5]})
    schema = ToolSchema.from_openai(STATS_TOOL)
    assert head_texts(call, schema, " ") == ["go", '[1, "x"]', "[]", '{"f": [true], "g": [0.5]}']
    assert head_texts(call, schema) == ["go", '[1,"x"]', "[]", '{"f":[true],"g":[0.5]}']


def test_compression_is_of_json_over_the_longest_head() -> None:
    class Characters:
        def of(self, text: str) -> int:
            return len(text)

    schema = ToolSchema.from_openai(STATS_TOOL)
    made = compression([(Call("go", {"a": [1]}), schema), (Call("go", {"a": [1, 2, 3]}), schema)], Characters())  # type: ignore[arg-type]
    assert made["longest_head"]["max"] == len("[1, 2, 3]") + 1 and made["function_head_longest"] == 0.0
    assert made["compression"]["mean"] == made["json"]["mean"] / made["longest_head"]["mean"] > 3
    assert compression([], Characters()) == {}  # type: ignore[arg-type]
