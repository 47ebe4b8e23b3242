"""The WebSocket server that clients of policy servers connect to, such as openpi's."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from rtcontrol.gateway.http_server import HTTPServer
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.gateway.policy.options import PolicyOptions
from rtcontrol.gateway.policy.session import END_S, PolicySession
from rtcontrol.hosts.array_message import MOST_BYTES, MalformedMessage, pack_message, unpack_message
from rtcontrol.hosts.policy_mapping import UnmappedObservation
from rtcontrol.models.errors import UserError
from rtcontrol.serve.limits import TokenBucket
from rtcontrol.serve.peer import HELLOS_AT_ONCE, HELLOS_PER_S
from rtcontrol.serve.session_manager import SessionManager

log = logging.getLogger("rtcontrol.gateway")
LOST, STOPPED = "client lost", "server stopped"
HEALTH = "/healthz"
# RFC 6455 section 7.4.1, and 1013 of the registry.
INTERNAL, TRY_LATER = 1011, 1013
AT_ONCE = 1 << 16  # bytes of a question that are unpacked on the event loop; more are on a thread
ANSWER_S = 5.0  # beyond the deadline: then the loop is not there any more


class PolicyServer(HTTPServer):
    """`sessions` are of the clients that are connected. `start` and `close` as the gateway's."""

    def __init__(
        self, admission: SessionManager, access: GatewayOptions, options: PolicyOptions, say: Callable[[str], None]
    ) -> None:
        self._admission, self._policy, self.say = admission, options, say
        self.sessions: list[PolicySession] = []
        self._closing = False
        self._lock = threading.Lock()
        taken = (int(n) for path in admission.options.out.glob("openpi-*") if (n := path.name[7:]).isdigit())
        self._number = 1 + max(taken, default=0)  # a restarted server overwrites no record
        others = admission.guests
        admission.guests = lambda: [*others(), *self.sessions]
        app = Starlette(routes=[Route(HEALTH, _healthy), WebSocketRoute("/{path:path}", self._serve)])
        self._lines = TokenBucket(1.0, 10.0)
        self._joins = TokenBucket(HELLOS_PER_S, HELLOS_AT_ONCE)
        super().__init__(app, replace(access, max_body_bytes=MOST_BYTES), access.option, self._refused)

    @property
    def address(self) -> str:
        return self.url.replace("http://", "ws://").rstrip("/")

    def _refused(self, code: str) -> None:
        if self._lines.take():
            self.say(f"a client of --openpi was not let in ({code}): docs/policies.md, Who may connect")

    def close(self) -> None:
        with self._lock:
            self._closing = True
            sessions = list(self.sessions)
        for session in sessions:
            session.stop(STOPPED)
        super().close()
        give_up = time.monotonic() + END_S
        for session in sessions:
            session.join(max(0.0, give_up - time.monotonic()))

    def _join(self, peer: str) -> PolicySession | None:
        """A session begins; None where there is no room, or too many begin at once."""
        with self._lock:
            if not self._joins.take():
                return None
            if self._closing or len(self.sessions) >= self._admission.options.max_sessions:
                return None
            made = PolicySession(self._number, peer, self._admission, self._policy)
            self._number += 1
            self.sessions.append(made)
        made.start()
        return made

    def _leave(self, session: PolicySession) -> None:
        session.join(END_S)
        with self._lock:
            self.sessions.remove(session)
        counts = ", ".join(f"{count} {status}" for status, count in sorted(session.statuses.items()))
        self.say(f"{session.id}: over ({session.why}){f': {counts}' if counts else ''}")

    async def _serve(self, socket: WebSocket) -> None:
        await socket.accept()
        client = socket.client
        session = self._join("unknown" if client is None else f"{client.host}:{client.port}")
        if session is None:
            await _fail(socket, "There is no room for another session. Try again later.", TRY_LATER)
            return
        try:
            await self._converse(socket, session)
        except (UserError, MalformedMessage, UnmappedObservation) as error:
            if self._lines.take():
                self.say(f"{session.id}: {error}")
            await _fail(socket, str(error))
        except (WebSocketDisconnect, RuntimeError):  # RuntimeError: it is closed while something is sent
            pass
        except Exception as fault:
            log.exception("%s failed", session.id)
            await _fail(socket, f"{type(fault).__name__}. Tell the server's author.")
        finally:
            session.stop(LOST)
            threading.Thread(target=self._leave, args=(session,), name=f"{session.id}-end", daemon=True).start()

    async def _converse(self, socket: WebSocket, session: PolicySession) -> None:
        """The metadata, and then one answer for each question."""
        heard: asyncio.Future[Any] = asyncio.ensure_future(socket.receive())
        opened: asyncio.Future[Any] = asyncio.wrap_future(session.metadata)
        try:
            await asyncio.wait([heard, opened], return_when=asyncio.FIRST_COMPLETED)
            if heard.done() and heard.result()["type"] != "websocket.receive":
                return  # it has gone meanwhile
            metadata = await opened
            self.say(f"{session.id}: {session.shown_name}, model {metadata['model']}")
            limit_s = metadata["deadline_ms"] / 1e3 + ANSWER_S
            await socket.send_bytes(pack_message(metadata))
            while (message := await heard)["type"] == "websocket.receive":
                large = len(message.get("bytes") or b"") > AT_ONCE
                asked = await asyncio.to_thread(_question, message) if large else _question(message)
                answer = await asyncio.wait_for(asyncio.wrap_future(session.ask(asked)), limit_s)
                answer["actions"] = np.array([answer["actions"]], np.float64)
                await socket.send_bytes(pack_message(answer))
                heard = asyncio.ensure_future(socket.receive())
        except TimeoutError:
            raise UserError("Nothing decides any more.", "Connect again.") from None
        finally:
            for task in (heard, opened):
                task.cancel()


def _question(message: Any) -> dict[str, Any]:
    """Raises MalformedMessage."""
    data = message.get("bytes")
    if data is None:
        raise MalformedMessage("A question is a binary message of msgpack, and this one is text.")
    found = unpack_message(data)
    if not isinstance(found, dict):
        raise MalformedMessage("A question is a map of arrays, and this one is none.")
    return found


async def _healthy(request: Request) -> Response:
    return PlainTextResponse("OK\n")


async def _fail(socket: WebSocket, what: str, code: int = INTERNAL) -> None:
    """As policy servers do: the reason as text, and the end."""
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        await socket.send_text(what)
        await socket.close(code, what[:100])
