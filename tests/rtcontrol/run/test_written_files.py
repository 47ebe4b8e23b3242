"""Files that people write, as the editors of all systems save them: byte order marks, CRLF, UTF-16."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.bridges.ros2 import EXAMPLE
from rtcontrol.bridges.wire.curve import load_public
from rtcontrol.gateway.options import read_token
from rtcontrol.models.data.row import read_rows
from rtcontrol.models.data.sources.files import items
from rtcontrol.models.data.synthesis.tool_sets import read_tools
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.finetune import config as finetune
from rtcontrol.run.options import load
from rtcontrol.run.toolsets import tools_from
from rtcontrol.run.user_module import user_goals
from rtcontrol.serve import zmq_auth
from rtcontrol.training.dataset import read_files

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "go",
        "description": "Fahr zur Tür.",
        "parameters": {"type": "object", "properties": {"d": {"enum": ["l", "r"]}}, "required": ["d"]},
    },
}
CALL = {"name": "go", "arguments": {"d": "l"}}
ROW = {"id": "1", "instruction": "links", "observation": "Tür", "tools": [TOOL], "history": [], "call": CALL}
GOALS = "goals:\n  fahr zur Tür:\n    - zur Tür\n"


def goals(path: Path) -> Any:
    return user_goals(path).ways


def tools(path: Path) -> Any:
    return tools_from(str(path)).openai()


def token(path: Path) -> str:
    path.chmod(0o600)
    return read_token(path)


def places(path: Path) -> list[Any]:
    return [value for _, value in items(path)]


def robot(path: Path) -> Any:
    config = pytest.importorskip("rtcontrol.bridges.ros2.config", exc_type=ImportError)
    return config.load(path)


READERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "run.toml": (lambda path: load(path, "run", {"env": str, "hz": float}), 'env = "lander"\nhz = 16\n'),
    "recipe.toml": (finetune.read, "rank = 8\n"),
    "recipe.json": (finetune.read, '{"rank": 8}\n'),
    "tools.json": (tools, json.dumps([TOOL], ensure_ascii=False, indent=1)),
    "tools.jsonl": (tools, json.dumps(TOOL, ensure_ascii=False) + "\n"),
    "made_of.json": (read_tools, json.dumps([TOOL], ensure_ascii=False)),
    "goals.yaml": (goals, GOALS),
    "goals.json": (goals, '{"goals": {"fahr zur Tür": ["zur Tür"]}}'),
    "token.txt": (token, "a-token-of-the-tests\n"),
    "rows.jsonl": (lambda path: [asdict(row) for row in read_rows(path)], (json.dumps(ROW) + "\n")),
    "taught.jsonl": (lambda path: read_files([path], None, None)[1], (json.dumps(ROW, ensure_ascii=False) + "\n") * 60),
    "set.json": (places, json.dumps([ROW, ROW], ensure_ascii=False, indent=1)),
    "lines.json": (places, json.dumps(ROW) + "\n" + json.dumps(ROW) + "\n"),
    "robot.yaml": (robot, EXAMPLE.read_text("utf-8")),
}


@pytest.mark.parametrize("name", READERS)
def test_a_file_reads_the_same_with_a_byte_order_mark_and_crlf(name: str, tmp_path: Path) -> None:
    read, text = READERS[name]
    path = tmp_path / name
    path.write_bytes(text.encode())
    plain = read(path)
    assert plain
    path.write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))
    assert read(path) == plain


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("name", READERS)
def test_utf_16_is_refused_by_name(name: str, encoding: str, tmp_path: Path) -> None:
    read, text = READERS[name]
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    with pytest.raises(Exception, match="UTF-16|UTF-8") as refused:
        read(path)
    assert name in str(refused.value) and "ave it as" in str(refused.value)
    assert hasattr(refused.value, "remedy")  # a mistake that is told, no traceback


def test_files_put_together_have_marks_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({**ROW, "id": str(i)}).encode("utf-8-sig") for i in range(3)]
    path.write_bytes(b"\r\n".join([*lines, b"\xef\xbb\xbf"]))
    assert [row.id for row in read_rows(path)] == ["0", "1", "2"]


def test_a_key_file_is_read_with_a_mark_and_refused_as_utf_16(tmp_path: Path) -> None:
    pair = zmq_auth.create(tmp_path, "robot")
    path = tmp_path / "robot.key"
    text = path.read_text()
    for end in ("\n", "\r\n"):
        path.write_bytes(text.replace("\n", end).encode("utf-8-sig"))
        assert load_public(path) == pair.public
    path.write_bytes(text.encode("utf-16"))
    with pytest.raises(zmq_auth.KeyFileError, match="is UTF-16"):
        load_public(path)


@pytest.mark.parametrize(
    "text",
    [
        '[{"name": "go", "name": "stop", "parameters": {"type": "object"}}]',
        '[{"name": "go", "parameters": {"properties": {"v": {"type": "boolean"}, "v": {"type": "string"}}}}]',
    ],
)
def test_tools_with_a_key_twice_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tools.json"
    path.write_text(text)
    with pytest.raises(UserError, match="stands twice in one object"):
        tools_from(str(path))
