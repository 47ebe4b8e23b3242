"""The list of an MCP server's tools: a command that is started and ended, or an address. Whatever it sends, what is
kept of it is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import select
import shlex
import threading
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Self

from rtcontrol.models.errors import UserError
from rtcontrol.models.web import ENCODING, packed_by

MOST_BYTES = 1 << 24  # of all answers for one list of tools


def http_client(server: str, timeout_s: float) -> Any:
    """An `httpx2.AsyncClient` for MCP's transport; reading raises UserError for answers that are packed or too long."""
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
                    raise UserError(
                        f"{server} answers more than {MOST_BYTES} bytes.", "Give a server with fewer tools."
                    )
                yield part

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def look(response: httpx2.Response) -> None:
        if packed := packed_by(response.headers):
            told = f"{server} answers packed ({packed}), though it was asked for answers as they are."
            raise UserError(told, "Let it, or the proxy before it, heed accept-encoding: identity.")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = Counted(response.stream)

    return httpx2.AsyncClient(headers=ENCODING, timeout=timeout_s, event_hooks={"response": [look]})


MCP = "mcp:"
TIMEOUT_S = 30.0
# Of a list, of the messages about it, of what its server says beside it, and of what is told of an error.
MAX_TOOLS, MAX_MESSAGES, SAID_BYTES, TOLD = 1024, 4096, 65_536, 400
REMEDY = "Give the command that starts an MCP server, or the address of one (many end in /mcp)."


def listed(server: str, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """The definitions of all tools of a server; UserError where it gives no list. What a command writes to stderr is
    told where it gave none."""
    if not server.strip():
        raise UserError(f"{MCP} names no server.", REMEDY)
    try:
        import mcp  # noqa: F401
    except ImportError:
        raise UserError("The package mcp is not installed.", "Run `pip install 'rtcontrol[mcp]'`.") from None
    heard = _Heard()
    with _Said() as said, _Strays() as strays:
        try:
            found = asyncio.run(asyncio.wait_for(_ask(server, said, heard), TIMEOUT_S))
        except BaseException as error:
            if isinstance(error, UserError | KeyboardInterrupt | SystemExit):
                raise
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            if isinstance(error, UserError):
                raise error from None
            why, remedy = " ".join(f"{type(error).__name__}: {error}".split())[:TOLD], REMEDY
            if heard.count > MAX_MESSAGES:
                why, remedy = f"but more than {MAX_MESSAGES} messages", "Give one that answers what it is asked."
            elif isinstance(error, TimeoutError):
                why, remedy = f"within {TIMEOUT_S:g} s", "Start it by hand to see what it says."
            if (last := said.last_line()) is not None:
                why = f"{why}; it said: {last[:TOLD]}"
            raise UserError(f"{MCP}{server} gave no list of tools ({why}).", remedy) from None
    if strays.count:
        say(f"{MCP}{server}: {strays.count} of its lines on stdout are no messages of MCP: let it log to stderr.")
    return found


async def _ask(server: str, said: _Said, heard: _Heard) -> list[dict[str, Any]]:
    from mcp import Client, StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client

    found: list[dict[str, Any]] = []
    left = MOST_BYTES
    async with contextlib.AsyncExitStack() as stack:
        if server.startswith(("http://", "https://")):
            http = await stack.enter_async_context(http_client(f"{MCP}{server}", TIMEOUT_S))
            place: Any = streamable_http_client(server, http_client=http)
        else:
            command, *arguments = shlex.split(server)
            given = StdioServerParameters(command=command, args=arguments, encoding_error_handler="replace")
            place = stdio_client(given, errlog=said.file)
        client = await stack.enter_async_context(Client(heard.of(place)))
        cursor: str | None = None
        seen: set[str] = set()
        while True:
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools:
                described = {"name": tool.name, "description": tool.description or ""}
                found.append({**described, "parameters": dict(tool.input_schema)})
                left -= len(json.dumps(found[-1]))
            cursor = page.next_cursor
            if left < 0:
                raise UserError(
                    f"{MCP}{server} lists tools of more than {MOST_BYTES} bytes.", "Give a server with fewer."
                )
            if not cursor:
                return found
            if len(found) > MAX_TOOLS or cursor in seen or not page.tools:
                what = f"{MCP}{server} lists more than {MAX_TOOLS} tools, or the same page again."
                raise UserError(what, "Give a server whose list has an end.")
            seen.add(cursor)


class _Heard:
    """Counts what comes from a server. After `MAX_MESSAGES` it is over: the library answers each request of a server,
    and keeps the answers that it does not take."""

    def __init__(self) -> None:
        self.count = 0

    @contextlib.asynccontextmanager
    async def of(self, place: Any) -> AsyncIterator[tuple[Any, Any]]:
        async with place as (incoming, outgoing):
            yield _Incoming(incoming, self), outgoing


class _Incoming:
    """A transport's stream of messages, up to where it is over."""

    def __init__(self, stream: Any, heard: _Heard) -> None:
        self._stream, self._heard = stream, heard

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        message = await self._stream.__anext__()
        self._heard.count += 1
        if self._heard.count > MAX_MESSAGES:
            raise StopAsyncIteration
        return message

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._stream.__aexit__(*raised)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Said:
    """What a command writes to stderr, by way of `file`: its last `SAID_BYTES` are kept, in memory alone."""

    def __init__(self) -> None:
        self._reading, writing = os.pipe()
        self.file = os.fdopen(writing, "w")
        self._last = b""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, name="mcp-stderr", daemon=True)

    def last_line(self) -> str | None:
        self._end()
        lines = self._last.decode("utf-8", "replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), None)

    def _read(self) -> None:
        # What is there at the end is read, too; a child that lives on may hold its end open.
        while (ready := select.select([self._reading], [], [], 0.05)[0]) or not self._over.is_set():
            if ready:
                text = os.read(self._reading, SAID_BYTES)
                self._last = (self._last + text)[-SAID_BYTES:]
                if not text:
                    return

    def _end(self) -> None:
        self.file.close()
        self._over.set()
        self._thread.join(1.0)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._end()
        os.close(self._reading)


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
