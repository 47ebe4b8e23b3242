"""What the gateway's tests share: a served admission, a tool, a token; the page's modules under Node, and the server's
end of their connection, played by a test."""

from __future__ import annotations

import contextlib
import json
import queue
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import httpx
from websockets.exceptions import ConnectionClosedError
from websockets.sync.server import Server, ServerConnection, serve
from websockets.typing import Subprotocol

from rtcontrol.gateway import Gateway
from rtcontrol.gateway.view import CLIENT, PAGE
from rtcontrol.hosts.inprocess import InProcessPool
from rtcontrol.serve.session_manager import SessionManager
from rtcontrol_client.wire import PROTOCOL, decode_json, encode_json
from rtcontrol_client.wire.messages import FunctionCall, Hello, Message, Ping, Pong, Program, Welcome

NODE = shutil.which("node")
SCRIPTS = Path(__file__).parent / "page"
FLAG = "--experimental-websocket"
REST = FunctionCall(name="move", arguments={"velocity": 0})


@cache
def has_websocket() -> bool:
    """Whether there is a Node whose scripts may open a WebSocket."""
    if NODE is None:
        return False
    asked = [NODE, FLAG, "-e", "process.exit(typeof WebSocket === 'function' ? 0 : 1)"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


M = TypeVar("M", bound=Message)


class Peer:
    """The server's end, one connection at a time; messages of all connections land in `heard`."""

    def __init__(self) -> None:
        self.heard: queue.Queue[tuple[ServerConnection, Message]] = queue.Queue()
        self.line: ServerConnection | None = None
        self._greeted_ns = 0  # the newest hello's stamp
        self.server: Server = serve(
            self._serve, "127.0.0.1", 0, compression=None, subprotocols=[Subprotocol("rtcontrol.v1")]
        )
        self.url = f"ws://127.0.0.1:{self.server.socket.getsockname()[1]}/ws"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def _serve(self, line: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosedError):
            for text in line:
                message = decode_json(text)
                if isinstance(message, Ping):
                    now = time.monotonic_ns()
                    pong = Pong(id=message.id, t_ping_ns=message.t_ns, t_received_ns=now, t_sent_ns=now)
                    line.send(encode_json(pong))
                else:
                    self._greeted_ns = message.t_client_ns if isinstance(message, Hello) else self._greeted_ns
                    self.heard.put((line, message))

    def expect(self, kind: type[M]) -> M:
        """The next message of the kind; its connection is the one that is answered from now on."""
        while True:
            self.line, message = self.heard.get(timeout=10)
            if isinstance(message, kind):
                return message

    def send(self, message: Message) -> None:
        assert self.line is not None
        self.line.send(encode_json(message))

    def cut(self) -> None:
        assert self.line is not None
        self.line.close()

    def welcome(self, resume: str | None = None, **changes: Any) -> str:
        token = resume or secrets.token_urlsafe(24)
        told: dict[str, Any] = {
            "protocol": list(PROTOCOL),
            "server": Program(name="test"),
            "session": token,
            "resumed": resume is not None,
            **dict.fromkeys(("epoch", "t_server_ns"), 0),
            "t_client_ns": self._greeted_ns,
            "tools": [{"type": "function", "function": {"name": "move"}}],
            "instruction": "play",
            "model": "none",
            "model_trained_on_tools": False,
            "safe_call": REST,
            "pacing": "server",
            "hz": 10.0,
            **dict.fromkeys(("period_ms", "deadline_ms", "hold_ms"), 100.0),
            **dict.fromkeys(("ttl_ms", "heartbeat_ms", "max_age_ms"), 60_000.0),
            "on_miss": "hold",
            "session_grace_s": 30.0,
            "limits": {},
        }
        self.send(Welcome(**{**told, **changes}))
        return token


def copy_page(folder: Path) -> Path:
    """The page's modules as a server has them, where Node takes them for modules."""
    page = folder / "page"
    shutil.copytree(PAGE, page)
    shutil.copytree(CLIENT, page / "client")
    (page / "package.json").write_text('{"type": "module"}')
    return page


class Page:
    """A script of `page/` in its process: each line of its input is run there."""

    def __init__(self, folder: Path, script: str, *arguments: str) -> None:
        command = [str(NODE), FLAG, "--no-warnings", str(SCRIPTS / script), str(copy_page(folder)), *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._events: queue.Queue[list[Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put(json.loads(line))

    def until(self, *event: Any) -> list[list[Any]]:
        """Waits for an event; all since the last one that was waited for."""
        seen: list[list[Any]] = []
        while not seen or seen[-1] != [*event]:
            try:
                seen.append(self._events.get(timeout=10))
            except queue.Empty:
                raise AssertionError(f"no {event}, but {seen}") from None
        return seen

    def do(self, script: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{script}\n")
        self._process.stdin.flush()
        while (event := self._events.get(timeout=10))[0] != "did":
            pass
        return event[1]

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


TOKEN = "a-token-of-the-tests-0123456789"
TURN: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "turn",
        "description": "Turn the light cycle.",
        "parameters": {
            "type": "object",
            "properties": {"direction": {"type": "string", "enum": ["straight", "left", "right"]}},
            "required": ["direction"],
        },
    },
}


class Served:
    """A admission with its gateway; `url` ends with a slash."""

    def __init__(self, admission: SessionManager, pool: InProcessPool, gateway: Gateway) -> None:
        self.admission, self.pool, self.gateway = admission, pool, gateway
        self.url = gateway.url

    @property
    def ws(self) -> str:
        return self.url.replace("http", "ws", 1) + "ws"

    def get(self, path: str) -> str:
        return httpx.get(self.url + path).text

    def post(self, path: str, json: Any = None, **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=json, timeout=60, **options)


Serve = Callable[..., Served]
