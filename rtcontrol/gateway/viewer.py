"""The page of one run, in another process: `python -m rtcontrol.gateway.viewer`.

It reads the run's lines on stdin, a JSON object each, and writes what people say to stdout in the same way, after its
address. It ends with its stdin, so with the run. It draws the world's picture itself, from what is observed: neither
the loop's process nor its world has that work. The picture of a world behind a wire comes as its client sent it.
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
from functools import cache, lru_cache
from typing import Any

from starlette.applications import Starlette
from starlette.responses import FileResponse
from starlette.routing import Route

from rtcontrol.envs.pictures import painter, png
from rtcontrol.gateway import view
from rtcontrol.gateway.gate import behind_gate
from rtcontrol.gateway.http_server import HTTPServer
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.loop.config import instruction_text
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.account import TICKS

NICE = 10  # viewers give way to the loop, on a machine of few cores


class Fed:
    """The run as its lines describe it: a `Watched`."""

    def __init__(self) -> None:
        self._ticks: deque[tuple[int, dict[str, Any]]] = deque(maxlen=TICKS)
        self._last: dict[str, Any] = {"number": 0, "ticks": [], "phase": "starting"}
        self._lock = threading.Lock()
        self._sent: bytes | None = None  # by the client of a world behind a wire

    def take(self, line: dict[str, Any]) -> None:
        """Take a line of the run."""
        picture = line.pop("picture", None)
        with self._lock:
            if picture is not None:
                self._sent = base64.b64decode(picture) or None  # nothing: there is none any more
            first = line["number"] - len(line["ticks"]) + 1
            self._ticks.extend(enumerate(line["ticks"], first))
            self._last = line

    def snapshot(self, since: int) -> dict[str, Any]:
        with self._lock:
            # Without what is drawn, which may not be JSON (NaN, say).
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
        return view.SENT


paints = cache(painter)


@lru_cache(maxsize=1)
def drawing(env: str, seed: int, data: str) -> bytes | None:
    """Return the world's picture; None where it has none."""
    if (paint := paints(env)) is not None:
        with contextlib.suppress(ValueError, ArithmeticError, LookupError):  # data without a picture
            return png(paint(seed, json.loads(data)))
    return None


def write_line(line: dict[str, Any]) -> None:
    """Write a line to the run; it is lost where the run does not read."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(line).encode() + b"\n")


def build(fed: Fed) -> Starlette:
    """Return the page's routes, without their gate."""
    page = Route("/", lambda request: FileResponse(view.PAGE / "live.html"))
    return Starlette(routes=[*view.routes(lambda name: None if name else fed, list), page, *view.files()])


def main() -> None:
    # Ctrl-C is for the run, which ends this by closing its stdin.
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
    time.sleep(2 * view.EVERY_S)  # viewers receive the end
    os._exit(0)


if __name__ == "__main__":
    main()
