"""The shipped Godot project in a headless engine, as a process: commands in by datagrams, JSON lines out."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket as sockets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve
from websockets.typing import Subprotocol

from rtcontrol_client.wire import WireError, decode_json, decode_msgpack, encode_json, encode_msgpack
from tests.bridges.client.worlds import ROOT, Process, free_port
from tests.bridges.program import Program

PROJECT = ROOT / "bridges" / "godot"
HERE = Path(__file__).resolve().parent
MISSING = shutil.which("godot3-server") is None
REASON = "godot3-server missing: apt-get install godot3-server"


def quantiles(values: list[float]) -> str:
    """p50 / p99 / max."""
    ordered = sorted(values)
    return " / ".join(f"{ordered[int(q * (len(ordered) - 1))]:.1f}" for q in (0.5, 0.99, 1.0))


class Served(Process):
    """`rtcontrol serve` with a WebSocket too."""

    def __init__(self, out: Path, *options: str, host: str = "127.0.0.1") -> None:
        port = free_port()
        super().__init__(out, free_port(), "--http", f"{host}:{port}", *options)
        self.url = f"ws://{host}:{port}/ws"


class Engine(Program):
    """`godot3-server -s SCRIPT`. `options` are the script's, `home` is a folder for what the engine keeps of a user."""

    begins = "{"

    def __init__(self, home: Path, script: str, *options: str) -> None:
        self._port = free_port()
        self._commands = sockets.socket(sockets.AF_INET, sockets.SOCK_DGRAM)
        self._errors = (home / f"errors-{self._port}.txt").open("w+")
        super().__init__(
            ["godot3-server", "--path", str(PROJECT), "-s", str(HERE / script), f"--commands={self._port}", *options],
            stderr=self._errors,
            env={**os.environ, "HOME": str(home), "XDG_DATA_HOME": str(home), "LANG": "en_US.UTF-8"},
        )

    def say(self, command: str) -> None:
        self._commands.sendto(command.encode(), ("127.0.0.1", self._port))

    def stats(self) -> dict[str, Any]:
        self.say("stats")
        return self.event("stats")

    def errors(self) -> str:
        """What the engine complained about, among it the script's own faults."""
        self._errors.flush()
        return Path(self._errors.name).read_text("utf-8")

    def faults(self) -> list[str]:
        """Faults of the scripts: the engine tells them, and goes on."""
        return [line for line in self.errors().splitlines() if line.startswith("SCRIPT ERROR")]

    def end(self) -> None:
        super().end()
        self._commands.close()
        self._errors.close()


Start = Callable[..., Engine]


# A WebSocket end for a peer that speaks ZeroMQ: the conformance checker of clients.


class Relay:
    """Each WebSocket has a DEALER of its own. What is no message is passed on as a binary frame, joined."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self.refused: list[str] = []  # what the client sent that is no message
        self._server: Server = serve(self._pass, "127.0.0.1", 0, subprotocols=[Subprotocol("rtcontrol.v1")])
        self.url = f"ws://127.0.0.1:{self._server.socket.getsockname()[1]}/ws"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _pass(self, client: ServerConnection) -> None:
        dealer: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(self._endpoint)
        with contextlib.suppress(ConnectionClosed), dealer:
            while True:
                with contextlib.suppress(TimeoutError):
                    try:
                        dealer.send_multipart(encode_msgpack(decode_json(str(client.recv(timeout=0.002)))))
                    except WireError as error:
                        self.refused.append(str(error))
                while dealer.poll(0):
                    parts = dealer.recv_multipart()
                    try:
                        client.send(encode_json(decode_msgpack(parts)))
                    except WireError:
                        client.send(b"".join(parts))

    def close(self) -> None:
        self._server.shutdown()
