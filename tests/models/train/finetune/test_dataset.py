"""Rows become groups: what cannot is named with file and line, what is too long is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.checkpoint.prompt import COMPACT, PromptTemplate
from rtcontrol.models.checkpoint.special_tokens import ARGUMENTS, opening
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.models.train.finetune.config import FinetuneRecipe
from rtcontrol.models.train.finetune.dataset import GroupEncoder, digest, load
from tests.models.small import tool
from tests.models.train.finetune.rows import random_rows, write

GO = tool("go", 1, a=["left", "right"], b={"type": "integer", "minimum": 0, "maximum": 9}, c={"type": "string"})
ROW: dict[str, Any] = {
    "instruction": "go left", "observation": "x=1", "tools": [GO, tool("stop")], "history": [],
    "call": {"name": "go", "arguments": {"a": "left", "c": "the red"}},
}  # fmt: skip


def encoder(folder: Path, overflow: str = "merge", **settings: Any) -> GroupEncoder:
    tokenizer = Checkpoint.open(str(folder)).tokenizer
    return GroupEncoder(
        PromptTemplate(COMPACT | {"overflow": overflow}, tokenizer, ""), tokenizer, FinetuneRecipe(**settings)
    )


def test_a_group_has_the_papers_eight_heads_with_the_papers_weights(folder: Path, tmp_path: Path) -> None:
    made = encoder(folder)
    (group,) = load([write(tmp_path / "rows.jsonl", [ROW | {"weight": 0.5}])], made)
    tokenizer = Checkpoint.open(str(folder)).tokenizer
    null = tokenizer.special_id("<|null|>")
    heads = {head.ids[0]: head for head in group.heads}
    assert len(heads) == len(group.heads) == 8

    def weights(name: str) -> list[float]:
        return [round(w, 6) for w in heads[tokenizer.special_id(opening(name))].weights]

    assert weights("content") == [0.005]
    assert weights("function") == [1.0] * (len(tokenizer.encode("go")) + 1)
    # arg1 is not null and has focal weight 1; arg2 is null, where none counts; arg3 has 1.3 and 1.5.
    assert weights("arg1") == [0.55] * (len(tokenizer.encode("left")) + 1)
    assert weights("arg2") == [0.6]
    assert weights("arg3") == [round(0.5 * 1.3 * 1.5, 6)] * (len(tokenizer.encode("the red")) + 1)
    assert [weights(a) for a in ARGUMENTS[3:]] == [[0.7], [0.75], [0.8]]
    for name in ("content", "arg2", "arg4", "arg5", "arg6"):
        assert heads[tokenizer.special_id(opening(name))].labels == (null,)
    # A null that its tool could have filled counts as much as one beyond its arity.
    without = ROW | {"call": {"name": "go", "arguments": {"a": "left"}}}
    (other,) = load([write(tmp_path / "rows.jsonl", [without])], made)
    third = next(h for h in other.heads if h.ids == (tokenizer.special_id("<arg3>"),))
    assert third.labels == (null,) and third.weights == (1.3,)


def test_heads_of_our_own_are_those_that_are_read(folder: Path, tmp_path: Path) -> None:
    rows = [ROW, ROW | {"call": None}]
    file = write(tmp_path / "rows.jsonl", rows)
    groups = load([file], encoder(folder, all_heads=False))
    assert [len(group.heads) for group in groups] == [4, 1]
    assert [len(group.heads) for group in load([file], encoder(folder))] == [8, 2]


def test_prompts_are_those_that_are_decided_behind(folder: Path, tmp_path: Path) -> None:
    made = encoder(folder)
    (group,) = load([write(tmp_path / "rows.jsonl", [ROW])], made)
    template = Checkpoint.open(str(folder)).template
    told = [*template.prefix_ids(tool_schemas(ROW["tools"])), *template.suffix_ids("go left", "x=1")]
    assert [*made.prefix, *group.suffix] == told


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("{", "no JSON"),
        ([1], "is no row"),
        (ROW | {"instruction": None}, "instruction is null"),
        (ROW | {"tools": "sha256:12"}, "tools is 'sha256:12'"),
        (ROW | {"tools": [{"name": ""}]}, "is no tool"),
        (ROW | {"weight": -1}, "weight is -1"),
        (ROW | {"history": "go()"}, r"history is 'go\(\)'"),
        ({k: v for k, v in ROW.items() if k != "call"}, "no 'call'"),
        (ROW | {"call": {"name": "fly", "arguments": {}}}, "calls 'fly', which its tools do not have"),
        (ROW | {"call": {"name": "go", "arguments": {"a": "up"}}}, 'does not take: go.a = "up"'),
        (ROW | {"call": {"name": "go", "arguments": {}}}, "a required argument that is missing: go.a"),
        (ROW | {"call": {"name": "go", "arguments": {"a": "left", "z": 1}}}, "its tool does not have: go.z"),
        (ROW | {"call": {"name": "go", "arguments": {"a": "left", "c": 3}}}, "does not take: go.c = 3"),
    ],
)
def test_a_row_that_cannot_be_represented_is_named_with_file_and_line(
    folder: Path, tmp_path: Path, row: Any, why: str
) -> None:
    file = write(tmp_path / "rows.jsonl", [ROW, ROW])
    with file.open("a") as lines:
        lines.write((row if isinstance(row, str) else json.dumps(row)) + "\n")
    with pytest.raises(UserError, match=why) as error:
        load([file], encoder(folder))
    assert error.value.what.startswith(f"{file}:3: ")
    kept = load([file], encoder(folder), drop_bad=True)
    assert len(kept) == 2 and sum(kept.seen.dropped.values()) == 1 and kept.seen.rows == 3


def test_a_call_with_more_arguments_than_a_cut_schema_has_heads_is_refused(folder: Path, tmp_path: Path) -> None:
    many = tool("go", 0, **{c: ["left", "right"] for c in "abcdefg"})
    row = ROW | {"tools": [many], "call": {"name": "go", "arguments": {"a": "left", "g": "right"}}}
    file = write(tmp_path / "rows.jsonl", [row])
    assert len(load([file], encoder(folder))) == 1
    with pytest.raises(UserError, match=r"rows.jsonl:1: go: g has no head"):
        load([file], encoder(folder, overflow="cut"))


def test_rows_beyond_the_length_are_left_out_and_counted(folder: Path, tmp_path: Path) -> None:
    rows = [ROW, ROW | {"observation": "x=1 " * 500}]
    file = write(tmp_path / "rows.jsonl", rows)
    (only,) = load([file], encoder(folder, length=512))
    assert load([file], encoder(folder, length=512)).seen.dropped == {"longer than 512 tokens": 1}
    size = 1 + len(only.suffix) + max(len(h.ids) for h in only.heads)
    assert len(load([file], encoder(folder, length=size))) == 1
    with pytest.raises(UserError, match="no row is left"):
        load([file], encoder(folder, length=size - 1))


def test_what_was_read_is_counted_and_hashed(folder: Path, tmp_path: Path) -> None:
    one, two = (write(tmp_path / f"{i}.jsonl", random_rows(i, 20)) for i in range(2))
    seen = load([one, two], encoder(folder)).seen
    assert seen.files == {str(one): digest(one), str(two): digest(two)} and seen.rows == 40
    assert 1 < len(seen.tool_sets) <= 8 and seen.history == 2 and seen.null
    with pytest.raises(UserError, match="gone.jsonl cannot be read"):
        load([tmp_path / "gone.jsonl"], encoder(folder))
