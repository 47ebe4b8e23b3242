"""A client of `/view/ws`: what one run or session shows, kept up to date, and what may be said to it."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from rtcontrol.models.errors import UserError
from rtcontrol.models.web import WebClient, WebError
from rtcontrol.telemetry.causes import CAUSES, Cause
from rtcontrol_client.wire.endpoint import SUBPROTOCOL

ANSWER_S = 3.0
BACKOFF_S = (0.2, 2.0)
MISSES = 256  # of the newest, kept
MOST_BYTES = 1 << 24  # a picture's, at the most


class ViewClient:
    """`snapshot` is what was told last, None before; `misses` the newest of `off_time`. `run` keeps the connection, and
    connects again where it ends: a run that begins later is found. Everything is of the event loop that `run` is in.

    `session`: one of a server's (None: the newest at first, and that one from then on, so that what is said is never
    for another robot); a run has one view, without a name.
    """

    def __init__(self, url: str, session: str | None = None, token: str | None = None) -> None:
        self.url, self.session = url.rstrip("/"), session
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self.snapshot: dict[str, Any] | None = None
        self.picture: bytes | None = None
        self.misses: deque[dict[str, Any]] = deque(maxlen=MISSES)
        self.connected = False
        self.why = f"nothing answered at {self.url} yet"
        self._number = 0  # of the newest tick
        self._looked = asyncio.Event()
        # This machine's own proxies are for elsewhere, and must not see the token.
        self._web = WebClient(f"{self.url}/view/sessions", self._headers, proxies=False)
        self._socket: ClientConnection | None = None
        self._answers: deque[asyncio.Future[str]] = deque()  # they come in the order of the questions
        self._sending = asyncio.Lock()

    async def run(self) -> None:
        """Until it is cancelled."""
        pause_s = BACKOFF_S[0]
        while True:
            try:
                await self._follow()
                pause_s = BACKOFF_S[0]
            except InvalidStatus as refused:
                self.why = f"{self.url}: {_refusal(refused.response.status_code)}"
            except ConnectionClosed:
                pass  # why it was stands there
            except WebError as error:
                self.why = f"{self.url} does not answer ({error})"
            except (OSError, WebSocketException, ValueError, LookupError) as error:
                self.why = f"{self.url} does not answer ({type(error).__name__})"
            self._looked.set()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, BACKOFF_S[1])

    async def look(self) -> None:
        """Wait for the first look, whatever it shows."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._looked.wait(), ANSWER_S)

    async def say(self, said: str, k: int | None = None) -> str:
        """pause, resume, stop, confirm or deny; gives the answer. Raises UserError where nobody hears it."""
        return await self._ask({"say": said} if k is None else {"say": said, "k": k})

    async def instruct(self, text: str) -> str:
        """Raises UserError where nobody hears it."""
        return await self._ask({"instruct": text})

    async def _follow(self) -> None:
        """One connection, to its end."""
        name = self.session if self.session is not None else await self._newest()
        address = f"ws{self.url.removeprefix('http')}/view/ws" + (f"?session={quote(name)}" if name else "")
        given: Any = {"additional_headers": self._headers, "subprotocols": [SUBPROTOCOL], "max_size": MOST_BYTES}
        async with connect(address, proxy=None, **given) as socket:
            self._socket = socket
            try:
                async for message in socket:
                    if isinstance(message, bytes):
                        self.picture = message
                        continue
                    told = json.loads(message)
                    if "answer" in told:
                        if self._answers and not (first := self._answers.popleft()).done():
                            first.set_result(str(told["answer"]))
                        continue
                    self.session = name or None
                    self._take(told)
            finally:
                self._ended(socket)

    def _ended(self, socket: ClientConnection) -> None:
        over = bool((self.snapshot or {}).get("over")) and self.connected
        self.connected, self._socket, self.picture = False, None, None
        self.why = "the run is over" if over else (socket.close_reason or "the connection ended")
        if over:
            self._number = 0  # what comes next is another run
        while self._answers:
            if not (waiting := self._answers.popleft()).done():
                waiting.set_exception(UserError(f"Nobody heard it: {self.why}.", "Look at its status."))

    async def _newest(self) -> str:
        """The name of the server's newest session; a run lists none, and shows itself."""
        answer = await asyncio.wrap_future(self._web.get(ANSWER_S))
        if answer.status != 200:
            raise WebError("connection", _refusal(answer.status))
        listed = list(answer.json())
        living = [one for one in listed if one["state"] == "live"] or listed
        return str(living[-1]["id"]) if living else ""

    def _take(self, told: dict[str, Any]) -> None:
        if told["number"] < self._number or not self._number:  # another run
            # The picture is the connection's: it is told once, maybe before the first tick.
            self.misses.clear()
            self._number = 0
        fresh = told["number"] - self._number  # a new connection is told ticks that the last one was
        self.snapshot, self.connected, self._number = told, True, told["number"]
        self._looked.set()
        if fresh:
            self.misses.extend(one for tick in told["ticks"][-fresh:] for one in off_time(tick))

    async def _ask(self, what: dict[str, Any]) -> str:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        try:
            async with self._sending:  # no question waits for the answer to another
                if self._socket is None:
                    raise UserError(f"Nobody hears it: {self.why}.", "Look at its status; the safe call needs no word.")
                self._answers.append(answer)
                await self._socket.send(json.dumps(what))
            return await asyncio.wait_for(answer, ANSWER_S)
        except (TimeoutError, WebSocketException) as error:
            # Its place is kept: an answer that comes late is no answer to the next question.
            what_failed = f"No answer within {ANSWER_S:g} s ({type(error).__name__})."
            raise UserError(what_failed, "Look at its status: it may have been done.") from None


def off_time(tick: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What of a tick's line was not on time: the releases before it that were not begun, and itself, each with its one
    cause (a skipped one's `k` is the first of `releases`)."""
    if skipped := tick.get("skipped", 0):
        why = {name: tick.get(f"skip_{name}") for name in ("cause", "subcause", "evidence")}
        yield explained({"k": tick["k"] - skipped, "kind": "skipped", "releases": skipped, **why})
    if "cause" in tick:
        names = ("k", "kind", "cause", "subcause", "evidence", "latency_ms", "decide_ms")
        yield explained({name: tick[name] for name in names if name in tick} | {"releases": 1})


def explained(line: dict[str, Any]) -> dict[str, Any]:
    """With what its cause means."""
    cause = line["cause"]
    return {**line, "meaning": CAUSES[Cause(cause)].meaning if cause in CAUSES else None}


def _refusal(status: int) -> str:
    return "it wants its access token (--token-file)" if status == 401 else f"it refused with {status}"
