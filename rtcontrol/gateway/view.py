"""Serve the live view (`/view/ws`): send viewers the state of a run or session, and execute their commands.

`python -m rtcontrol.gateway.view PORT` serves the page of one run in a separate process. The run writes its state to
the process's stdin, one JSON object per line. The process writes its address and then viewers' commands to stdout in
the same format, and ends when its stdin is closed. It also renders the picture of a local world from the observed data,
because this would delay the loop. The picture of a remote world comes from the client.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect

from rtcontrol.envs.pictures import encode_png, find_painter
from rtcontrol.envs.remote import RemoteEnvironment
from rtcontrol.gateway.gate import with_access_checks
from rtcontrol.gateway.http_server import ABORT, HTTPServer
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.loop.config import instruction_text
from rtcontrol.loop.operator import COMMANDS
from rtcontrol.loop.operator_control import run_typed_command
from rtcontrol.models.errors import UserError
from rtcontrol.run.live import state_for_page
from rtcontrol.serve.session import SessionThread
from rtcontrol.serve.session_manager import SessionManager
from rtcontrol.telemetry.account import LIVE_TICKS
from rtcontrol_client.wire.endpoint import SUBPROTOCOL

log = logging.getLogger("rtcontrol.gateway")

SENT = "sent"  # the answer to an instruction that was passed to the run
SEND_INTERVAL_S = 0.25
MIN_COMMAND_INTERVAL_S = 0.02  # minimum seconds between two commands of a viewer
SEND_TIMEOUT_S = 5.0  # a viewer that reads nothing for this long is disconnected
MAX_VIEWERS = 16  # maximum number of viewers that only watch, and of viewers that have sent messages
NICE = 10  # low priority: on a machine with few cores, this process must not delay the loop
POLICY, INTERNAL, TRY_LATER = 1008, 1011, 1013
PAGE = Path(__file__).parent / "page"
CLIENT = PAGE.with_name("javascript")  # in a source tree, this is a link to bridges/javascript/src


def page_routes(html: bool = False) -> list[BaseRoute]:
    """Return the routes of static files: the JavaScript client, and the pages. `html`: serve index.html at `/`."""
    return [
        Mount("/client", StaticFiles(directory=CLIENT)),
        Mount("/", StaticFiles(directory=PAGE, html=html)),
    ]


def view_routes(
    find: Callable[[str], WatchedSession | PageState | None], sessions: Callable[[], list[dict[str, Any]]]
) -> list[BaseRoute]:
    """Return the routes `/view/sessions` and `/view/ws`. `sessions` returns the list of sessions. `find` returns the
    session with a name; for an empty name, it returns the newest session, or the only run."""
    slots = ViewerSlots()

    async def listed(request: Request) -> Response:
        return JSONResponse(sessions())

    async def ws(socket: WebSocket) -> None:
        await socket.accept(SUBPROTOCOL if SUBPROTOCOL in socket.scope["subprotocols"] else None)
        watched = find(socket.query_params.get("session", ""))
        if watched is None:
            await socket.close(POLICY, "there is no such session")
            return
        slots.add(socket)
        showing = asyncio.create_task(_send_snapshots(socket, watched))
        try:
            with contextlib.suppress(WebSocketDisconnect, RuntimeError, KeyError):  # binary messages raise KeyError
                while True:
                    answer = _run_command(watched, await socket.receive_text())
                    slots.mark_active(socket)
                    await socket.send_text(json.dumps({"answer": answer}))
                    await asyncio.sleep(MIN_COMMAND_INTERVAL_S)  # limits the rate of commands
        finally:
            slots.remove(socket)
            showing.cancel()
            with contextlib.suppress(BaseException):
                await showing

    return [Route("/view/sessions", listed), WebSocketRoute("/view/ws", ws)]


class ViewerSlots:
    """The limit of connected viewers: MAX_VIEWERS that only watch, and MAX_VIEWERS that have sent a message (active).

    If a group is full, a new viewer disconnects the viewer of the group that has been silent for longest. So an
    operator can always connect and act."""

    def __init__(self) -> None:
        self._silent: dict[Any, None] = {}  # in the order of their arrival
        self._active: dict[Any, None] = {}  # in the order of their last messages
        self._closing: set[asyncio.Task[None]] = set()

    def add(self, viewer: Any) -> None:
        """Add a new viewer."""
        self._append(self._silent, viewer)

    def mark_active(self, viewer: Any) -> None:
        """Move a viewer that has sent a message to the active viewers, unless it is being disconnected."""
        if viewer in self._silent or viewer in self._active:
            self.remove(viewer)
            self._append(self._active, viewer)

    def remove(self, viewer: Any) -> None:
        self._silent.pop(viewer, None)
        self._active.pop(viewer, None)

    def _append(self, group: dict[Any, None], viewer: Any) -> None:
        group[viewer] = None
        if len(group) > MAX_VIEWERS:
            longest = next(iter(group))
            del group[longest]
            task = asyncio.create_task(_close_viewer(longest))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


async def _close_viewer(socket: WebSocket) -> None:
    with contextlib.suppress(TimeoutError, RuntimeError, WebSocketDisconnect):
        await asyncio.wait_for(socket.close(TRY_LATER, "too many viewers"), SEND_TIMEOUT_S)


def as_json(value: Any) -> str:
    """Return a value as JSON. Replace NaN and infinity, which browsers cannot read, by null."""
    text = json.dumps(value, default=str)
    return json.dumps(json.loads(text, parse_constant=lambda _: None)) if "NaN" in text or "Infinity" in text else text


async def _send_snapshots(socket: WebSocket, watched: WatchedSession | PageState) -> None:
    number, over, shown = 0, False, None
    try:
        while not over:
            now = watched.snapshot(number)
            number, over = now["number"], bool(now.get("over"))
            await asyncio.wait_for(socket.send_text(as_json(now)), SEND_TIMEOUT_S)
            picture = await asyncio.to_thread(watched.picture)
            if picture is not None and picture is not shown:
                await asyncio.wait_for(socket.send_bytes(picture), SEND_TIMEOUT_S)
            shown = picture
            await asyncio.sleep(SEND_INTERVAL_S)
        await asyncio.wait_for(socket.close(), SEND_TIMEOUT_S)
    except (TimeoutError, WebSocketDisconnect, RuntimeError):  # a viewer that does not read would stay connected
        socket.scope["extensions"].get(ABORT, lambda: None)()
    except Exception:
        log.exception("the live view failed")
        await socket.close(INTERNAL)


def _run_command(watched: WatchedSession | PageState, text: str) -> str:
    """Execute a viewer's message, such as `{"say": "confirm", "k": 12}` or `{"instruct": "..."}`. Return the answer."""
    try:
        message = json.loads(text)
        command, k, instruction = message.get("say"), message.get("k"), message.get("instruct")
        if command in COMMANDS and (k is None or (isinstance(k, int) and not isinstance(k, bool))):
            return watched.command(command, k)
        if isinstance(instruction, str) and instruction.strip():
            return watched.instruct(instruction.strip())
        return f"Invalid message: send `say` with one of {', '.join(COMMANDS)}, or `instruct`."
    except UserError as error:
        return str(error)
    except (ValueError, AttributeError, RecursionError):
        return "Invalid message: send a JSON object."


class WatchedSession:
    """A server's session, as viewers see it, even after a resume with a new loop. `PageState` is the same for a run."""

    def __init__(self, thread: SessionThread) -> None:
        self._thread = thread

    def snapshot(self, since: int) -> dict[str, Any]:
        """Return the session's state with the ticks after number `since`. `over` is True if the session has ended."""
        loop, session = self._thread.loop, self._thread.session
        assert loop is not None, "the session has run"
        more = {"over": session.life.state == "over", "env": session.hello.client.name, "session": session.id}
        return state_for_page(loop, since) | more

    def picture(self) -> bytes | None:
        """Return the newest picture as PNG or JPEG, or None. If there is no new picture, return the same object."""
        loop = self._thread.loop
        newest = loop.env.pictures.newest if loop is not None and isinstance(loop.env, RemoteEnvironment) else None
        return None if newest is None else newest.data

    def command(self, command: str, k: int | None) -> str:
        return self._thread.command(command, "page", k)

    def instruct(self, text: str) -> str:
        loop = self._thread.loop
        assert loop is not None, "the session has run"
        if (answer := run_typed_command(text, "page", loop.operator, loop.instructions)) is not None:
            return answer
        self._thread.instruct(text)
        return SENT


def find_session(sessions: SessionManager, name: str) -> WatchedSession | None:
    """Return the session with this name, or None. An empty name means the newest live session, or the newest one."""
    running = [session for session in sessions.threads() if session.loop is not None and name in ("", session.id)]
    newest = sorted(running, key=lambda session: session.session.life.state == "live")[-1:]
    return WatchedSession(newest[0]) if newest else None


def list_sessions(sessions: SessionManager) -> list[dict[str, Any]]:
    """Return id, state and client of each session that viewers can watch."""
    shown = [session for session in sessions.threads() if session.loop is not None]
    return [{"id": s.id, "state": s.session.life.state, "client": s.session.hello.client.name} for s in shown]


class PageState:
    """The state of a run, as viewers see it, in the page's process. The run sends updates by lines on stdin."""

    def __init__(self) -> None:
        self._ticks: deque[tuple[int, dict[str, Any]]] = deque(maxlen=LIVE_TICKS)
        self._last: dict[str, Any] = {"number": 0, "ticks": [], "phase": "starting"}
        self._lock = threading.Lock()
        self._sent: bytes | None = None  # the last picture that a remote client sent

    def update(self, line: dict[str, Any]) -> None:
        """Update the state with a line that the run wrote to stdin."""
        picture = line.pop("picture", None)
        with self._lock:
            if picture is not None:
                self._sent = base64.b64decode(picture) or None  # "" removes the last picture
            first = line["number"] - len(line["ticks"]) + 1
            self._ticks.extend(enumerate(line["ticks"], first))
            self._last = line

    def snapshot(self, since: int) -> dict[str, Any]:
        with self._lock:
            # Omit `data`, which is only used to draw the picture.
            fields = {name: value for name, value in self._last.items() if name != "data"}
            return fields | {"ticks": [tick for number, tick in self._ticks if number > since]}

    def picture(self) -> bytes | None:
        if self._sent is not None:
            return self._sent
        env, seed, data = (self._last.get(name) for name in ("env", "seed", "data"))
        return draw_world(env, int(seed or 0), json.dumps(data)) if isinstance(env, str) and data else None

    def command(self, command: str, k: int | None) -> str:
        write_line({"say": command, "k": k})
        return command

    def instruct(self, text: str) -> str:
        write_line({"instruct": instruction_text(text)})
        return SENT


painter_of = cache(find_painter)


@lru_cache(maxsize=1)
def draw_world(env: str, seed: int, data: str) -> bytes | None:
    """Render the world's picture from the observed data. Return it as PNG, or None if the world has no picture."""
    if (paint := painter_of(env)) is not None:
        with contextlib.suppress(ValueError, ArithmeticError, LookupError):  # this data has no picture
            return encode_png(paint(seed, json.loads(data)))
    return None


def write_line(line: dict[str, Any]) -> None:
    """Write a line for the run to stdout. Drop the line if the run no longer reads."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(line).encode() + b"\n")


def create_app(state: PageState) -> Starlette:
    """Return the page's web application, without access checks."""
    page = Route("/", lambda request: FileResponse(PAGE / "live.html"))
    return Starlette(routes=[*view_routes(lambda name: None if name else state, list), page, *page_routes()])


def main() -> None:
    # Ignore Ctrl-C: the run handles it, and then ends this process by closing stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(NICE)
    state = PageState()
    options = GatewayOptions(host="127.0.0.1", port=int(sys.argv[1]))
    server = HTTPServer(with_access_checks(create_app(state), options), options)
    try:
        server.start()
    except UserError as error:
        write_line({"failed": error.what})
        return
    write_line({"url": server.url})
    for line in sys.stdin.buffer:
        with contextlib.suppress(ValueError, LookupError, TypeError):
            state.update(json.loads(line))
    time.sleep(2 * SEND_INTERVAL_S)  # leave time to send viewers the final state
    os._exit(0)


if __name__ == "__main__":
    main()
