"""`python -m tests.bridges.rig.strangers ENDPOINT SECONDS`: floods a server's socket, and prints what it sent."""

from __future__ import annotations

import contextlib
import json
import random
import socket as sockets
import sys
import time
from collections import Counter

import zmq

from rtcontrol_client.wire import PROTOCOL, encode_msgpack
from rtcontrol_client.wire.messages import FunctionCall, Hello, Program

TOOL = {"name": "blink", "description": "Blink.", "parameters": {"type": "object", "properties": {}}}
DEALERS = 8


def hello(name: str) -> list[bytes]:
    return encode_msgpack(
        Hello(
            protocol=list(PROTOCOL),
            client=Program(name=name),
            t_client_ns=time.monotonic_ns(),
            tools=[TOOL],
            instruction="Blink.",
            safe_call=FunctionCall(name="blink"),
        )
    )


def main(endpoint: str, seconds: float) -> None:
    family, address = sockets.AF_UNIX, endpoint.removeprefix("ipc://")
    if endpoint.startswith("tcp://"):
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        family, address = sockets.AF_INET, (host, int(port))
    dealers = []
    for _ in range(DEALERS):
        dealers.append(zmq.Context.instance().socket(zmq.DEALER))
        dealers[-1].linger = 0
        dealers[-1].connect(endpoint)
    sent: Counter[str] = Counter()
    end_s, k = time.monotonic() + seconds, 0
    while time.monotonic() < end_s:
        k += 1
        for dealer in dealers:
            with contextlib.suppress(zmq.Again):
                dealer.send_multipart([random.randbytes(200)], zmq.NOBLOCK)
                sent["garbage_messages"] += 1
                dealer.send_multipart(hello(f"stranger {k}"), zmq.NOBLOCK)
                sent["hellos"] += 1
            with contextlib.suppress(zmq.Again):
                while True:
                    dealer.recv_multipart(zmq.NOBLOCK)
                    sent["answers"] += 1
        if k % 4 == 0:
            with contextlib.suppress(OSError), sockets.socket(family) as raw:
                raw.settimeout(1)
                raw.connect(address)
                raw.sendall(random.randbytes(5000))
                sent["raw_connections"] += 1
        time.sleep(0.005)
    print(json.dumps({name: round(count / seconds) for name, count in sent.items()}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
