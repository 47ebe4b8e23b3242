"""Sets of tools that a file stores once: the same rows as without, one tuple in memory, and what is wrong is named."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.data.row import DataRow, read_rows, write_rows
from rtcontrol.models.data.tool_sets import set_hash
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.finetune.model import BadRow
from rtcontrol.models.train.finetune.model import read_rows as rows_to_train
from rtcontrol.training.dataset import read_files
from tests.helpers.processes import cli

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


def test_a_row_may_have_a_field_of_that_name(tmp_path: Path) -> None:
    (found,) = read_rows(written(tmp_path / "rows.jsonl", plain([GO], tool_set="mine")))
    assert found.tools == (GO,)


def test_the_command_writes_them_and_every_reader_reads_them(tmp_path: Path) -> None:
    call = {"name": "go", "arguments": {"at": "left"}}
    lines = [plain([GO], call=call, id=f"{n}", observation=f"x={n}") for n in range(60)]
    source, once = written(tmp_path / "rows.jsonl", *lines), tmp_path / "once.jsonl"
    done = cli("data", "convert", str(source), "--out", str(once), "--tool-sets")
    assert done.returncode == 0, done.stderr
    assert once.read_text().count('"tools": [') == 1 and len(once.read_text().splitlines()) == 61
    assert [one.call for one in read_rows(once)] == [one.call for one in read_rows(source)]
    figures = tmp_path / "stats.json"
    done = cli("data", "stats", str(once), "--json", str(figures))
    assert done.returncode == 0 and json.loads(figures.read_text())["all"]["rows"] == 60, done.stderr
    tools, rows = read_files([once], None, None)
    assert len(rows) == 60 and [tool.name for tool in tools] == ["go"]
    once.write_text(once.read_text().split("\n", 1)[1])
    with pytest.raises(UserError, match=rf"{once}:1: no line before it gives the tool set"):
        read_files([once], None, None)
