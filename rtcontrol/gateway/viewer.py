"""The page of one run, in a process of its own beside it: `python -m rtcontrol.gateway.viewer`.

It reads what the run tells on stdin, a JSON object a line, and writes what people say to stdout in the same way: first
its address, then how many look on whenever that changes, then their words. It ends with its stdin, so with the run.
It draws the world's picture itself, from what is observed: neither the loop's process nor its world has that work. That
of a world behind a wire is told as its client sent it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections import deque
from functools import cache
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from rtcontrol.envs.pictures import Painter, painter, png
from rtcontrol.gateway import view
from rtcontrol.gateway.http_server import HTTPServer
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.loop.config import instruction_text
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.recent import TICKS

# Whoever looks on gives way to the loop, on a machine of few cores.
NICE = 10


class Fed:
    """The run as its lines tell it: a `Watched`."""

    def __init__(self) -> None:
        self._ticks: deque[tuple[int, dict[str, Any]]] = deque(maxlen=TICKS)
        self._last: dict[str, Any] = {"number": 0, "ticks": [], "phase": "starting"}
        self._lock, self._drawing = threading.Lock(), threading.Lock()
        self._drawn: tuple[Any, bytes | None] = (None, None)
        self._sent: bytes | None = None  # by the client of a world behind a wire

    def take(self, told: dict[str, Any]) -> None:
        """A line of the run's."""
        picture = told.pop("picture", None)
        with self._lock:
            if picture is not None:
                self._sent = base64.b64decode(picture) or None  # nothing: it is there no more
            first = told["number"] - len(told["ticks"]) + 1
            self._ticks.extend(enumerate(told["ticks"], first))
            self._last = told

    def snapshot(self, since: int) -> dict[str, Any]:
        with self._lock:
            # Without what is drawn, which may be no JSON (NaN, say).
            told = {name: value for name, value in self._last.items() if name != "data"}
            return told | {"ticks": [tick for number, tick in self._ticks if number > since]}

    def picture(self) -> bytes | None:
        if self._sent is not None:
            return self._sent
        told = self._last
        env, seed, data = told.get("env"), int(told.get("seed") or 0), told.get("data")
        if not isinstance(env, str) or not data:
            return None
        with self._drawing:
            if self._drawn[0] != (seed, data):
                self._drawn = (seed, data), drawing(env, seed, data)
            return self._drawn[1]

    def say(self, said: str, k: int | None) -> str:
        tell({"say": said, "k": k})
        return said

    def instruct(self, text: str) -> str:
        tell({"instruct": instruction_text(text)})
        return view.SENT


@cache
def paints(env: str) -> Painter | None:
    return painter(env)


def drawing(env: str, seed: int, data: dict[str, Any]) -> bytes | None:
    """Return the world's picture; None where it has none."""
    if (paint := paints(env)) is None:
        return None
    with contextlib.suppress(ValueError, ArithmeticError, LookupError):  # what no picture can be made of
        return png(paint(seed, data))
    return None


def tell(what: dict[str, Any]) -> None:
    """A line to the run; it is gone where nobody reads."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(what).encode() + b"\n")


def build(fed: Fed) -> Starlette:
    """The page's routes, without their gate."""

    async def page(request: Request) -> Response:
        return FileResponse(view.PAGE / "live.html")

    seen = view.routes(lambda name: fed if not name else None, list)
    return Starlette(routes=[*seen, Route("/", page), *view.files()])


def main() -> None:
    # Ctrl-C is for the run, which ends this by closing its stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(NICE)
    fed = Fed()
    options = GatewayOptions(host="127.0.0.1", port=int(sys.argv[1]))
    server = HTTPServer(build(fed), options, "--view-port", lambda code: None)
    try:
        server.start()
    except UserError as error:
        tell({"failed": error.what})
        return
    tell({"url": server.url})
    for line in sys.stdin.buffer:
        with contextlib.suppress(ValueError, LookupError, TypeError):
            fed.take(json.loads(line))
    time.sleep(2 * view.EVERY_S)  # whoever looks on is told the end
    os._exit(0)


if __name__ == "__main__":
    main()
