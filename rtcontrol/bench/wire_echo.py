"""The servers that the wire is compared with, each a process: `python -m rtcontrol.bench.wire_echo KIND PORT`."""

from __future__ import annotations

import sys


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


if __name__ == "__main__":
    {"zeromq": zeromq, "openpi": openpi}[sys.argv[1]](int(sys.argv[2]))
