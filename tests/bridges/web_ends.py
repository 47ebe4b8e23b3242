"""WebSocket ends for tests of clients: a real server, and a relay to a peer that speaks ZeroMQ."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import zmq
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve
from websockets.typing import Subprotocol

from rtcontrol_client.wire import WireError, decode_json, decode_msgpack, encode_json, encode_msgpack
from tests.bridges.client.worlds import Process, free_port


class Served(Process):
    """`rtcontrol serve` with a WebSocket too."""

    def __init__(self, out: Path, *options: str, host: str = "127.0.0.1") -> None:
        port = free_port()
        super().__init__(out, free_port(), "--http", f"{host}:{port}", *options)
        self.url = f"ws://{host}:{port}/ws"


class Relay:
    """Connect each WebSocket to the endpoint by its own DEALER. Bytes that are not a message pass as a binary frame."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self.refused: list[str] = []  # errors of what the client sent
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
