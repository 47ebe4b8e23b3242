"""The WebSocket server that games of the Neuro API connect to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from starlette.applications import Starlette
from starlette.responses import FileResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect

from rtcontrol.gateway.access import ABORT
from rtcontrol.gateway.decide import Unavailable, read_tools
from rtcontrol.gateway.errors import RequestError
from rtcontrol.gateway.http_server import HTTPServer
from rtcontrol.gateway.neuro import messages
from rtcontrol.gateway.neuro.game import GameSession, end_all, next_number
from rtcontrol.gateway.neuro.messages import GameAction, MisreadMessage, RegisterActions, Startup
from rtcontrol.gateway.neuro.options import NeuroOptions
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.gateway.site import PAGE
from rtcontrol.hosts.tool_set_host import LIMIT
from rtcontrol.serve.limits import TokenBucket
from rtcontrol.serve.session_manager import SessionManager

log = logging.getLogger("rtcontrol.gateway")

QUEUED = 64  # messages that a game has not taken
GAMES = 4  # of one connection
MESSAGES_PER_S = 1_000.0
TOOL_SETS = 16  # of all games that are kept open, and one of each: sessions need their places, too (`Pools`)
UNREADABLE = 4  # schemas of a connection; each takes seconds of a processor's time
AT_ONCE = 16  # actions that are registered before other games have their turn
SILENT_S = 1.0  # a game that says nothing for so long when it has connected went on from before
READY_S = 1.0  # so long the games may save what there is to save, before the server ends
NORMAL, TRY_LATER = 1000, 1013
LOST, STOPPED = "game lost", "server stopped"


class NeuroServer(HTTPServer):
    """`games` are those that are connected. `start` and `close` as the gateway's. Its page is a small game."""

    def __init__(
        self, admission: SessionManager, access: GatewayOptions, options: NeuroOptions, say: Callable[[str], None]
    ) -> None:
        self._admission, self._access, self._play, self.say = admission, access, options, say
        self.games: list[GameSession] = []
        self._connections: list[GameConnection] = []
        self._closing = False
        self._lock = threading.Lock()
        self._number = next_number(admission.options.out)
        admission.guests = lambda: list(self.games)
        page = Route("/", lambda request: FileResponse(PAGE / "coins.html"))
        rest = Mount("/", StaticFiles(directory=PAGE))
        app = Starlette(routes=[WebSocketRoute("/{path:path}", self._serve), page, rest])
        self._lines = TokenBucket(1.0, 10.0)
        super().__init__(app, access, "--neuro", self._refused)

    @property
    def address(self) -> str:
        return self.url.replace("http://", "ws://")

    def _refused(self, code: str) -> None:
        if self._lines.take():
            self.say(f"a game, or a page, was not let in ({code}): docs/neuro.md, Who may connect")

    def join(self, game: str, send: Callable[[dict[str, Any]], None]) -> GameSession | None:
        """A game begins; None where there is no room."""
        with self._lock:
            if self._closing or len(self.games) >= self._admission.options.max_sessions:
                return None
            told = self._admission, self._play, self._access.model, send, self._share
            made = GameSession(self._number, game, *told)
            self._number += 1
            self.games.append(made)
        self.say(f"{made.id}: {game}")
        return made

    def _share(self) -> int:
        return max(1, min(LIMIT, TOOL_SETS // max(1, len(self.games))))

    def leave(self, game: GameSession) -> None:
        """Its connection is gone. On the event loop's thread, which does not wait for the report."""
        game.stop(LOST)
        threading.Thread(target=self._leave, args=(game,), name=f"{game.id}-end", daemon=True).start()

    def _leave(self, game: GameSession) -> None:
        game.close()
        with self._lock:
            self.games.remove(game)
        counts = ", ".join(f"{count} {name}" for name, count in game.player.counts.items() if count)
        self.say(f"{game.id}: over ({game.why}){f': {counts}' if counts else ''}")

    def close(self) -> None:
        with self._lock:
            self._closing = True
            games, connections = list(self.games), list(self._connections)
        wait([connection.part() for connection in connections], 2 * READY_S)
        super().close()
        end_all(games)

    async def _serve(self, socket: WebSocket) -> None:
        await socket.accept()
        connection = GameConnection(socket, self, self._admission)
        self._connections.append(connection)
        try:
            await connection.serve()
        finally:
            self._connections.remove(connection)


class GameConnection:
    """One WebSocket, and its game (or a few, by their names)."""

    def __init__(self, socket: WebSocket, server: NeuroServer, admission: SessionManager) -> None:
        self._socket, self._server, self._reading = socket, server, admission.reading
        self._games: dict[str, GameSession] = {}
        self._queue: deque[dict[str, Any] | None] = deque()
        self._ready = asyncio.Event()
        self._reregistered = self._refused = False
        self._unreadable = 0  # schemas
        self._loop = asyncio.get_running_loop()
        self._bucket = TokenBucket(MESSAGES_PER_S, MESSAGES_PER_S)
        self._lines = TokenBucket(1.0, 10.0)
        client = socket.client
        self._peer = "a game" if client is None else f"{client.host}:{client.port}"

    async def serve(self) -> None:
        pump = asyncio.create_task(self._pump())
        silent = self._loop.call_later(SILENT_S, self._reregister)
        try:
            while not self._refused:
                try:
                    message = await self._socket.receive()
                except (WebSocketDisconnect, RuntimeError):  # RuntimeError: the pump has closed it
                    break
                if message["type"] != "websocket.receive":
                    break
                silent.cancel()
                while not self._bucket.take():
                    await asyncio.sleep(10 / MESSAGES_PER_S)  # the others wait in its own connection
                await self._take(message.get("text") or (message.get("bytes") or b"").decode("utf-8", "replace"))
        finally:
            silent.cancel()
            for game in self._games.values():
                self._server.leave(game)
            pump.cancel()
            with contextlib.suppress(BaseException):
                await pump

    def part(self) -> Future[None]:
        """The server ends: the game may save what there is to save. From any thread; done when it has, or after
        `READY_S`."""
        return asyncio.run_coroutine_threadsafe(self._part(), self._loop)

    async def _part(self) -> None:
        waiting = [asyncio.create_task(game.player.ready_to_end.wait()) for game in self._games.values()]
        for game in self._games.values():
            game.stop(STOPPED)
        if waiting:
            self._send(messages.SHUT_DOWN)
            _, late = await asyncio.wait(waiting, timeout=READY_S)
            if late:
                self._send(messages.SHUT_DOWN_NOW)
            for task in late:
                task.cancel()
        self._queue.append(None)
        self._ready.set()

    async def _take(self, text: str) -> None:
        try:
            name, message = messages.read(text)
        except MisreadMessage as error:
            self._tell(f"not understood: {error}")
            return
        game = self._games.get(name)
        if game is None:
            if len(self._games) >= GAMES or (game := self._server.join(name, self._send)) is None:
                self._tell(f"{name[:80]}: there is no room for another game")
                if not self._games:
                    self._refused = True
                    await self._socket.close(TRY_LATER, "there is no room for another game")
                return
            self._games[name] = game
            if not isinstance(message, Startup):
                self._reregister()
                game.player.expect_actions()
        if isinstance(message, Startup):
            self._send(messages.startup_reply(game.id))
        if isinstance(message, RegisterActions):
            actions = await self._readable(message.actions)
            for i in range(0, len(actions), AT_ONCE):
                game.player.hear(message.model_copy(update={"actions": actions[i : i + AT_ONCE]}))
                await asyncio.sleep(0)
        else:
            game.player.hear(message)

    def _reregister(self) -> None:
        """The server was started anew, or the connection broke: the game believes that its actions are registered. SDKs
        of games say so little of it that one may wait for ever."""
        if not self._reregistered:
            self._reregistered = True
            self._send(messages.REREGISTER)

    async def _readable(self, actions: list[GameAction]) -> list[GameAction]:
        """Those whose schemas can be read in time: of others than plain ones that is tried in another process. Who
        brings many that cannot has the rest of them left out unread."""
        try:
            if doubtful := [one for one in actions if not one.plain]:
                if self._unreadable >= UNREADABLE:
                    raise Unavailable(f"{UNREADABLE} before it could not be read")
                await read_tools(self._reading, tuple(one.tool() for one in doubtful))
            return actions
        except (RequestError, Unavailable) as error:
            if len(actions) == 1:
                self._unreadable += 1
                self._tell(f"action {actions[0].name} is left out: {error}")
                return []
        halves = actions[: len(actions) // 2], actions[len(actions) // 2 :]
        return [one for half in halves if half for one in await self._readable(half)]

    def _send(self, message: dict[str, Any]) -> None:
        if len(self._queue) >= QUEUED:
            self._tell(f"cut off, {QUEUED} messages behind")
            self._socket.scope["extensions"].get(ABORT, lambda: None)()
            return
        self._queue.append(message)
        self._ready.set()

    async def _pump(self) -> None:
        while True:
            await self._ready.wait()
            self._ready.clear()
            while self._queue:
                if (message := self._queue.popleft()) is None:
                    await self._socket.close(NORMAL, STOPPED)
                    return
                await self._socket.send_text(json.dumps(message))

    def _tell(self, line: str) -> None:
        if self._lines.take():
            self._server.say(f"{self._peer}: {line}")
