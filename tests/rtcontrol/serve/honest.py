"""An honest client in a process of its own, which counts what it is told: `python -m tests.rtcontrol.serve.honest
ENDPOINT HZ`. It prints `ready` once welcomed, and its figures on SIGTERM."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter

import zmq

from rtcontrol.bridges.wire import PROTOCOL, decode_msgpack, encode_msgpack
from rtcontrol.bridges.wire.messages import CallMessage, Hello, Observe, Ping, Pong, Program, Welcome


def main(endpoint: str, hz: float) -> None:
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.linger = 0
    socket.connect(endpoint)
    hello = Hello(
        protocol=list(PROTOCOL), client=Program(name="honest"), t_client_ns=time.monotonic_ns(), agent="lander", hz=hz
    )
    socket.send_multipart(encode_msgpack(hello))
    assert socket.poll(60_000), "no welcome in 60 s"
    welcome = decode_msgpack(socket.recv_multipart())
    assert isinstance(welcome, Welcome), welcome
    print("ready", flush=True)
    status: Counter[str] = Counter()
    causes: Counter[str] = Counter()
    ticks: list[int] = []
    lateness: list[float] = []
    seq, due = 0, time.monotonic()
    while not ended:
        # Twice as often as the loop ticks: an observation is never older than half a period.
        if time.monotonic() >= due:
            seq, due = seq + 1, due + 0.5 / hz
            now = time.monotonic_ns()
            text = "x 0 y 100 vx 0 vy 0 angle 0 spin 0 legs 0"
            socket.send_multipart(
                encode_msgpack(Observe(session=welcome.session, seq=seq, epoch=welcome.epoch, t_ns=now, text=text))
            )
        if socket.poll(max(0, int(1e3 * (due - time.monotonic())))):
            message = decode_msgpack(socket.recv_multipart())
            if isinstance(message, CallMessage):
                status[message.status] += 1
                ticks.append(message.tick)
                lateness.append((time.monotonic_ns() - message.t_server_ns) / 1e6)
                if message.cause:
                    causes[message.cause] += 1
            elif isinstance(message, Ping):
                now = time.monotonic_ns()
                pong = Pong(id=message.id, t_ping_ns=message.t_ns, t_received_ns=now, t_sent_ns=now)
                socket.send_multipart(encode_msgpack(pong))
    missing = ticks[-1] - ticks[0] + 1 - len(set(ticks)) if ticks else 0
    lateness.sort()
    figures = {
        "ticks": len(ticks),
        "missing": missing,
        "status": dict(status),
        "causes": dict(causes),
        "on_the_way_ms": {"p50": lateness[len(lateness) // 2], "max": lateness[-1]} if lateness else {},
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
