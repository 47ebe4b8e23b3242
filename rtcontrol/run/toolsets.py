"""Tools from where people have them: Python functions and pydantic models, OpenAI tools JSON, an MCP server's list."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from rtcontrol.agents import Agent, Tools, remote_tool
from rtcontrol.agents.tool import Tool
from rtcontrol.bridges.printable import printable
from rtcontrol.models.errors import UserError, read_text
from rtcontrol.models.schema.limits import Room, check_size
from rtcontrol.models.strict_json import strict_json
from rtcontrol.run.mcp_list import MCP, listed
from rtcontrol.run.users import load_module

SKIP = "--skip-unsupported"


def _on_stderr(line: str) -> None:
    print(printable(line), file=sys.stderr)


class Unsupported(UserError):
    """Tools of a source that cannot be taken: `errors` has what is wrong with each."""

    def __init__(self, source: str, count: int, errors: Sequence[UserError]) -> None:
        first = errors[0]
        more = f" {len(errors)} of the {count} tools of {source} are refused." if len(errors) > 1 else ""
        way = f"`rtcontrol tools check` lists all that is wrong; {SKIP} leaves such tools out." if count > 1 else ""
        super().__init__(f"{first.what}{more}", f"{first.remedy} {way}".strip())
        self.errors = tuple(errors)


def tools_from(source: str, say: Callable[[str], None] = _on_stderr, skip_unsupported: bool = False) -> Tools:
    """The tools of a .json, .jsonl (one a line) or .py file, or of `mcp:COMMAND` or `mcp:URL`. UserError where there
    are none. Of tools that cannot be taken all are told (Unsupported); with `skip_unsupported` they are left out, and
    told to `say`, a line each.

    A Python file has an `agent`, a list `tools`, or functions decorated with `tool` and pydantic models at its top; a
    model that is a part of another one is no tool. `say` is told, a line each, what else there was and is none.
    """
    if source.startswith(MCP):
        return _read(source, listed(source.removeprefix(MCP), say), say, skip_unsupported)
    if source.endswith(".py"):
        return _of_module(source, say)
    path = Path(source)
    try:
        text = read_text(path)
        lines = text.split("\n") if path.suffix == ".jsonl" else ()
        found = [strict_json(line) for line in lines if line.strip()] if lines else strict_json(text)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{source} cannot be read as tools ({error}).",
            "Give a .json or .jsonl file with OpenAI-style tools, a .py file, mcp:COMMAND or mcp:URL.",
        ) from None
    definitions = found.get("tools", [found]) if isinstance(found, Mapping) else found
    if not isinstance(definitions, list):
        raise UserError(f"{source} holds no list of tools.", 'Write [{"name": ..., "parameters": {...}}, ...].')
    return _read(source, definitions, say, skip_unsupported)


def _read(source: str, listed: Sequence[Any], say: Callable[[str], None], skip: bool) -> Tools:
    check_size(listed)
    room = Room()
    found, errors = list[Tool](), list[UserError]()
    for definition in listed:
        try:
            found.append(remote_tool(definition, room))
        except UserError as error:
            errors.append(error)
    if found and (skip or errors):
        from rtcontrol.models.checkpoint.checkpoint import Checkpoint
        from rtcontrol.run.costs import undecodable

        bad = undecodable([tool.schema for tool in found], Checkpoint.open("lander").tokenizer)
        found, errors = [tool for tool in found if tool.name not in bad], [*errors, *bad.values()]
    if errors and not (skip and found):
        raise Unsupported(source, len(listed), errors)
    for refused in errors:
        say(f"{source}: left out: {refused}")
    return Tools(found)


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
