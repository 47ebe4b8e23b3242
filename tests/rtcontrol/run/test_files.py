"""Tests of user files with different encodings and line ends, and of tool lists from malicious MCP servers."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.models.errors import UserError
from rtcontrol.run import toolsets
from rtcontrol.run.options import RunOptions
from rtcontrol.run.toolsets import load_tools
from rtcontrol.run.user_files import user_goals
from rtcontrol.settings import read_settings_file

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "go",
        "description": "Fahr zur Tür.",
        "parameters": {"type": "object", "properties": {"d": {"enum": ["l", "r"]}}, "required": ["d"]},
    },
}
READERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "run.toml": (lambda path: read_settings_file(path, RunOptions, "run"), '[loop]\nenv = "lander"\nhz = 16\n'),
    "tools.json": (lambda path: load_tools(str(path)).openai(), json.dumps([TOOL], ensure_ascii=False, indent=1)),
    "goals.yaml": (lambda path: user_goals(path, "goals").phrasings, "goals:\n  fahr zur Tür:\n    - zur Tür\n"),
}


@pytest.mark.parametrize("name", READERS)
def test_file_reads_the_same_with_byte_order_mark_and_crlf(name: str, tmp_path: Path) -> None:
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


# `PAGE` defines page(n), which returns the n-th answer to tools/list.
SERVER = """
import json, os, sys
{page}
print("starting", flush=True)
n = 0
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    result = {{}}
    if request["method"] == "initialize":
        result = {{"protocolVersion": request["params"]["protocolVersion"], "capabilities": {{"tools": {{}}}},
                  "serverInfo": {{"name": "odd", "version": "1"}}}}
    elif request["method"] == "tools/list":
        n += 1
        result = page(n)
    print(json.dumps({{"jsonrpc": "2.0", "id": request["id"], "result": result}}), flush=True)
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
    ("size", "cursor", "says"), [(1, "'again'", "with a shorter list"), (6000, "str(n)", "or 10000 bytes")]
)
def test_endless_or_too_large_tool_list_is_refused(
    size: int, cursor: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolsets, "MAX_BYTES", 10_000)
    page = f"def page(n): return {{'tools': [{{**{LISTED}, 'description': 'x' * {size}}}], 'nextCursor': {cursor}}}"
    with pytest.raises(UserError, match=says):
        load_tools(serving(tmp_path, page))


# Of libraries in PHP, which write an empty object as [], and of careless ones.
BAD = [
    '{"name": "list", "inputSchema": {"type": "object", "properties": [1]}}',
    '{"name": "list", "inputSchema": 5}',
    '{"name": 5}',
    '"list"',
    f"{{**{LISTED}, 'description': 'again'}}",
    '{"name": "list", "inputSchema": {"anyOf": [{"type": "object", "maxProperties": i} for i in range(1001)]}}',
]


@pytest.mark.parametrize("bad", BAD)
def test_invalid_tool_of_an_mcp_server_is_left_out_by_name(
    bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = serving(tmp_path, f"def page(n): return {{'tools': [{LISTED}, {bad}]}}")
    assert [tool.name for tool in load_tools(place, skip_unsupported=True)] == ["t1"]
    assert "skipped a tool: " in capsys.readouterr().err
    with pytest.raises(UserError, match=r"host.skip_unsupported=true|Two tools have the name|alternatives"):
        load_tools(place)


def test_fields_that_are_not_needed_refuse_no_mcp_tool(tmp_path: Path) -> None:
    odd = f"{{**{LISTED}, 'annotations': [], '_meta': [], 'outputSchema': {{'properties': []}}}}"
    assert [tool.name for tool in load_tools(serving(tmp_path, f"def page(n): return {{'tools': [{odd}]}}"))] == ["t1"]


def test_mcp_server_gets_no_secrets_from_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret")
    monkeypatch.setenv("RTCONTROL_TOKEN", "a-secret")
    names = tmp_path / "names.json"
    page = f"json.dump(sorted(os.environ), open({str(names)!r}, 'w'))\ndef page(n): return {{'tools': [{LISTED}]}}"
    assert [tool.name for tool in load_tools(serving(tmp_path, page))] == ["t1"]
    assert not {"OPENAI_API_KEY", "RTCONTROL_TOKEN"} & set(json.loads(names.read_text()))
