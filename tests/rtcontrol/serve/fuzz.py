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
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack
import psutil
import zmq

from tests.bridges.client.worlds import Process
from tests.helpers.processes import Program, free_port

Frame = list[bytes]


ODD: list[Any] = [None, True, -1, 0, 1.5, float("nan"), float("inf"), 2**64 - 1, -(2**63)]


ODD += ["", "x", "<|im_end|><function>", "\u202e\U0001f680\x00", "y" * 70_000, b"raw bytes"]


ODD += [[], [[[[[]]]]], {}, {"a": {"b": {"c": 1}}}, [0] * 5000]


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def valid(session: str, seq: int) -> list[dict[str, Any]]:
    """One good message of each type that a client sends."""
    now = time.monotonic_ns()
    call = {"name": "engines", "arguments": {"main": 0, "side": 0}}
    hello = {
        "type": "hello",
        "protocol": [1, 0],
        "client": {"name": "fuzz", "version": "1", "language": "python"},
        "t_client_ns": now,
        "capabilities": ["executed"],
        "agent": "lander",
        "pacing": "client",
        "hz": 16.0,
        "safe_call": call,
        "ttl_ms": 500.0,
    }
    head = {"session": session}
    array = {"name": "a", "dtype": "u1", "shape": [1], "part": 1}
    return [
        hello,
        {"type": "observe", **head, "seq": seq, "epoch": 1, "t_ns": now, "text": "x 0 y 100"},
        {"type": "observe", **head, "seq": seq, "epoch": 1, "t_ns": now, "data": {"x": 1}, "arrays": [array]},
        {"type": "executed", **head, "tick": 0, "epoch": 1, "outcome": "executed", "t_ns": now, "result": "ok"},
        {"type": "instruct", **head, "instruction": "land on the pad"},
        {"type": "reset", **head, "epoch": 1, "ended": {"seed": 1, "return": 1.0, "success": True, "seconds": 1.0}},
        {"type": "ping", "id": 1, "t_ns": now},
        {"type": "pong", "id": 1, "t_ping_ns": now, "t_received_ns": now, "t_sent_ns": now},
        {"type": "error", "code": "internal", "message": "none"},
    ]


class Hostile:
    """Makes frames; `session` is a live session's token of this very connection, or a made-up one."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.session = "f" * 32
        self.seq = 0
        self.kinds: dict[str, Callable[[], Frame]] = {
            "random bytes": self.random_bytes,
            "flipped bytes": self.flipped,
            "truncated": self.truncated,
            "wrong type in a field": self.wrong_type,
            "field missing or added": self.field,
            "not finite": self.not_finite,
            "deep nesting": self.deep,
            "oversized": self.oversized,
            "many parts": self.parts,
            "replayed or reordered": self.replayed,
            "foreign session": self.foreign,
            "wrong state": self.wrong_state,
        }
        self.weights = [12, 15, 10, 20, 10, 6, 4, 0.02, 2, 12, 6, 3]

    def frame(self) -> tuple[str, Frame]:
        """(kind, parts)."""
        kind = self.chance.choices(list(self.kinds), self.weights)[0]
        return kind, self.kinds[kind]()

    def _one(self) -> dict[str, Any]:
        self.seq += 1
        return self.chance.choice(valid(self.session, self.seq))

    def _pack(self, header: Any) -> Frame:
        parts = [msgpack.packb(header)]
        if isinstance(header, dict) and header.get("arrays"):
            parts.append(b"\x01")
        return parts

    def _observe(self, seq: int, epoch: int, **fields: Any) -> Frame:
        return self._pack({"type": "observe", "session": self.session, "seq": seq, "epoch": epoch, "t_ns": 1, **fields})

    def random_bytes(self) -> Frame:
        sizes = self.chance.choices((0, 1, 2, 7, 64, 500), k=self.chance.choice((1, 1, 1, 3)))
        return [self.chance.randbytes(size) for size in sizes]

    def flipped(self) -> Frame:
        parts = self._pack(self._one())
        body = bytearray(parts[0])
        for _ in range(self.chance.randint(1, 4)):
            body[self.chance.randrange(len(body))] = self.chance.randrange(256)
        return [bytes(body), *parts[1:]]

    def truncated(self) -> Frame:
        parts = self._pack(self._one())
        return [parts[0][: self.chance.randrange(len(parts[0]))]]

    def wrong_type(self) -> Frame:
        header = self._one()
        inner = [v for v in header.values() if isinstance(v, dict) and v]
        target = self.chance.choice([header, *inner])
        target[self.chance.choice(list(target))] = self.chance.choice(ODD)
        return self._pack(header)

    def field(self) -> Frame:
        header = self._one()
        if self.chance.random() < 0.5:
            header.pop(self.chance.choice(list(header)))
        else:
            header[self.chance.choice(("extra", "session", "tools", "seq", "robot"))] = self.chance.choice(ODD)
        return self._pack(header)

    def not_finite(self) -> Frame:
        bad = self.chance.choice((float("nan"), float("inf"), float("-inf")))
        return self._observe(1, 1, data={"x": [bad]})

    def deep(self) -> Frame:
        depth = self.chance.choice((17, 100, 600, 5000))
        opener = self.chance.choice((b"\x91", b"\x81\xa1a"))
        return [opener * depth + b"\xc0"]

    def oversized(self) -> Frame:
        return [b"\xc6" + (2 << 20).to_bytes(4, "big") + bytes(2 << 20)]

    def parts(self) -> Frame:
        return [*self._pack(self._one()), *(b"p" for _ in range(self.chance.choice((1, 5, 9, 200))))]

    def replayed(self) -> Frame:
        seq = self.chance.choice((0, 1, max(0, self.seq - 5), self.seq, 2**53 - 1, 2**63))
        epoch = self.chance.choice((0, 1, 1, 1, 2, 10**6))
        return self._observe(seq, epoch, text="x")

    def foreign(self) -> Frame:
        session = self.chance.choice(("e" * 32, "", "short", "\x00" * 20, self.session[::-1]))
        return self._pack({**self._one(), "session": session})

    def wrong_state(self) -> Frame:
        server = [
            {"type": "welcome", "session": self.session},
            {"type": "call", "session": self.session, "tick": 1, "epoch": 1, "status": "fresh", "ttl_ms": 1.0},
            {"type": "bye", "session": "e" * 32},
            {"type": "hello", "protocol": [2, 0], "client": {"name": "new"}, "t_client_ns": 1},
            {"type": "hello", "protocol": [1, 0], "client": {"name": "x"}, "t_client_ns": 1, "agent": "nobody"},
            {"type": "hello", "protocol": [1, 0], "client": {"name": "x"}, "t_client_ns": 1, "tools": [{"name": 3}]},
        ]
        return self._pack(self.chance.choice(server))


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
