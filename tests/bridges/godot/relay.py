"""A WebSocket end for a peer that speaks ZeroMQ: the conformance checker of clients."""

from __future__ import annotations

import contextlib
import threading

import zmq
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve
from websockets.typing import Subprotocol

from rtcontrol.bridges.wire import WireError, decode_json, decode_msgpack, encode_json, encode_msgpack


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
