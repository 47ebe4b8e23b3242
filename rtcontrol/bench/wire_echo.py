"""The servers that the wire is compared with, each a process: `python -m rtcontrol.bench.wire_echo KIND PORT`, for
`decide` with the MODEL."""

from __future__ import annotations

import gc
import json
import socket
import sys
import time
from collections.abc import Callable


def zeromq(port: int) -> None:
    """A bare ROUTER that sends back what comes."""
    import zmq

    router: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    router.bind(f"tcp://127.0.0.1:{port}")
    while True:
        router.send_multipart(router.recv_multipart())


def openpi(port: int) -> None:
    """openpi's wire: a metadata message first, then each binary message sent back."""
    import msgpack
    from websockets.sync.server import ServerConnection, serve

    def handle(connection: ServerConnection) -> None:
        connection.send(msgpack.packb({}))
        for message in connection:
            connection.send(message)

    with serve(handle, "127.0.0.1", port, compression=None, max_size=None) as server:
        server.serve_forever()


def decide(port: int, model: str) -> None:
    """`decide` in this process, behind a bare socket: the questions of the bench about the state of each request, and
    an answer of the length of a real one, with how long the decision took."""
    import torch

    from rtcontrol.bench.wire import STATED
    from rtcontrol.models.decider import DeciderSpec
    from rtcontrol.models.questions import QuestionDecider

    decider = QuestionDecider(DeciderSpec(model, ()))
    torch.set_num_threads(decider.runner.threads or torch.get_num_threads())  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()
    gc.disable()
    server = socket.create_server(("127.0.0.1", port))
    while True:
        peer = server.accept()[0]
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        file = peer.makefile("rb")
        while file.readline():
            length = 0
            while (header := file.readline().lower()) not in (b"\r\n", b""):
                length = int(header.partition(b":")[2]) if header.startswith(b"content-length:") else length
            state = json.loads(file.read(length))["input"]
            began = time.perf_counter()
            found = decider.answer(state, STATED)
            decide_ms = (time.perf_counter() - began) * 1e3
            told = {"answers": found.probabilities, "rtcontrol": {"decide_ms": decide_ms, "warning": "x" * 600}}
            body = json.dumps(told).encode()
            peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))


KINDS: dict[str, Callable[..., None]] = {"zeromq": zeromq, "openpi": openpi, "decide": decide}

if __name__ == "__main__":
    KINDS[sys.argv[1]](int(sys.argv[2]), *sys.argv[3:])
