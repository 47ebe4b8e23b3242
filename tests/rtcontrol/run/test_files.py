"""Files that people write, as the editors of all systems save them, and tools of MCP servers that mean no good."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.gateway.options import read_token
from rtcontrol.models.data.row import read_rows
from rtcontrol.models.data.synthesis import read_tools
from rtcontrol.models.errors import UserError
from rtcontrol.run import toolsets
from rtcontrol.run.options import RunOptions
from rtcontrol.run.toolsets import tools_from
from rtcontrol.run.user_files import user_goals
from rtcontrol.settings import read_file
from rtcontrol.training.examples import read_files
from rtcontrol_client.ros2 import EXAMPLE

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
    return user_goals(path, "goals").ways


def tools(path: Path) -> Any:
    return tools_from(str(path)).openai()


def token(path: Path) -> str:
    path.chmod(0o600)
    return read_token(path)


def robot(path: Path) -> Any:
    config = pytest.importorskip("rtcontrol_client.ros2.config", exc_type=ImportError)
    return config.load(path)


READERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "run.toml": (lambda path: read_file(path, RunOptions, "run"), '[loop]\nenv = "lander"\nhz = 16\n'),
    "tools.json": (tools, json.dumps([TOOL], ensure_ascii=False, indent=1)),
    "made_of.json": (read_tools, json.dumps([TOOL], ensure_ascii=False)),
    "goals.yaml": (goals, GOALS),
    "token.txt": (token, "a-token-of-the-tests\n"),
    "rows.jsonl": (lambda path: [asdict(row) for row in read_rows(path)], (json.dumps(ROW) + "\n")),
    "taught.jsonl": (lambda path: read_files([path], None, None)[1], (json.dumps(ROW, ensure_ascii=False) + "\n") * 60),
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


@pytest.mark.parametrize("name", READERS)
def test_utf_16_is_refused_by_name(name: str, tmp_path: Path) -> None:
    read, text = READERS[name]
    path = tmp_path / name
    path.write_bytes(text.encode("utf-16"))
    with pytest.raises(Exception, match="UTF-16|UTF-8") as refused:
        read(path)
    assert name in str(refused.value) and "ave it as" in str(refused.value)
    assert hasattr(refused.value, "remedy")  # a mistake that is told, no traceback


# `PAGE` gives the answer to tools/list number n.
SERVER = """
import json, os, sys
{page}
print("starting", flush=True)
n = 0
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "initialize":
        told = {{"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {{"tools": {{}}}},
                "serverInfo": {{"name": "odd", "version": "1"}}}}
    elif asked["method"] == "tools/list":
        n += 1
        told = page(n)
    else:
        told = {{}}
    print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], "result": told}}), flush=True)
"""
LISTED = (
    '{"name": f"t{n}", "description": "d", "inputSchema": {"type": "object", "properties": {"a": {"enum": [1, 2]}}}}'
)


def serving(folder: Path, page: str) -> str:
    pytest.importorskip("mcp")
    file = folder / "server.py"
    file.write_text(SERVER.format(page=page))
    return f"mcp:{shlex.quote(sys.executable)} {shlex.quote(str(file))}"


@pytest.mark.parametrize(
    ("size", "cursor", "says"), [(1, "'again'", "whose list has an end"), (6000, "str(n)", "more than 10000 bytes")]
)
def test_a_list_without_an_end_or_of_too_many_bytes_is_refused(
    size: int, cursor: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolsets, "MOST_BYTES", 10_000)
    page = f"def page(n): return {{'tools': [{{**{LISTED}, 'description': 'x' * {size}}}], 'nextCursor': {cursor}}}"
    with pytest.raises(UserError, match=says):
        tools_from(serving(tmp_path, page))


def test_it_is_given_no_secrets_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret")
    monkeypatch.setenv("RTCONTROL_TOKEN", "a-secret")
    names = tmp_path / "names.json"
    page = f"json.dump(sorted(os.environ), open({str(names)!r}, 'w'))\ndef page(n): return {{'tools': [{LISTED}]}}"
    assert [tool.name for tool in tools_from(serving(tmp_path, page))] == ["t1"]
    assert not {"OPENAI_API_KEY", "RTCONTROL_TOKEN"} & set(json.loads(names.read_text()))
