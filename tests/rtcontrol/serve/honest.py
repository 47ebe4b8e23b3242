"""An honest client in a process of its own, which counts what it is told: `python -m tests.rtcontrol.serve.honest
ENDPOINT HZ`. It prints `ready` once welcomed, and its figures on SIGTERM."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter

from rtcontrol_client.wire.messages import CallMessage, Program
from tests.rtcontrol.serve.wire_peer import WirePeer


def main(endpoint: str, hz: float) -> None:
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    peer = WirePeer(endpoint)
    peer.enter(client=Program(name="honest"), hz=hz)
    print("ready", flush=True)
    status: Counter[str] = Counter()
    causes: Counter[str] = Counter()
    ticks: list[int] = []
    lateness: list[float] = []
    due = time.monotonic()
    while not ended:
        # Twice as often as the loop ticks: an observation is never older than half a period.
        if time.monotonic() >= due:
            due += 0.5 / hz
            peer.observe()
        message = peer.receive(due - time.monotonic())
        if isinstance(message, CallMessage):
            status[message.status] += 1
            ticks.append(message.tick)
            lateness.append((time.monotonic_ns() - message.t_server_ns) / 1e6)
            if message.cause:
                causes[message.cause] += 1
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
