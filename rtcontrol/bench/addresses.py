"""`rtcontrol bench proxy`: one round trip by several addresses, such as a door's own and that of a proxy before it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from statistics import median, quantiles
from typing import Any
from urllib.parse import SplitResult, urlsplit

from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

from rtcontrol.bench.wire import BLOCK, TEXT, WebSocket, hello
from rtcontrol.models.errors import UserError
from rtcontrol_client.wire.endpoint import SUBPROTOCOL, TOKEN_SUBPROTOCOL, is_loopback
from rtcontrol_client.wire.messages import Ping, Pong

AGENT = "lander"
TRIPS = ("ping", "call")
WARM_UP = 20


class AddressedSession(WebSocket):
    """A client-paced session at a page's address (`http://127.0.0.1:8000/`). UserError where there is none."""

    def __init__(self, url: str, token: str | None) -> None:
        parts = _parts(url)
        if token is not None and parts.scheme == "http" and not is_loopback(str(parts.hostname)):
            raise UserError(
                f"The token would go in the clear to {url}.", "Give an https address, or one of this machine."
            )
        self._url, self._pings = url, 0
        self._subprotocols = (SUBPROTOCOL,) if token is None else (SUBPROTOCOL, f"{TOKEN_SUBPROTOCOL}{token}")
        scheme = "wss" if parts.scheme == "https" else "ws"
        try:
            super().__init__(f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}/ws", hello(AGENT))
        except (OSError, WebSocketException) as error:
            raise self._lost(error) from None

    def _open(self, endpoint: str) -> Any:
        from websockets.sync.client import connect

        return connect(endpoint, compression=None, subprotocols=[Subprotocol(one) for one in self._subprotocols])

    def ping(self) -> None:
        """There and back by the session's connection: the server answers at once."""
        self._pings += 1
        self._send(Ping(id=self._pings, t_ns=time.monotonic_ns()))
        while not (isinstance(message := self._receive(), Pong) and message.id == self._pings):
            pass

    def timed_ms(self, trip: str) -> float:
        began = time.perf_counter()
        try:
            self.ping() if trip == "ping" else self.trip(TEXT)
        except (OSError, WebSocketException) as error:
            raise self._lost(error) from None
        return (time.perf_counter() - began) * 1e3

    def _lost(self, error: Exception) -> UserError:
        why = str(error) or type(error).__name__
        return UserError(
            f"{self._url}: no session ({why.rstrip('.')}).", "Is it served there, and is a token asked for?"
        )


def _parts(url: str) -> SplitResult:
    """UserError for what is no address of a page."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    except ValueError:  # such as a port that is no number
        pass
    raise UserError(f"{url} is no address of a page.", "Write for example http://127.0.0.1:8080.")


def compare(urls: Sequence[str], trips: int, token: str | None, advance: Callable[[], None]) -> dict[str, Any]:
    """Milliseconds of `trips` pings and calls by each address, in turns. `advance` is called after each turn."""
    found: dict[str, dict[str, list[float]]] = {url: {trip: [] for trip in TRIPS} for url in urls}
    with ExitStack() as stack:
        sessions = {url: stack.enter_context(closing(AddressedSession(url, token))) for url in found}
        for trip in TRIPS:
            for session in sessions.values():
                for _ in range(WARM_UP):
                    session.timed_ms(trip)
            for _ in range(trips // BLOCK):
                for url, session in sessions.items():
                    found[url][trip] += [session.timed_ms(trip) for _ in range(BLOCK)]
                advance()
    shown = {url: {trip: _shown(ms) for trip, ms in of.items()} for url, of in found.items()}
    return {"trips": trips // BLOCK * BLOCK, "ms": shown, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}


def _shown(ms: list[float]) -> dict[str, float]:
    return {"p50": round(median(ms), 3), "p99": round(quantiles(ms, n=100)[98], 3)}
