"""An MCP server with which a language-model agent supervises a control loop: it can observe, pause, stop and instruct.

The server is a client of the run's live view (`/view/ws`). No tick waits for the agent, and a run works without it.
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
from rtcontrol_client.wire.pictures import detect_format

PICTURE = "rtcontrol://picture"
INSTRUCTIONS = """A control loop calls functions many times a second by itself. You never call these functions.
Use `status` and `misses` to observe the loop. `pause` and `stop` execute the safe call at once: use them whenever
something looks wrong. A stop is final. If there is a tool `instruct`, send it one short sentence with the task, in the
words that the model was trained on (`status` shows the current instruction). Check `status` some seconds later."""
READ_ONLY = ToolAnnotations(read_only_hint=True)
SAFE = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True)
ACTING = ToolAnnotations(read_only_hint=False, destructive_hint=True)
SETTLE_S = 5.0  # seconds to wait until the run's state shows the effect of a command
HIDDEN_FIELDS = ("ticks", "number", "data", "seed", "proven", "refusal")  # `status` does not return these
MIME = {"png": "image/png", "jpeg": "image/jpeg"}
STATE_AFTER = {"pause": "paused", "stop": "stopped", "resume": "running"}
ANSWER_S = 3.0
RETRY_S = 0.5
MISSES = 256  # number of stored misses; older ones are dropped
MAX_BYTES = 1 << 24  # maximum bytes of an accepted message, such as a picture


def create_server(view: ViewClient, may_instruct: bool) -> MCPServer:
    """Return an MCP server with the tools `status`, `misses`, `pause`, `stop` and `deny`, and the resource
    `rtcontrol://picture`. `may_instruct`: add the tools `instruct`, `resume` and `confirm`."""
    title = "rtcontrol supervisor"
    mcp = MCPServer("rtcontrol", title=title, instructions=INSTRUCTIONS, version=__version__, log_level="WARNING")
    _add_read_tools(mcp, view)
    _add_safe_tools(mcp, view)
    if may_instruct:
        _add_acting_tools(mcp, view)
    return mcp


async def serve_connected(view: ViewClient, serving: Coroutine[Any, Any, None]) -> None:
    """Run the MCP server (the coroutine `serving`) until it ends, with a connected view."""
    async with asyncio.TaskGroup() as tasks:
        connection = tasks.create_task(view.run())
        await serving
        connection.cancel()


def _add_read_tools(mcp: MCPServer, view: ViewClient) -> None:
    @mcp.tool(annotations=READ_ONLY)
    async def status() -> dict[str, Any]:
        """Return the current state: the instruction, the newest call with its observation, the state (running, paused,
        stopped), the call that waits for confirmation (`asking`, with its number k), counts of ticks, misses by cause,
        latency, episodes, and the newest log lines. When the run has ended (`over`), return the final result."""
        await view.wait_for_snapshot()
        known = view.snapshot if view.connected or view.snapshot.get("over") else {"why": view.problem}
        shown = {name: value for name, value in known.items() if name not in HIDDEN_FIELDS}
        return {"connected": view.connected, "session": view.session, **shown}

    @mcp.tool(annotations=READ_ONLY)
    async def misses(last: Annotated[int, Field(ge=1, le=256)] = 10) -> dict[str, Any]:
        """Return the newest ticks that were late or did not start, each with the cause and its evidence."""
        return {"connected": view.connected, "misses": [*view.misses][-last:]}

    async def read() -> bytes:
        if view.picture is None or view.snapshot.get("picture_age_s", 0) is None:
            reason = "the world has no picture, or its client sends none" if view.connected else view.problem
            raise ResourceError(f"There is no picture: {reason}.")
        picture.mime_type = MIME[detect_format(view.picture) or "png"]
        return view.picture

    text = "A picture of the world. `picture_age_s` in `status` is the age of a picture that a client has sent."
    picture = FunctionResource(uri=PICTURE, name="picture", description=text, mime_type=MIME["png"], fn=read)
    mcp.add_resource(picture)


def _add_safe_tools(mcp: MCPServer, view: ViewClient) -> None:
    @mcp.tool(annotations=SAFE)
    async def pause() -> str:
        """Execute the safe call, and withhold all other calls until a resume. May be repeated."""
        return await view.send_command("pause")

    @mcp.tool(annotations=SAFE)
    async def stop() -> str:
        """End the run with its safe call. A stop is final: the run cannot resume."""
        return await view.send_command("stop")

    @mcp.tool(annotations=SAFE)
    async def deny(k: int | None = None) -> str:
        """Deny the call that waits for confirmation; k is its number in `status`."""
        return await view.send_command("deny", k)


def _add_acting_tools(mcp: MCPServer, view: ViewClient) -> None:
    @mcp.tool(annotations=ACTING)
    async def instruct(text: str) -> str:
        """Send a new instruction, one sentence. It is active from the next decision on."""
        return await view.send_instruction(text)

    @mcp.tool(annotations=ACTING)
    async def resume() -> str:
        """Continue the run after a pause."""
        return await view.send_command("resume")

    @mcp.tool(annotations=ACTING)
    async def confirm(k: int) -> str:
        """Confirm the call or instruction that waits for confirmation; k is its number in `status`."""
        return await view.send_command("confirm", k)


class ViewClient:
    """A client of a run's live view. It stores the newest `snapshot` (empty at first) and the newest `misses`. `run`
    connects, and connects again after the end of a connection, even to a later run. Use one event loop for all methods.

    `session`: the name of a server's session. If it is None, the client uses the server's newest session, and keeps
    this session, so no command is sent to another robot. A run without a server has no session name.
    """

    def __init__(self, url: str, session: str | None = None, token: str | None = None) -> None:
        self.url, self.session = url.rstrip("/"), session
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self.snapshot: dict[str, Any] = {}
        self.picture: bytes | None = None
        self.misses: deque[dict[str, Any]] = deque(maxlen=MISSES)
        self.connected = False
        self.problem = f"there was no response from {self.url} yet"  # why the client is not connected
        self._first_result = asyncio.Event()
        self._socket: ClientConnection | None = None
        self._answers: deque[asyncio.Future[str]] = deque()  # the answers arrive in the order of the messages

    async def run(self) -> None:
        """Connect, and connect again after an error or the end of a connection, until the task is cancelled."""
        while True:
            try:
                await self._receive_messages()
            except InvalidStatus as refused:
                status = refused.response.status_code
                token = " (the server requires an access token: mcp.token_file)" if status == 401 else ""
                self.problem = f"{self.url} refused the connection with status {status}{token}"
            except ConnectionClosed:
                pass  # `_disconnected` has set `problem`
            except (OSError, WebSocketException, ValueError, LookupError) as error:
                self.problem = f"{self.url} does not answer ({type(error).__name__})"
            self._first_result.set()
            await asyncio.sleep(RETRY_S)

    async def wait_for_snapshot(self) -> None:
        """Wait for the first snapshot or the first connection error, at most `ANSWER_S` seconds."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._first_result.wait(), ANSWER_S)

    async def send_command(self, command: str, k: int | None = None) -> str:
        """Send pause, resume, stop, confirm or deny. Return the answer and the run's new state, for which this waits at
        most `SETTLE_S`. Raises ToolError without a connection."""
        answer = await self._request({"say": command, "k": k})
        target = STATE_AFTER.get(command)
        await self._wait_until(lambda: target is None or not self.connected or self.snapshot.get("state") == target)
        return f"{answer}; the run{self._session_suffix()} is {self.snapshot.get('state', 'over')}"

    async def send_instruction(self, text: str) -> str:
        """Send an instruction. Return a sentence about whether the run accepted it within `SETTLE_S` seconds. Raises
        ToolError without a connection."""
        try:
            answer = await self._request({"instruct": instruction_text(text)})
        except UserError as error:
            raise ToolError(str(error)) from None
        active = lambda: self.snapshot.get("proven") == text.strip()  # noqa: E731
        refused = lambda: (self.snapshot.get("refusal") or (None,))[0] == text.strip()  # noqa: E731
        await self._wait_until(lambda: active() or refused())
        if not active() and refused():
            return f"refused{self._session_suffix()}: {self.snapshot['refusal'][1]}"
        return f"{answer}; active{self._session_suffix()}: {self.snapshot.get('instruction')!r}"

    def _session_suffix(self) -> str:
        """Return a space and the session's name, or an empty string for a run without a session."""
        return "" if self.session is None else f" {self.session}"

    async def _wait_until(self, done: Callable[[], bool]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while not done():
                    await asyncio.sleep(0.02)

    async def _receive_messages(self) -> None:
        """Connect, and process messages until the connection ends."""
        address = f"ws{self.url.removeprefix('http')}/view/ws?session={quote(self.session or '')}"
        options: Any = {"additional_headers": self._headers, "subprotocols": [SUBPROTOCOL], "max_size": MAX_BYTES}
        async with connect(address, proxy=None, **options) as socket:
            self._socket = socket
            self.misses.clear()  # the first snapshot has the newest ticks again
            try:
                async for message in socket:
                    self._process_message(message)
            finally:
                self._disconnected(socket)

    def _process_message(self, message: str | bytes) -> None:
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
        self._first_result.set()
        self.misses.extend(miss for tick in fields["ticks"] for miss in misses_of_tick(tick))

    def _disconnected(self, socket: ClientConnection) -> None:
        over = bool(self.snapshot.get("over")) and self.connected
        self.connected, self._socket, self.picture = False, None, None
        self.problem = "the run is over" if over else (socket.close_reason or "the connection ended")
        while self._answers:
            if not (waiting := self._answers.popleft()).done():
                waiting.set_exception(ToolError(f"The command was not received: {self.problem}. Check `status`."))

    async def _request(self, message: dict[str, Any]) -> str:
        """Send a message and return the answer. Raises ToolError without a connection or an answer."""
        if self._socket is None:
            hint = "Check `status`. The loop executes its safe call without your help."
            raise ToolError(f"There is no connection: {self.problem}. {hint}")
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._socket.send(json.dumps(message))
                return await answer
        except (TimeoutError, WebSocketException) as error:
            # Leave `answer` in the queue. Otherwise a late answer would be taken for the answer to the next message.
            problem = f"No answer within {ANSWER_S:g} s ({type(error).__name__})."
            raise ToolError(f"{problem} Check `status`: the command may have been executed.") from None


def misses_of_tick(tick: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the misses of a tick, each with its cause and the cause's meaning. Releases that were skipped before the
    tick are one miss (`k`: the first release, `releases`: their number). The tick itself is a miss if it was late."""
    if skipped := tick.get("skipped", 0):
        why = {name: tick.get(f"skip_{name}") for name in ("cause", "subcause", "evidence")}
        yield {"k": tick["k"] - skipped, "kind": "skipped", "releases": skipped, **why, **_meaning_of(why["cause"])}
    if "cause" in tick:
        names = ("k", "kind", "cause", "subcause", "evidence", "latency_ms", "decide_ms")
        yield {name: tick[name] for name in names if name in tick} | {"releases": 1, **_meaning_of(tick["cause"])}


def _meaning_of(cause: Any) -> dict[str, Any]:
    return {"meaning": CAUSES[Cause(cause)].meaning if cause in CAUSES else None}
