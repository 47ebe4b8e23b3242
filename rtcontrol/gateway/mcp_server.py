"""An MCP server through which a slow agent supervises a fast loop: reads its state, pauses, stops and instructs.

The server is a client of the run's page (`/view/ws`): no tick waits for the agent, and the run continues without it.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any
from urllib.parse import quote

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.server.mcpserver.resources import FunctionResource
from mcp.types import ToolAnnotations
from pydantic import Field
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from rtcontrol.loop.config import instruction_text
from rtcontrol.models import __version__
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.causes import CAUSES, Cause
from rtcontrol_client.wire.endpoint import SUBPROTOCOL
from rtcontrol_client.wire.pictures import format_of

PICTURE = "rtcontrol://picture"
INSTRUCTIONS = """A fixed-rate control loop calls functions many times a second by itself: you never call them.
Look with `status` and `misses`. `pause` and `stop` activate the safe call at once: use them whenever something looks
wrong. A stop is final. Where `instruct` is offered, say in one short sentence what to do, in the words that the model
was trained on (status shows its instruction now), and look at `status` again some seconds later."""
LOOK = ToolAnnotations(read_only_hint=True)
SAFE = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True)
ACTS = ToolAnnotations(read_only_hint=False, destructive_hint=True)
SETTLE_S = 5.0  # how long to wait until the run shows the effect of a message
HIDDEN = ("ticks", "number", "data", "seed", "proven", "refusal")  # fields of a snapshot that `status` leaves out
MIME = {"png": "image/png", "jpeg": "image/jpeg"}
STATE = {"pause": "paused", "stop": "stopped", "resume": "running"}
ANSWER_S = 3.0
RETRY_S = 0.5
MISSES = 256  # newest misses that are kept
MOST_BYTES = 1 << 24  # largest message, such as a picture


def server(view: ViewClient, may_instruct: bool) -> MCPServer:
    """Return the server with the tools `status`, `misses`, `pause`, `stop` and `deny`, and the resource
    `rtcontrol://picture`; if the agent `may_instruct`, also with `instruct`, `resume` and `confirm`."""
    title = "rtcontrol supervisor"
    mcp = MCPServer("rtcontrol", title=title, instructions=INSTRUCTIONS, version=__version__, log_level="WARNING")
    _looking(mcp, view)
    _safe(mcp, view)
    if may_instruct:
        _acting(mcp, view)
    return mcp


async def watch(view: ViewClient, serving: Coroutine[Any, Any, None]) -> None:
    """Keep the view connected for as long as the server runs."""
    async with asyncio.TaskGroup() as both:
        following = both.create_task(view.run())
        await serving
        following.cancel()


def _looking(mcp: MCPServer, view: ViewClient) -> None:
    @mcp.tool(annotations=LOOK)
    async def status() -> dict[str, Any]:
        """Return the current state: instruction, newest call with its observation, state (running, paused, stopped), a
        call that waits for confirmation (`asking`, with its number k), counts of ticks, misses by cause, latency,
        episodes, and the newest log lines. After the end of a run (`over`): the final result."""
        await view.look()
        known = view.snapshot if view.connected or view.snapshot.get("over") else {"why": view.why}
        shown = {name: value for name, value in known.items() if name not in HIDDEN}
        return {"connected": view.connected, "session": view.session, **shown}

    @mcp.tool(annotations=LOOK)
    async def misses(last: Annotated[int, Field(ge=1, le=256)] = 10) -> dict[str, Any]:
        """Return the newest ticks that were late or never started, each with its cause and the evidence."""
        return {"connected": view.connected, "misses": [*view.misses][-last:]}

    async def read() -> bytes:
        if view.picture is None or view.snapshot.get("picture_age_s", 0) is None:
            why = "the world has no picture, or its client sends none" if view.connected else view.why
            raise ResourceError(f"There is no picture: {why}.")
        picture.mime_type = MIME[format_of(view.picture) or "png"]
        return view.picture

    text = "A picture of the world, if available; `status` has the age of a picture from a client (picture_age_s)."
    picture = FunctionResource(uri=PICTURE, name="picture", description=text, mime_type=MIME["png"], fn=read)
    mcp.add_resource(picture)


def _safe(mcp: MCPServer, view: ViewClient) -> None:
    @mcp.tool(annotations=SAFE)
    async def pause() -> str:
        """Activate the safe call until a resume. May be repeated."""
        return await view.answer_to("pause")

    @mcp.tool(annotations=SAFE)
    async def stop() -> str:
        """End the run with its safe call. A stop is final: the run cannot be resumed."""
        return await view.answer_to("stop")

    @mcp.tool(annotations=SAFE)
    async def deny(k: int | None = None) -> str:
        """Deny the call that waits for confirmation; k is the number of the call in `status`."""
        return await view.answer_to("deny", k)


def _acting(mcp: MCPServer, view: ViewClient) -> None:
    @mcp.tool(annotations=ACTS)
    async def instruct(text: str) -> str:
        """Give a new instruction in one sentence, which is active from the next decision on."""
        return await view.instructed(text)

    @mcp.tool(annotations=ACTS)
    async def resume() -> str:
        """Let calls act again after a pause."""
        return await view.answer_to("resume")

    @mcp.tool(annotations=ACTS)
    async def confirm(k: int) -> str:
        """Confirm the call or instruction that waits for confirmation; k is its number in `status`."""
        return await view.answer_to("confirm", k)


# -- a client of `/view/ws` -------------------------------------------------------------------------------------------


class ViewClient:
    """A client of a run's page, which keeps the newest `snapshot` (empty at first) and the newest `misses`. `run`
    connects, and reconnects after a connection ends, also to a later run. Use one event loop for all methods.

    `session` selects a session of a server (None: the newest one at first, then always the same, so that no message
    goes to another robot); a run has a single view without a name.
    """

    def __init__(self, url: str, session: str | None = None, token: str | None = None) -> None:
        self.url, self.session = url.rstrip("/"), session
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self.snapshot: dict[str, Any] = {}
        self.picture: bytes | None = None
        self.misses: deque[dict[str, Any]] = deque(maxlen=MISSES)
        self.connected = False
        self.why = f"nothing answered at {self.url} yet"
        self._looked = asyncio.Event()
        self._socket: ClientConnection | None = None
        self._answers: deque[asyncio.Future[str]] = deque()  # answers arrive in the order of the messages

    async def run(self) -> None:
        """Connect, and reconnect when necessary, until cancelled."""
        while True:
            try:
                await self._follow()
            except InvalidStatus as refused:
                status = refused.response.status_code
                token = " (the server requires an access token: mcp.token_file)" if status == 401 else ""
                self.why = f"{self.url} refused with {status}{token}"
            except ConnectionClosed:
                pass  # `_ended` has noted why
            except (OSError, WebSocketException, ValueError, LookupError) as error:
                self.why = f"{self.url} does not answer ({type(error).__name__})"
            self._looked.set()
            await asyncio.sleep(RETRY_S)

    async def look(self) -> None:
        """Wait for the first snapshot or connection error."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._looked.wait(), ANSWER_S)

    async def answer_to(self, word: str, k: int | None = None) -> str:
        """Send pause, resume, stop, confirm or deny; return the answer and the run's state within `SETTLE_S`. Raises
        ToolError without a connection."""
        answer = await self._ask({"say": word, "k": k})
        wanted = STATE.get(word)
        await self._until(lambda: wanted is None or not self.connected or self.snapshot.get("state") == wanted)
        return f"{answer}; the run{self._of()} is {self.snapshot.get('state', 'over')}"

    async def instructed(self, text: str) -> str:
        """Send an instruction; return a sentence that says whether the run accepted it within `SETTLE_S`. Raises
        ToolError without a connection."""
        try:
            answer = await self._ask({"instruct": instruction_text(text)})
        except UserError as error:
            raise ToolError(str(error)) from None
        active = lambda: self.snapshot.get("proven") == text.strip()  # noqa: E731
        refused = lambda: (self.snapshot.get("refusal") or (None,))[0] == text.strip()  # noqa: E731
        await self._until(lambda: active() or refused())
        if not active() and refused():
            return f"not taken{self._of()}: {self.snapshot['refusal'][1]}"
        return f"{answer}; active{self._of()}: {self.snapshot.get('instruction')!r}"

    def _of(self) -> str:
        """Return the session's name with a space in front; empty for a run without sessions."""
        return "" if self.session is None else f" {self.session}"

    async def _until(self, done: Callable[[], bool]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while not done():
                    await asyncio.sleep(0.02)

    async def _follow(self) -> None:
        """Connect, and process messages until the connection ends."""
        address = f"ws{self.url.removeprefix('http')}/view/ws?session={quote(self.session or '')}"
        options: Any = {"additional_headers": self._headers, "subprotocols": [SUBPROTOCOL], "max_size": MOST_BYTES}
        async with connect(address, proxy=None, **options) as socket:
            self._socket = socket
            self.misses.clear()  # the newest ticks come again
            try:
                async for message in socket:
                    self._take(message)
            finally:
                self._ended(socket)

    def _take(self, message: str | bytes) -> None:
        if isinstance(message, bytes):
            self.picture = message
            return
        fields = json.loads(message)
        if "answer" in fields:
            if self._answers and not (first := self._answers.popleft()).done():
                first.set_result(str(fields["answer"]))
            return
        self.session = fields.get("session")
        self.snapshot, self.connected = fields, True
        self._looked.set()
        self.misses.extend(miss for tick in fields["ticks"] for miss in off_time(tick))

    def _ended(self, socket: ClientConnection) -> None:
        over = bool(self.snapshot.get("over")) and self.connected
        self.connected, self._socket, self.picture = False, None, None
        self.why = "the run is over" if over else (socket.close_reason or "the connection ended")
        while self._answers:
            if not (waiting := self._answers.popleft()).done():
                waiting.set_exception(ToolError(f"The message was not received: {self.why}. Look at `status`."))

    async def _ask(self, message: dict[str, Any]) -> str:
        """Send a message and return the answer. Raises ToolError without a connection."""
        if self._socket is None:
            raise ToolError(f"There is no connection: {self.why}. Look at `status`; the safe call acts by itself.")
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._socket.send(json.dumps(message))
                return await answer
        except (TimeoutError, WebSocketException) as error:
            # The queue keeps this place, so that a late answer is not taken for the next one.
            problem = f"No answer within {ANSWER_S:g} s ({type(error).__name__})."
            raise ToolError(f"{problem} Look at `status`: the command may have been carried out.") from None


def off_time(tick: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the misses of a tick: skipped releases before the tick (`k` is the first of `releases`), and the tick
    itself if it was late, each with cause and meaning."""
    if skipped := tick.get("skipped", 0):
        why = {name: tick.get(f"skip_{name}") for name in ("cause", "subcause", "evidence")}
        yield {"k": tick["k"] - skipped, "kind": "skipped", "releases": skipped, **why, **_meaning(why["cause"])}
    if "cause" in tick:
        names = ("k", "kind", "cause", "subcause", "evidence", "latency_ms", "decide_ms")
        yield {name: tick[name] for name in names if name in tick} | {"releases": 1, **_meaning(tick["cause"])}


def _meaning(cause: Any) -> dict[str, Any]:
    return {"meaning": CAUSES[Cause(cause)].meaning if cause in CAUSES else None}
