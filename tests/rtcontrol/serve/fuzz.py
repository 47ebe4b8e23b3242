"""Hostile frames at a real server, an honest client beside them: `python -m tests.rtcontrol.serve.fuzz --frames N`."""

from __future__ import annotations

import argparse
import json
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack
import psutil
import zmq

from tests.bridges.client.worlds import Process, free_port
from tests.helpers.processes import Program
from tests.rtcontrol.serve.hostile import Hostile, valid

HZ = 16.0
# Enough that none of them exceeds the rate of messages that the server takes from one connection: all are decoded.
PEERS = 12


class Attacker:
    """A DEALER that opens sessions now and then, so that its frames reach every state."""

    def __init__(self, context: zmq.Context[Any], endpoint: str, seed: int) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger, self.socket.sndtimeo = 0, 10_000
        self.socket.connect(endpoint)
        self.hostile = Hostile(seed)
        self.told: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.next_hello = 0.0

    def attack(self) -> None:
        if time.monotonic() > self.next_hello:
            self.next_hello = time.monotonic() + 2.0
            self.socket.send(msgpack.packb(valid("", 0)[0]))
        kind, parts = self.hostile.frame()
        self.socket.send_multipart(parts)  # a server that reads nothing for 10 s raises zmq.Again: a hang
        self.sent[kind] += 1
        while self.socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            answer = msgpack.unpackb(self.socket.recv_multipart()[0])
            self.told[answer["code"] if answer["type"] == "error" else answer["type"]] += 1
            if answer["type"] == "welcome":
                self.hostile.session, self.hostile.seq = answer["session"], 0


def raw_bytes(port: int, chance: random.Random) -> None:
    """What a port scanner, a browser or a broken client sends: no ZMTP at all, or only its beginning."""
    zmtp = (b"\x01\x00\x05\x00abcd", b"\xff" + bytes(8) + b"\x7f\x03")
    starts = (b"GET / HTTP/1.1\r\n\r\n", *zmtp, b"\x16\x03\x01", b"")
    with closing(socket.socket()) as raw:
        raw.settimeout(5)
        raw.connect(("127.0.0.1", port))
        raw.sendall(chance.choice(starts) + chance.randbytes(chance.randrange(600)))


def run(frames: int, seed: int = 1, raw_share: float = 0.005, echo: bool = True) -> dict[str, Any]:
    """The figures of an attack with `frames` frames."""
    with tempfile.TemporaryDirectory() as out:
        server = Process(Path(out), free_port())
        server.start()
        command = ["-m", "tests.rtcontrol.serve.honest", server.endpoint, str(HZ)]
        honest = Program(command, Path(out) / "honest.txt", stdout=subprocess.PIPE)
        try:
            found = _attack(server, honest.popen, frames, seed, raw_share, echo)
        except psutil.NoSuchProcess:
            raise AssertionError(f"the server ended; it said: {server.logs()[-2000:]}") from None
        finally:
            honest.end()
            server.stop()
        reports = [json.loads(report.read_text()) for report in Path(out).glob("records/*/report*.json")]
        own = [report for report in reports if report["wire"]["client"]["name"] == "honest"]
        found["honest"]["skipped_releases"] = sum(report["skipped_releases"] for report in own)
        return found


def _attack(
    server: Process, honest: subprocess.Popen[str], frames: int, seed: int, raw_share: float, echo: bool
) -> dict[str, Any]:
    assert server.process is not None and honest.stdout is not None
    assert honest.stdout.readline().strip() == "ready", "the honest client was not welcomed"
    context: zmq.Context[Any] = zmq.Context()
    attackers = [Attacker(context, server.endpoint, seed + i) for i in range(PEERS)]
    process, chance = psutil.Process(server.process.pid), random.Random(seed)
    rss, raws, began = [process.memory_info().rss], 0, time.monotonic()
    for n in range(frames):
        if chance.random() < raw_share:
            raw_bytes(int(server.endpoint.rpartition(":")[2]), chance)
            raws += 1
        else:
            attackers[n % PEERS].attack()
        if n % 5000 == 0:
            rss.append(process.memory_info().rss)
            if echo and n % 50_000 == 0:
                print(f"{n} frames, {time.monotonic() - began:.0f} s, RSS {rss[-1] >> 20} MiB", file=sys.stderr)
    seconds = time.monotonic() - began
    honest.send_signal(signal.SIGTERM)
    said = json.loads(honest.communicate(timeout=30)[0])
    alive = server.process.poll() is None
    context.destroy(linger=0)
    rss.append(process.memory_info().rss)
    warm = rss[max(1, len(rss) // 10) :]
    sent = sum((a.sent for a in attackers), Counter({"raw TCP bytes": raws}))
    return {
        "frames": sum(sent.values()),
        "seconds": round(seconds, 1),
        "sent": dict(sent),
        "told": dict(sum((a.told for a in attackers), Counter())),
        "server_alive": alive,
        "rss_mib": {"start": rss[0] >> 20, "tenth": warm[0] >> 20, "max": max(rss) >> 20, "end": rss[-1] >> 20},
        "honest": said,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(json.dumps(run(given.frames, given.seed), indent=1))
