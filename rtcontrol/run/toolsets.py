"""Read tools from Python files, JSON files with OpenAI-style definitions, and MCP servers. Compute their costs."""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from rtcontrol.agents import Tools, remote_tool
from rtcontrol.agents.tool import Tool
from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.core import DecoderCore
from rtcontrol.models.decode.grammar import MAX_TOKENS
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.decode.protocol import Budget
from rtcontrol.models.decode.walk import Walker, worst_call_cost
from rtcontrol.models.errors import UserError, read_text, strict_json
from rtcontrol.models.schema.domain import ClosedDomain, FreeDomain
from rtcontrol.models.schema.limits import SchemaBudget, check_size
from rtcontrol.models.schema.mask import compile_mask
from rtcontrol.models.schema.tool_schema import Overflow, ToolSchema
from rtcontrol.models.web import ENCODING, compression_of
from rtcontrol.run.user_files import user_tools
from rtcontrol_client.console import printable

MCP = "mcp:"
TIMEOUT_S = 30.0
# Limits for MCP servers: number of tools, bytes of all responses, and shown characters of an error message.
MAX_TOOLS, MAX_BYTES, MAX_CHARS = 1024, 1 << 24, 400
HINT = "Specify a command that starts an MCP server, or the server's address (it often ends in /mcp)."


def load_tools(source: str, skip_unsupported: bool = False) -> Tools:
    """Read the tools of a .json, .jsonl (a tool per line) or .py file, or of an MCP server: `mcp:COMMAND`, `mcp:URL`.

    A Python file has an `agent`, a list `tools`, or top-level functions decorated with `tool` and pydantic models
    (except models that are fields of others). Raises UserError if there are no tools, or if a tool is not supported.
    If `skip_unsupported`, unsupported tools are skipped, with a message on stderr.
    """
    if source.startswith(MCP):
        return _parse_tools(source, list_mcp_tools(source.removeprefix(MCP)), skip_unsupported)
    if source.endswith(".py"):
        return user_tools(source)
    try:
        text = read_text(Path(source))
        lines = [line for line in text.split("\n") if line.strip()] if source.endswith(".jsonl") else []
        content = [strict_json(line) for line in lines] or strict_json(text)
    except (OSError, ValueError, RecursionError) as error:
        hint = "Use a .json or .jsonl file with OpenAI-style tools, a .py file, mcp:COMMAND or mcp:URL."
        raise UserError(f"{source} cannot be read as tools ({error}).", hint) from None
    definitions = content.get("tools", [content]) if isinstance(content, Mapping) else content
    if not isinstance(definitions, list):
        raise UserError(f"{source} has no list of tools.", 'Write [{"name": ..., "parameters": {...}}, ...].')
    return _parse_tools(source, definitions, skip_unsupported)


def _parse_tools(source: str, definitions: Sequence[Any], skip: bool) -> Tools:
    if not skip:
        check_size(definitions)
    schema_budget, tools, errors = SchemaBudget(), list[Tool](), list[UserError]()
    for definition in definitions:
        remaining = replace(schema_budget)  # a copy, because a skipped tool does not use the budget
        try:
            tools.append(_parse_tool(definition, remaining, tools) if skip else remote_tool(definition, remaining))
            schema_budget = remaining
        except UserError as error:
            errors.append(error)
    if errors and not (skip and tools):
        first = errors[0]
        total = f" {len(errors)} of the {len(definitions)} tools of {source} are invalid." if len(errors) > 1 else ""
        raise UserError(
            f"{first.what}{total}", f"{first.remedy} To skip invalid tools: --set host.skip_unsupported=true."
        )
    for reason in errors:
        print(printable(f"{source}: skipped a tool: {reason}"), file=sys.stderr)
    return Tools(tools)


def _parse_tool(definition: Any, schema_budget: SchemaBudget, others: Sequence[Tool]) -> Tool:
    """Return the tool of a definition. Raises UserError if it is invalid, or has the name of another tool."""
    check_size([definition])
    tool = remote_tool(definition, schema_budget)
    if any(tool.schema.name == other.schema.name for other in others):
        raise UserError(f"Two tools have the name {tool.schema.name!r}.", "Rename one of them.")
    check_decodable([tool.schema], Checkpoint.open("lander").tokenizer)
    return tool


# -- the cost of a tool -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ToolCost:
    """The cost of calling a tool.

    `closed`: all values come from finite sets. `passes`: number of forward passes for the most expensive call.
    `prefix_tokens`: number of tokens that describe the tool in the cached prompt. `hints`: how to reduce the cost.
    `checked_only`: the result of `rules_checked_after_decoding`.
    """

    name: str
    closed: bool
    passes: int
    prefix_tokens: int
    hints: tuple[str, ...]
    checked_only: Mapping[str, Sequence[str]]


def rules_checked_after_decoding(tool: ToolSchema) -> dict[str, list[str]]:
    """Return, by parameter, the schema keywords that are only checked after decoding, not enforced during decoding.

    The key `the call` has the keywords at the top of the schema, which concern several parameters.
    """
    free = {p.name: p.domain for p in tool.parameters if isinstance(p.domain, FreeDomain)}
    rules = {name: list(compile_mask(domain, f"Tool {tool.name}, {name}").checked) for name, domain in free.items()}
    if tool.rules is not None:
        rules["the call"] = [*tool.rules.written]
    return {name: listed for name, listed in rules.items() if listed}


def tool_costs(tools: Sequence[ToolSchema], tokenizer: STTokenizer, overflow: Overflow = "merge") -> list[ToolCost]:
    """Return the cost of each tool in a session with all of these tools.
    Raises UserError if a session would reject the tools, because a value cannot be decoded."""
    plan = compile_plan(tools, tokenizer, overflow=overflow)
    DecoderCore(plan, tokenizer, tokenizer.size)  # raises UserError if a grammar cannot be compiled
    budget = Budget()
    layouts = [Walker(plan, replace(budget, function_first=first)) for first in (False, True)]
    costs = []
    for index, tool in enumerate(tools):
        free = [domain for head in plan.heads if (domain := head.free.get(index)) is not None]
        passes = max(worst_call_cost(walker, index)[0] for walker in layouts)
        passes += max((domain.grid.longest if domain.grid else MAX_TOKENS for domain in free), default=0)
        hints = []
        for head, slot in zip(plan.heads[1:], plan.slots[index], strict=False):
            count = len(head.trie.needed_nodes(1 << index))
            if isinstance(slot.domain, ClosedDomain) and count > budget.per_head:
                hints.append(
                    f"{', '.join(p.name for p in slot.parameters)}: its {len(slot.domain.values)} values need {count} "
                    f"tokens in a forward pass, which allows {budget.per_head}. Use fewer values, or coarser steps."
                )
        size = len(tokenizer.encode(tool.canonical_json()))
        costs.append(ToolCost(tool.name, not free, passes, size, tuple(hints), rules_checked_after_decoding(tool)))
    return costs


def check_decodable(tools: Sequence[ToolSchema], tokenizer: STTokenizer) -> None:
    """Raise UserError if a tool has a value that cannot be decoded. Every session would reject such a tool."""
    for tool in tools:
        DecoderCore(compile_plan([tool], tokenizer), tokenizer, tokenizer.size)


# -- MCP servers ------------------------------------------------------------------------------------------------------


def list_mcp_tools(server: str) -> list[Any]:
    """Return the definitions of all tools of an MCP server. Raises UserError if the server does not return a list."""
    if not server.strip():
        raise UserError(f"{MCP} must be followed by a server's command or address.", HINT)
    try:
        import mcp  # noqa: F401
    except ImportError:
        raise UserError("The package mcp is not installed.", "Run `pip install 'rtcontrol[mcp]'`.") from None
    # Switch off the library's log, which would have a traceback for each line that is not an MCP message.
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    with tempfile.TemporaryFile("w+", errors="replace") as stderr:
        try:
            return asyncio.run(asyncio.wait_for(_list_pages(server, stderr), TIMEOUT_S))
        except Exception as raised:
            error: BaseException = raised
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            if isinstance(error, UserError):
                raise error from None
            why = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_CHARS]
            why = f"within {TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else why
            stderr.seek(0)
            if last := stderr.read().strip().rpartition("\n")[2].strip():
                why = f"{why}; the last line of its stderr: {last[:MAX_CHARS]}"
            raise UserError(f"{MCP}{server} did not return a list of tools ({why}).", HINT) from None


def mcp_http_client(server: str) -> Any:
    """Return an HTTP client for an MCP server, which does not follow redirects. It raises UserError if a response is
    compressed, or if all responses together have more than MAX_BYTES."""
    import httpx2

    remaining = MAX_BYTES

    class LimitedStream(httpx2.AsyncByteStream):
        def __init__(self, stream: httpx2.AsyncByteStream) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            nonlocal remaining
            async for part in self._stream:
                remaining -= len(part)
                if remaining < 0:
                    problem = f"{MCP}{server} sends more than {MAX_BYTES} bytes."
                    raise UserError(problem, "Use a server with fewer tools.")
                yield part

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def check_response(response: httpx2.Response) -> None:
        if packed := compression_of(response.headers):
            problem = f"{MCP}{server} sent a compressed response ({packed}), which the request did not allow."
            raise UserError(problem, "Let the server or its proxy respect accept-encoding: identity.")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = LimitedStream(response.stream)

    return httpx2.AsyncClient(headers=ENCODING, timeout=TIMEOUT_S, event_hooks={"response": [check_response]})


async def _list_pages(server: str, stderr: Any) -> list[Any]:
    """Return the tools on all pages of an MCP server's list. `stderr`: a file for the server's error output."""
    from mcp import Client, StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client

    transport: Any
    if server.startswith(("http://", "https://")):
        transport = streamable_http_client(server, http_client=mcp_http_client(server))
    else:
        command, *arguments = shlex.split(server)
        parameters = StdioServerParameters(command=command, args=arguments, encoding_error_handler="replace")
        transport = stdio_client(parameters, errlog=stderr)
    tools = list[Any]()
    cursor, read, size = None, 0, 0

    @asynccontextmanager
    async def connect() -> AsyncIterator[Any]:
        async with transport as (messages, requests):
            yield _ToolCollector(messages, tools), requests

    async with Client(connect()) as client:
        while len(tools) <= MAX_TOOLS and size <= MAX_BYTES:
            cursor = (await client.list_tools(cursor=cursor)).next_cursor
            if not cursor:
                return tools
            size += len(json.dumps(tools[read:]))
            read = len(tools)
    problem = f"{MCP}{server} lists more than {MAX_TOOLS} tools, or {MAX_BYTES} bytes."
    raise UserError(problem, "Use a server with a shorter list.")


class _ToolCollector:
    """A stream of an MCP server's messages that moves all listed tools to `tools`, as the server wrote them. Otherwise
    the library would reject a whole list because of one invalid tool."""

    def __init__(self, messages: Any, tools: list[Any]) -> None:
        self._messages, self._tools = messages, tools

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._messages.aclose()

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for received in self._messages:
            result = getattr(getattr(received, "message", None), "result", None)
            if result and isinstance(result.get("tools"), list):
                self._tools += result["tools"]
                result["tools"] = []
            yield received
