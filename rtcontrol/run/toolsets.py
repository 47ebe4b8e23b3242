"""Tools from where people have them: Python functions and pydantic models, OpenAI tools JSON, an MCP server's list."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TextIO

import pydantic

from rtcontrol.agents import Agent, Tools, remote_tool
from rtcontrol.agents.tool import Tool
from rtcontrol.models.errors import UserError
from rtcontrol.run.users import load_module

MCP = "mcp:"
MCP_TIMEOUT_S = 30.0


def _on_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def tools_from(source: str, say: Callable[[str], None] = _on_stderr) -> Tools:
    """The tools of a .json, .jsonl (one a line) or .py file, or of `mcp:COMMAND` or `mcp:URL`. UserError where there
    are none.

    A Python file has an `agent`, a list `tools`, or functions decorated with `tool` and pydantic models at its top; a
    model that is a part of another one is no tool. `say` is told, a line each, what else there was and is none.
    """
    if source.startswith(MCP):
        return Tools([remote_tool(t) for t in _of_mcp(source.removeprefix(MCP), say)])
    if source.endswith(".py"):
        return _of_module(source, say)
    path = Path(source)
    try:
        text = path.read_text("utf-8")
        lines = text.splitlines() if path.suffix == ".jsonl" else ()
        found = [json.loads(line) for line in lines if line.strip()] if lines else json.loads(text)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{source} cannot be read as tools ({error}).",
            "Give a .json or .jsonl file with OpenAI-style tools, a .py file, mcp:COMMAND or mcp:URL.",
        ) from None
    listed = found.get("tools", [found]) if isinstance(found, Mapping) else found
    if not isinstance(listed, list):
        raise UserError(f"{source} holds no list of tools.", 'Write [{"name": ..., "parameters": {...}}, ...].')
    return Tools([remote_tool(t) for t in listed])


def _of_module(source: str, say: Callable[[str], None]) -> Tools:
    module = load_module(source, "FILE")
    if isinstance(agent := vars(module).get("agent"), Agent):
        return agent.tools
    given = vars(module).get("tools")
    if isinstance(given, Tools):
        return given
    if not isinstance(given, list | tuple):
        own = [v for name, v in vars(module).items() if _module(v) == module.__name__ and not name.startswith("_")]
        given = [v for v in own if isinstance(v, Tool)]
        models = [v for v in own if isinstance(v, type) and issubclass(v, pydantic.BaseModel)]
        parts = {name for model in models for name in model.model_json_schema().get("$defs", {})}
        given += [model for model in models if model.__name__ not in parts]
        for why, names in (
            ("without the decorator `rtcontrol.agents.tool`", [v.__name__ for v in own if inspect.isfunction(v)]),
            ("a part of another model", sorted(parts & {model.__name__ for model in models})),
        ):
            if names:
                say(f"{source}: no tool: {', '.join(names)} ({why}).")
    if not given:
        raise UserError(
            f"{source} has no tools.",
            "Decorate functions with `rtcontrol.agents.tool`, or write `tools = [...]` of functions, dicts or models.",
        )
    return Tools(list(given))


def _module(value: Any) -> str:
    """Where it was defined: what a file imports is not its own."""
    return str(getattr(value.function if isinstance(value, Tool) else value, "__module__", ""))


def _of_mcp(server: str, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """An MCP server's list of tools: a command is started and ended, an address is asked. What a command writes to
    stderr is told where it gave no list."""
    remedy = "Give the command that starts an MCP server, or the address of one (many end in /mcp)."
    if not server.strip():
        raise UserError(f"{MCP} names no server.", remedy)
    try:
        import mcp  # noqa: F401
    except ImportError:
        raise UserError("The package mcp is not installed.", "Run `pip install 'rtcontrol[mcp]'`.") from None
    with tempfile.TemporaryFile("w+", errors="replace") as said, _Strays() as strays:
        try:
            found = asyncio.run(asyncio.wait_for(_listed(server, said), MCP_TIMEOUT_S))
        except BaseException as error:
            if isinstance(error, UserError | KeyboardInterrupt | SystemExit):
                raise
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            why = f"{type(error).__name__}: {error}"
            if isinstance(error, TimeoutError):
                why, remedy = f"within {MCP_TIMEOUT_S:g} s", "Start it by hand to see what it says."
            said.seek(0)
            last = next((line for line in reversed(said.read().splitlines()) if line.strip()), None)
            if last is not None:
                why = f"{why}; it said: {last.strip()[:400]}"
            raise UserError(f"{MCP}{server} gave no list of tools ({why}).", remedy) from None
    if strays.count:
        say(f"{MCP}{server}: {strays.count} of its lines on stdout are no messages of MCP: let it log to stderr.")
    return found


class _Strays(logging.Handler):
    """Counts, while it is entered, what the library has to say, most of all of a server's lines that are no messages:
    it would write a traceback of each to the terminal."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.count, self._log = 0, logging.getLogger("mcp")

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1

    def __enter__(self) -> Self:
        self._log.addHandler(self)
        self._before, self._log.propagate = self._log.propagate, False
        return self

    def __exit__(self, *raised: object) -> None:
        self._log.removeHandler(self)
        self._log.propagate = self._before


async def _listed(server: str, said: TextIO) -> list[dict[str, Any]]:
    from mcp import Client, StdioServerParameters, stdio_client

    command, *arguments = shlex.split(server)
    place: Any = server
    if not server.startswith(("http://", "https://")):
        place = stdio_client(StdioServerParameters(command=command, args=arguments), errlog=said)
    found: list[dict[str, Any]] = []
    async with Client(place) as client:
        cursor: str | None = None
        while True:
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools:
                described = {"name": tool.name, "description": tool.description or ""}
                found.append({**described, "parameters": dict(tool.input_schema)})
            cursor = page.next_cursor
            if not cursor:
                return found
