"""The list of an MCP server's tools: a command that is started and ended, or an address."""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
import tempfile
from collections.abc import AsyncIterator
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.models.web import ENCODING, packed_by

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
