"""An MCP server by which a slow agent supervises a fast loop: it looks, pauses, stops, and instructs where it may.

It is a client of the run's page (`/view/ws`): no tick waits for it, and the run flies on where it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.server.mcpserver.resources import Resource
from mcp.types import ToolAnnotations
from pydantic import Field, PrivateAttr

from rtcontrol.gateway.view_client import ViewClient
from rtcontrol.loop.config import instruction_text
from rtcontrol.models import __version__
from rtcontrol.models.errors import UserError
from rtcontrol_client.wire.pictures import format_of

PICTURE = "rtcontrol://picture"
INSTRUCTIONS = """A fixed-rate control loop calls functions many times a second by itself: you never make a call of its.
Look with `status`, `misses` and `report`. `pause` and `stop` bring the safe call into force at once: use them whenever
something looks wrong. A stop is final. Where `instruct` is offered, say in one short sentence what to do, in the words
that the model was taught (status shows its instruction now), and look at `status` again some seconds later."""
LOOK = ToolAnnotations(read_only_hint=True)
SAFE = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True)
ACTS = ToolAnnotations(read_only_hint=False, destructive_hint=True)
SETTLE_S = 2.0  # a run's page tells what a word came to with its next lines
SHOWN = (
    *("env", "agent", "model", "hz", "deadline_ms", "phase", "state", "instruction", "call", "confidence", "text"),
    *("asking", "safe_calls", "counts", "causes", "episodes", "successes", "log"),
)
MIME = {"png": "image/png", "jpeg": "image/jpeg"}
STATE = {"pause": "paused", "stop": "stopped", "resume": "running"}


def server(view: ViewClient, may_instruct: bool) -> MCPServer:
    """Tools `status`, `misses`, `report`, `pause`, `stop`, `deny`, and the resource `rtcontrol://picture`; where it
    `may_instruct` also `instruct`, `resume` and `confirm`."""
    made = MCPServer(
        "rtcontrol",
        title="rtcontrol supervisor",
        instructions=INSTRUCTIONS,
        version=__version__,
        log_level="WARNING",
    )
    _looking(made, view)
    _safe(made, view)
    if may_instruct:
        _acting(made, view)
    return made


async def watch(view: ViewClient, serving: Awaitable[None]) -> None:
    """Follow the view for as long as it is served."""
    both = [asyncio.ensure_future(view.run()), asyncio.ensure_future(serving)]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in both:
            one.cancel()
        results = await asyncio.gather(*both, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


def _looking(made: MCPServer, view: ViewClient) -> None:
    @made.tool(annotations=LOOK)
    async def status() -> dict[str, Any]:
        """What goes on now: instruction, newest call and what it was decided by, state (running, paused, stopped),
        whether a call waits for a yes (`asking`, with its number k), counts of ticks, the newest lines of the log."""
        await view.look()
        return status_of(view)

    @made.tool(annotations=LOOK)
    async def misses(last: Annotated[int, Field(ge=1, le=256)] = 10) -> dict[str, Any]:
        """The newest ticks that were late, or not begun at all, each with its one cause and the evidence for it."""
        return {"connected": view.connected, "misses": [*view.misses][-last:]}

    @made.tool(annotations=LOOK)
    async def report() -> dict[str, Any]:
        """What the run came to so far: releases, ticks on time, misses by cause, latency, episodes."""
        await view.look()
        told = view.snapshot
        if told is None:
            raise ToolError(f"Nothing was seen yet: {view.why}.")
        names = ("counts", "causes", "subcauses", "latency_ms", "episodes", "successes", "judged")
        return {"over": bool(told.get("over")), **{name: told.get(name) for name in names}}

    made.add_resource(PictureResource.of(view))


class PictureResource(Resource):
    """The newest picture, of the type that it is when it is read."""

    _view: ViewClient = PrivateAttr()

    @classmethod
    def of(cls, view: ViewClient) -> PictureResource:
        told = "The world, where it has a picture; status has the age of one that a client sent (picture_age_s)."
        made = cls(uri=PICTURE, name="picture", description=told, mime_type=MIME["png"])
        made._view = view
        return made

    async def read(self) -> bytes:
        """Raises ResourceError where there is none."""
        view = self._view
        gone = (view.snapshot or {}).get("picture_age_s", 0) is None
        if view.picture is None or gone:
            why = view.why if not view.connected else "the world has none, or its client sends none"
            raise ResourceError(f"There is no picture: {why}.")
        self.mime_type = MIME[format_of(view.picture) or "png"]
        return view.picture


def _safe(made: MCPServer, view: ViewClient) -> None:
    @made.tool(annotations=SAFE)
    async def pause() -> str:
        """Bring the safe call into force now, until a resume. Harmless to repeat."""
        return await answer_to(view, "pause")

    @made.tool(annotations=SAFE)
    async def stop() -> str:
        """End the run with its safe call. Final: it cannot be resumed."""
        return await answer_to(view, "stop")

    @made.tool(annotations=SAFE)
    async def deny(k: int | None = None) -> str:
        """Say no to the call that waits for a yes; k is its number in `status`."""
        return await answer_to(view, "deny", k)


def _acting(made: MCPServer, view: ViewClient) -> None:
    @made.tool(annotations=ACTS)
    async def instruct(text: str) -> str:
        """What to do from now on, in one sentence. It is in force from the next decision on."""
        try:
            answer = await view.instruct(instruction_text(text))
        except UserError as error:
            raise ToolError(str(error)) from None
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while (view.snapshot or {}).get("proven") != text.strip():
                    if (refusal := (view.snapshot or {}).get("refusal")) and refusal[0] == text.strip():
                        return f"not taken{of(view)}: {refusal[1]}"
                    await asyncio.sleep(0.02)
        return f"{answer}; in force{of(view)}: {(view.snapshot or {}).get('instruction')!r}"

    @made.tool(annotations=ACTS)
    async def resume() -> str:
        """After a pause: calls act again."""
        return await answer_to(view, "resume")

    @made.tool(annotations=ACTS)
    async def confirm(k: int) -> str:
        """Say yes to the call, or the instruction, that waits for it: k is the number of the question in `status`."""
        return await answer_to(view, "confirm", k)


async def answer_to(view: ViewClient, word: str, k: int | None = None) -> str:
    """The answer, and the state that it led to. Raises ToolError where nobody hears it."""
    try:
        answer = await view.say(word, k)
    except UserError as error:
        raise ToolError(str(error)) from None
    wanted = STATE.get(word)
    with suppress(TimeoutError):
        async with asyncio.timeout(SETTLE_S):
            while wanted is not None and view.connected and (view.snapshot or {}).get("state") != wanted:
                await asyncio.sleep(0.02)
    seen = (view.snapshot or {}).get("state", "over")
    if view.connected and wanted is not None and seen != wanted:
        told = f"the run{of(view)} heard it, and is not seen to be {wanted} within {SETTLE_S:g} s"
        return f"{answer}; {told}: look at the status"
    return f"{answer}; the run{of(view)} is {seen}"


def of(view: ViewClient) -> str:
    """Of which session, where there are some."""
    return "" if view.session is None else f" {view.session}"


def status_of(view: ViewClient) -> dict[str, Any]:
    """Without what only a page draws."""
    told = view.snapshot
    if told is None or not view.connected:
        return {"connected": False, "session": view.session, "why": view.why} | (
            {} if told is None else {"over": bool(told.get("over"))}
        )
    shown = {name: told.get(name) for name in SHOWN}
    shown |= {name: told[name] for name in ("picture_age_s",) if name in told}
    return {"connected": True, "session": view.session, **shown}
