"""Tools from where people have them: Python functions and pydantic models, OpenAI tools JSON, MCP servers."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import shlex
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pydantic

from rtcontrol.agents import Agent, Tools, remote_tool
from rtcontrol.agents.tool import Tool
from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.core import DecoderCore
from rtcontrol.models.decode.grammar import MAX_TOKENS
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.decode.protocol import Budget
from rtcontrol.models.decode.walk import Walker, worst_call
from rtcontrol.models.errors import UserError, read_text, strict_json, too_long
from rtcontrol.models.schema.domain import ClosedDomain, Free
from rtcontrol.models.schema.limits import Room, check_size
from rtcontrol.models.schema.mask import mask_of
from rtcontrol.models.schema.tool_schema import Overflow, ToolSchema
from rtcontrol.models.web import ENCODING, packed_by
from rtcontrol.run.user_code import load_module
from rtcontrol_client.console import printable


@dataclass(frozen=True)
class ToolCost:
    """`passes`: forward passes of the worst call, in the layout that takes more. `prefix_tokens` describe the tool in
    the cached prompt. `checked`: see `checked_rules`."""

    name: str
    closed: bool
    passes: int
    prefix_tokens: int
    remedies: tuple[str, ...]
    checked: Mapping[str, Sequence[str]]


def checked_rules(tool: ToolSchema) -> dict[str, list[str]]:
    """Return by parameter which keywords of its schema are checked once a value is decoded: no mask enforces them.
    Those of the root schema stand under "the call"."""
    free = {p.name: p.domain for p in tool.parameters if isinstance(p.domain, Free)}
    rules = {name: list(mask_of(domain, f"Tool {tool.name}, {name}").checked) for name, domain in free.items()}
    if tool.rules is not None:
        rules["the call"] = [*tool.rules.written]
    return {name: listed for name, listed in rules.items() if listed}


def costs(tools: Sequence[ToolSchema], tokenizer: STTokenizer, overflow: Overflow = "merge") -> list[ToolCost]:
    """Of each tool, where all of them may be called. Raises UserError for tools that cannot be decoded, as a session
    does."""
    plan = compile_plan(tools, tokenizer, overflow=overflow)
    DecoderCore(plan, tokenizer, tokenizer.size)  # compiles the grammars of the free values
    budget = Budget()
    layouts = [Walker(plan, replace(budget, function_first=first)) for first in (False, True)]
    found = []
    for index, tool in enumerate(tools):
        free = [d for head in plan.heads if (d := head.free.get(index)) is not None]
        worst = max(worst_call(walker, index)[0] for walker in layouts)
        worst += max((d.grid.longest if d.grid else MAX_TOKENS for d in free), default=0)
        remedies = []
        for head, slot in zip(plan.heads[1:], plan.slots[index], strict=False):
            count = len(head.trie.needed(1 << index))
            if isinstance(slot.domain, ClosedDomain) and count > budget.per_head:
                remedies.append(
                    f"{', '.join(p.name for p in slot.parameters)}: its {len(slot.domain.values)} values make {count} "
                    f"branching tokens, a pass carries {budget.per_head} of a head. Fewer values, or coarser steps."
                )
        size = len(tokenizer.encode(tool.canonical_json()))
        found.append(ToolCost(tool.name, not free, worst, size, tuple(remedies), checked_rules(tool)))
    return found


def check_decodable(tools: Sequence[ToolSchema], tokenizer: STTokenizer) -> None:
    """Raises UserError for a tool that every session would be refused."""
    for tool in tools:
        DecoderCore(compile_plan([tool], tokenizer), tokenizer, tokenizer.size)


def check_context(tools: Sequence[ToolSchema], checkpoint: Checkpoint) -> None:
    """UserError where the prompt that describes the tools is longer than the checkpoint's context."""
    from rtcontrol.models.runners.lean import SLOTS

    config = checkpoint.config.get("text_config", checkpoint.config)
    context = min(SLOTS, config.get("max_position_embeddings") or SLOTS)
    if (size := len(checkpoint.template.prefix_ids(tools))) >= context:
        raise too_long(context, size)


def _on_stderr(line: str) -> None:
    print(printable(line), file=sys.stderr)


def tools_from(source: str, say: Callable[[str], None] = _on_stderr, skip_unsupported: bool = False) -> Tools:
    """The tools of a .json, .jsonl (one a line) or .py file, or of `mcp:COMMAND` or `mcp:URL`. UserError where there
    are none, and for those that cannot be taken; with `skip_unsupported` they are left out, and `say` is told.

    A Python file has an `agent`, a list `tools`, or functions decorated with `tool` and pydantic models at its top; a
    model that is a part of another one is no tool. `say` is told, a line each, what else there was and is none.
    """
    if source.startswith(MCP):
        return _read(source, listed(source.removeprefix(MCP)), say, skip_unsupported)
    if source.endswith(".py"):
        return _of_module(source, say)
    path = Path(source)
    try:
        text = read_text(path)
        lines = text.split("\n") if path.suffix == ".jsonl" else ()
        given = [strict_json(line) for line in lines if line.strip()] if lines else strict_json(text)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{source} cannot be read as tools ({error}).",
            "Give a .json or .jsonl file with OpenAI-style tools, a .py file, mcp:COMMAND or mcp:URL.",
        ) from None
    definitions = given.get("tools", [given]) if isinstance(given, Mapping) else given
    if not isinstance(definitions, list):
        raise UserError(f"{source} holds no list of tools.", 'Write [{"name": ..., "parameters": {...}}, ...].')
    return _read(source, definitions, say, skip_unsupported)


def _read(source: str, definitions: Sequence[Any], say: Callable[[str], None], skip: bool) -> Tools:
    check_size(definitions)
    room, found, refused = Room(), list[Tool](), list[UserError]()
    for definition in definitions:
        try:
            tool = remote_tool(definition, room)
            if skip:
                check_decodable([tool.schema], Checkpoint.open("lander").tokenizer)
            found.append(tool)
        except UserError as error:
            refused.append(error)
    if refused and not (skip and found):
        first = refused[0]
        more = f" {len(refused)} of the {len(definitions)} tools of {source} are refused." if len(refused) > 1 else ""
        raise UserError(f"{first.what}{more}", f"{first.remedy} Or leave such tools out: --skip-unsupported.")
    for one in refused:
        say(f"{source}: left out: {one}")
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


MCP = "mcp:"
TIMEOUT_S = 30.0
# Of a list, of its bytes, and of what is shown of an error.
MAX_TOOLS, MOST_BYTES, SHOWN = 1024, 1 << 24, 400
PACKED = "Let it, or the proxy before it, heed accept-encoding: identity."
HINT = "Give the command that starts an MCP server, or the address of one (many end in /mcp)."


def listed(server: str) -> list[dict[str, Any]]:
    """Return the definitions of all tools of a server. Raises UserError where it gives no list."""
    if not server.strip():
        raise UserError(f"{MCP} names no server.", HINT)
    try:
        import mcp  # noqa: F401
    except ImportError:
        raise UserError("The package mcp is not installed.", "Run `pip install 'rtcontrol[mcp]'`.") from None
    # The library logs a traceback of each line that is no message.
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    with tempfile.TemporaryFile("w+", errors="replace") as stderr:
        try:
            return asyncio.run(asyncio.wait_for(_pages(server, stderr), TIMEOUT_S))
        except Exception as raised:
            error: BaseException = raised
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            if isinstance(error, UserError):
                raise error from None
            why = " ".join(f"{type(error).__name__}: {error}".split())[:SHOWN]
            why = f"within {TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else why
            stderr.seek(0)
            if last := next((line.strip() for line in reversed(stderr.readlines()) if line.strip()), ""):
                why = f"{why}; it said: {last[:SHOWN]}"
            raise UserError(f"{MCP}{server} gave no list of tools ({why}).", HINT) from None


def http_client(server: str) -> Any:
    """Return an `httpx2.AsyncClient` for MCP's transport, which follows no redirects. Reading from it raises UserError
    for answers that are compressed, or longer than `MOST_BYTES` in all."""
    import httpx2

    left = MOST_BYTES

    class Counted(httpx2.AsyncByteStream):
        def __init__(self, stream: httpx2.AsyncByteStream) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            nonlocal left
            async for part in self._stream:
                left -= len(part)
                if left < 0:
                    what = f"{MCP}{server} answers more than {MOST_BYTES} bytes."
                    raise UserError(what, "Give a server with fewer tools.")
                yield part

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def look(response: httpx2.Response) -> None:
        if packed := packed_by(response.headers):
            what = f"{MCP}{server} answers packed ({packed}), though it was asked for answers as they are."
            raise UserError(what, PACKED)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = Counted(response.stream)

    return httpx2.AsyncClient(headers=ENCODING, timeout=TIMEOUT_S, event_hooks={"response": [look]})


async def _pages(server: str, stderr: Any) -> list[dict[str, Any]]:
    """Collect the pages of the list. `stderr` takes what a command writes there."""
    from mcp import Client, StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client

    place: Any
    if server.startswith(("http://", "https://")):
        place = streamable_http_client(server, http_client=http_client(server))
    else:
        command, *arguments = shlex.split(server)
        given = StdioServerParameters(command=command, args=arguments, encoding_error_handler="replace")
        place = stdio_client(given, errlog=stderr)
    tools: list[dict[str, Any]] = []
    seen: set[str | None] = set()
    cursor, size = None, 0
    async with Client(place) as client:
        while cursor not in seen and len(tools) <= MAX_TOOLS:
            seen.add(cursor)
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools:
                described = {"name": tool.name, "description": tool.description or ""}
                tools.append({**described, "parameters": dict(tool.input_schema)})
                size += len(json.dumps(tools[-1]))
            cursor = page.next_cursor
            if size > MOST_BYTES:
                raise UserError(f"{MCP}{server} lists more than {MOST_BYTES} bytes.", "Give a server with fewer tools.")
            if not cursor:
                return tools
            if not page.tools:
                break
    what = f"{MCP}{server} lists more than {MAX_TOOLS} tools, or the same page again."
    raise UserError(what, "Give a server whose list has an end.")
