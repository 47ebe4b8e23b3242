"""A TCP proxy between a client and a server that understands what passes: the evidence of a fault run, and the place
to stall the link."""

from __future__ import annotations

import contextlib
import socket as sockets
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rtcontrol_client.wire import Message, WireError, decode_msgpack
from rtcontrol_client.wire.messages import CallMessage, Executed

GREETING = 64


@dataclass(frozen=True)
class Said:
    """A message on its way: `t_ns` is when the proxy passed it on, on the monotonic clock; `up`: to the server."""

    t_ns: int
    up: bool
    message: Message


class Zmtp:
    """One direction of a ZMTP 3 connection without encryption: bytes in, messages out."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._greeted = False
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages that these bytes complete, without those that cannot be decoded."""
        self._bytes += data
        if not self._greeted and len(self._bytes) >= GREETING:
            self._greeted = True
            del self._bytes[:GREETING]
        while self._greeted and (frame := self._frame()) is not None:
            flags, body = frame
            if flags & 4:  # a command
                continue
            self._parts.append(body)
            if not flags & 1:
                parts, self._parts = self._parts, []
                with contextlib.suppress(WireError):
                    yield decode_msgpack(parts)

    def _frame(self) -> tuple[int, bytes] | None:
        """Take the next frame, once it is complete: its flags and bytes."""
        held = self._bytes
        if len(held) < 2 or len(held) < (head := 9 if held[0] & 2 else 2):
            return None
        flags, end = held[0], head + int.from_bytes(held[1:head], "big")
        if len(held) < end:
            return None
        body = bytes(held[head:end])
        del held[:end]
        return flags, body


class Tap:
    """Passes on to a port of this machine; where nobody listens there, a caller is hung up on. `said` is everything
    that was understood."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = sockets.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.said: list[Said] = []
        self._held_until = 0.0
        threading.Thread(target=self._accept, daemon=True).start()

    def stall(self, seconds: float) -> None:
        """Nothing passes for so long, in both directions; then all of it does, in order."""
        self._held_until = time.monotonic() + seconds

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = sockets.create_connection(("127.0.0.1", self._to))
                except OSError:
                    near.close()
                    continue
                for a, b, up in ((near, far, True), (far, near, False)):
                    b.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
                    threading.Thread(target=self._pass, args=(a, b, up), daemon=True).start()

    def _pass(self, source: sockets.socket, sink: sockets.socket, up: bool) -> None:
        splitter = Zmtp()
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                while (left_s := self._held_until - time.monotonic()) > 0:
                    time.sleep(left_s)
                # Noted before it is passed on: an answer cannot stand before what it answers.
                now_ns = time.monotonic_ns()
                self.said += [Said(now_ns, up, message) for message in splitter.feed(data)]
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(sockets.SHUT_RDWR)

    # What it heard.

    def calls(self, begin_ns: int = 0, end_ns: int | None = None) -> list[tuple[int, CallMessage]]:
        """The calls that passed to the client in a time, with when."""
        found = [(s.t_ns, s.message) for s in list(self.said) if isinstance(s.message, CallMessage)]
        return [(t, m) for t, m in found if begin_ns <= t and (end_ns is None or t < end_ns)]

    def outcomes(self, begin_ns: int = 0) -> list[Executed]:
        """What the client said of the calls since."""
        return [s.message for s in list(self.said) if isinstance(s.message, Executed) and s.t_ns >= begin_ns]


def too_old(commands: Iterable[int], calls: Iterable[tuple[int, CallMessage]]) -> int:
    """How many commands (instants in ns) were given when no call that had come was within its time-to-live."""
    fresh = [(t, (m.t_obs_ns or 0) + m.ttl_ms * 1e6) for t, m in calls if m.status == "fresh"]
    return sum(all(t > at or end < at for t, end in fresh) for at in commands)
