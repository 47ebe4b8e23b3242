"""`/view/ws`: send the state of a run or session to viewers a few times a second, and take their commands.

`python -m rtcontrol.gateway.view PORT` serves the page of one run in a separate process. The process reads the run's
lines from stdin, a JSON object each, and writes its address and then people's commands to stdout in the same way. It
ends with its stdin, and so with the run. It draws the world's picture from the observed data, to keep that work away
from the loop. The picture of a remote world comes from the client.
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

from rtcontrol.envs.pictures import painter, png
from rtcontrol.envs.remote import RemoteEnvironment
from rtcontrol.gateway.gate import behind_gate
from rtcontrol.gateway.http_server import ABORT, HTTPServer
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.loop.config import instruction_text
from rtcontrol.loop.operator import COMMANDS
from rtcontrol.loop.operator_control import run_typed_command
from rtcontrol.models.errors import UserError
from rtcontrol.run.live import snapshot
from rtcontrol.serve.session import SessionThread
from rtcontrol.serve.session_manager import SessionManager
from rtcontrol.telemetry.account import TICKS
from rtcontrol_client.wire.endpoint import SUBPROTOCOL

log = logging.getLogger("rtcontrol.gateway")

SENT = "sent"  # the reply to an instruction
EVERY_S = 0.25
NEXT_S = 0.02  # shortest time between two messages of a viewer: pages and people send fewer
STUCK_S = 5.0  # a viewer that receives nothing for this long is disconnected
MAX_VIEWERS = 16
NICE = 10  # on a machine with few cores, the loop takes precedence over the page's process
POLICY, INTERNAL, TRY_LATER = 1008, 1011, 1013
PAGE = Path(__file__).parent / "page"
CLIENT = PAGE.with_name("javascript")  # in a source tree a link to the npm package's folder


def files(html: bool = False) -> list[BaseRoute]:
    """Return the client's modules at `/client`, the page's files at `/`; with `html`, `/` itself is a page."""
    return [
        Mount("/client", StaticFiles(directory=CLIENT)),
        Mount("/", StaticFiles(directory=PAGE, html=html)),
    ]


def routes(
    find: Callable[[str], WatchedSession | Fed | None], sessions: Callable[[], list[dict[str, Any]]]
) -> list[BaseRoute]:
    """Return the routes. `find` returns what to watch for a session's name ("": the newest session, or the run)."""
    viewers: set[WebSocket] = set()

    async def listed(request: Request) -> Response:
        return JSONResponse(sessions())

    async def ws(socket: WebSocket) -> None:
        await socket.accept(SUBPROTOCOL if SUBPROTOCOL in socket.scope["subprotocols"] else None)
        watched = find(socket.query_params.get("session", ""))
        if watched is None:
            await socket.close(POLICY, "there is no such session")
            return
        if len(viewers) >= MAX_VIEWERS:
            await socket.close(TRY_LATER, "too many viewers")
            return
        viewers.add(socket)
        showing = asyncio.create_task(_show(socket, watched))
        try:
            with contextlib.suppress(WebSocketDisconnect, RuntimeError, KeyError):  # KeyError: a binary message
                while True:
                    answer = _answer(watched, await socket.receive_text())
                    await socket.send_text(json.dumps({"answer": answer}))
                    await asyncio.sleep(NEXT_S)  # meanwhile no further message is read
        finally:
            viewers.discard(socket)
            showing.cancel()
            with contextlib.suppress(BaseException):
                await showing

    return [Route("/view/sessions", listed), WebSocketRoute("/view/ws", ws)]


async def _show(socket: WebSocket, watched: WatchedSession | Fed) -> None:
    number, over, shown = 0, False, None
    try:
        while not over:
            now = watched.snapshot(number)
            number, over = now["number"], bool(now.get("over"))
            await asyncio.wait_for(socket.send_text(json.dumps(now, default=str)), STUCK_S)
            picture = await asyncio.to_thread(watched.picture)
            if picture is not None and picture is not shown:
                await asyncio.wait_for(socket.send_bytes(picture), STUCK_S)
            shown = picture
            await asyncio.sleep(EVERY_S)
        await asyncio.wait_for(socket.close(), STUCK_S)
    except (TimeoutError, WebSocketDisconnect, RuntimeError):  # a stuck viewer would occupy one of a few places
        socket.scope["extensions"].get(ABORT, lambda: None)()
    except Exception:
        log.exception("the live view failed")
        await socket.close(INTERNAL)


def _answer(watched: WatchedSession | Fed, text: str) -> str:
    """Carry out `{"say": "pause"}`, `{"say": "confirm", "k": 12}` or `{"instruct": "..."}`; return the answer."""
    try:
        message = json.loads(text)
        word, k, instruction = message.get("say"), message.get("k"), message.get("instruct")
        if word in COMMANDS and (k is None or (isinstance(k, int) and not isinstance(k, bool))):
            return watched.say(word, k)
        if isinstance(instruction, str) and instruction.strip():
            return watched.instruct(instruction.strip())
        return f"Not understood: say one of {', '.join(COMMANDS)}, or instruct."
    except UserError as error:
        return str(error)
    except (ValueError, AttributeError, RecursionError):
        return "Not understood: send one JSON object."


class WatchedSession:
    """A session as viewers see it, across the loops of a returning client. `Fed` does the same for a run."""

    def __init__(self, session: SessionThread) -> None:
        self._thread = session

    def snapshot(self, since: int) -> dict[str, Any]:
        """Return the state with the ticks after number `since` (`telemetry/account.py`); `over`: the session ended."""
        loop, session = self._thread.loop, self._thread.session
        assert loop is not None, "the session has run"
        more = {"over": session.life.state == "over", "env": session.hello.client.name, "session": session.id}
        return snapshot(loop, since) | more

    def picture(self) -> bytes | None:
        """Return the newest picture as PNG or JPEG, or None. An unchanged picture is the same object."""
        loop = self._thread.loop
        newest = loop.env.pictures.newest if loop is not None and isinstance(loop.env, RemoteEnvironment) else None
        return None if newest is None else newest.data

    def say(self, word: str, k: int | None) -> str:
        return self._thread.command(word, "page", k)

    def instruct(self, text: str) -> str:
        loop = self._thread.loop
        assert loop is not None, "it has run"
        if (answer := run_typed_command(text, "page", loop.operator, loop.instructions)) is not None:
            return answer
        self._thread.instruct(text)
        return SENT


def find(sessions: SessionManager, name: str) -> WatchedSession | None:
    """Return the running session with this name; "": the newest live session, else the newest one. None if missing."""
    running = [session for session in sessions.all() if session.loop is not None and name in ("", session.id)]
    newest = sorted(running, key=lambda session: session.session.life.state == "live")[-1:]
    return WatchedSession(newest[0]) if newest else None


def listed(sessions: SessionManager) -> list[dict[str, Any]]:
    """Return a list of the sessions that can be watched."""
    shown = [session for session in sessions.all() if session.loop is not None]
    return [{"id": s.id, "state": s.session.life.state, "client": s.session.hello.client.name} for s in shown]


# -- the page of one run, in its own process ---------------------------------------------------------------------------


class Fed:
    """The state of a run, fed by the lines that the run writes."""

    def __init__(self) -> None:
        self._ticks: deque[tuple[int, dict[str, Any]]] = deque(maxlen=TICKS)
        self._last: dict[str, Any] = {"number": 0, "ticks": [], "phase": "starting"}
        self._lock = threading.Lock()
        self._sent: bytes | None = None  # the picture from the client of a remote world

    def take(self, line: dict[str, Any]) -> None:
        """Update the state with a line of the run."""
        picture = line.pop("picture", None)
        with self._lock:
            if picture is not None:
                self._sent = base64.b64decode(picture) or None  # an empty picture: there is no picture any more
            first = line["number"] - len(line["ticks"]) + 1
            self._ticks.extend(enumerate(line["ticks"], first))
            self._last = line

    def snapshot(self, since: int) -> dict[str, Any]:
        with self._lock:
            # Leave out the data for the picture, which may not be valid JSON (NaN, for example).
            fields = {name: value for name, value in self._last.items() if name != "data"}
            return fields | {"ticks": [tick for number, tick in self._ticks if number > since]}

    def picture(self) -> bytes | None:
        if self._sent is not None:
            return self._sent
        env, seed, data = (self._last.get(name) for name in ("env", "seed", "data"))
        return drawing(env, int(seed or 0), json.dumps(data)) if isinstance(env, str) and data else None

    def say(self, word: str, k: int | None) -> str:
        write_line({"say": word, "k": k})
        return word

    def instruct(self, text: str) -> str:
        write_line({"instruct": instruction_text(text)})
        return SENT


paints = cache(painter)


@lru_cache(maxsize=1)
def drawing(env: str, seed: int, data: str) -> bytes | None:
    """Return the world's picture; None if the world or the data has no picture."""
    if (paint := paints(env)) is not None:
        with contextlib.suppress(ValueError, ArithmeticError, LookupError):  # data without a picture
            return png(paint(seed, json.loads(data)))
    return None


def write_line(line: dict[str, Any]) -> None:
    """Write a line to the run; the line is lost if the run no longer reads."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(line).encode() + b"\n")


def build(fed: Fed) -> Starlette:
    """Return the page's application, without access checks."""
    page = Route("/", lambda request: FileResponse(PAGE / "live.html"))
    return Starlette(routes=[*routes(lambda name: None if name else fed, list), page, *files()])


def main() -> None:
    # Ctrl-C is for the run, which ends this process by closing stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(NICE)
    fed = Fed()
    options = GatewayOptions(host="127.0.0.1", port=int(sys.argv[1]))
    server = HTTPServer(behind_gate(build(fed), options), options)
    try:
        server.start()
    except UserError as error:
        write_line({"failed": error.what})
        return
    write_line({"url": server.url})
    for line in sys.stdin.buffer:
        with contextlib.suppress(ValueError, LookupError, TypeError):
            fed.take(json.loads(line))
    time.sleep(2 * EVERY_S)  # time for viewers to receive the end
    os._exit(0)


if __name__ == "__main__":
    main()
