"""A TCP proxy between a client and a server that understands what passes: the evidence of a fault run, and the place
to stall the link."""

from __future__ import annotations

import contextlib
import itertools
import socket as sockets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rtcontrol_client.wire import Message, WireError, decode_json, decode_msgpack
from rtcontrol_client.wire.messages import CallMessage, Executed

GREETING = 64


@dataclass(frozen=True)
class Said:
    """A message on its way: `t_ns` is when the proxy passed it on, on the monotonic clock; `up`: to the server."""

    t_ns: int
    up: bool
    message: Message


class Splitter(ABC):
    """One direction of a connection without encryption: bytes in, messages out."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._greeted = False
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that these bytes complete; what is none is passed over."""
        self._bytes += data
        if not self._greeted and (begins := self.greeting()):
            self._greeted = True
            del self._bytes[:begins]
        while self._greeted and (frame := self.frame()) is not None:
            kind, more, body = frame
            if kind == "control":
                continue
            self._parts.append(body)
            if not more:
                parts, self._parts = self._parts, []
                with contextlib.suppress(WireError):
                    yield self.decoded(parts)

    @abstractmethod
    def greeting(self) -> int:
        """How many bytes are said first; 0: not all are there."""

    @abstractmethod
    def frame(self) -> tuple[str, bool, bytes] | None:
        """Take the next frame, once it is complete: `control` or `data`, whether the message goes on, its bytes."""

    @abstractmethod
    def decoded(self, parts: list[bytes]) -> Message:
        """The message in these frames. Raises WireError."""

    def _body(self, head: int, length: int) -> bytes | None:
        held = self._bytes
        if len(held) < head + length:
            return None
        body = bytes(held[head : head + length])
        del held[: head + length]
        return body


class Zmtp(Splitter):
    """ZMTP 3, messages in msgpack."""

    def greeting(self) -> int:
        return GREETING if len(self._bytes) >= GREETING else 0

    def frame(self) -> tuple[str, bool, bytes] | None:
        held = self._bytes
        if len(held) < 2 or len(held) < (head := 9 if held[0] & 2 else 2):
            return None
        flags, body = held[0], self._body(head, int.from_bytes(held[1:head], "big"))
        return None if body is None else ("control" if flags & 4 else "data", bool(flags & 1), body)

    def decoded(self, parts: list[bytes]) -> Message:
        return decode_msgpack(parts)


class WebSocket(Splitter):
    """RFC 6455 without extensions, messages in JSON."""

    def greeting(self) -> int:
        return self._bytes.find(b"\r\n\r\n") + 4 if b"\r\n\r\n" in self._bytes else 0

    def frame(self) -> tuple[str, bool, bytes] | None:
        held = self._bytes
        if len(held) < 2:
            return None
        length, head = held[1] & 127, 2
        if length > 125:
            head = 4 if length == 126 else 10
            length = int.from_bytes(held[2:head], "big")
        masked = 4 if held[1] & 128 else 0
        first, mask = held[0], bytes(held[head : head + masked]) or bytes(4)
        body = self._body(head + masked, length)
        if body is None:
            return None
        body = bytes(b ^ m for b, m in zip(body, itertools.cycle(mask)))
        return "control" if first & 8 else "data", not first & 128, body

    def decoded(self, parts: list[bytes]) -> Message:
        return decode_json(b"".join(parts).decode("utf-8", "replace"))


class Tap:
    """Passes on to a port of this machine; where nobody listens there, a caller is hung up on. `said` is everything
    that was understood."""

    def __init__(self, port: int, splitter: type[Splitter] = Zmtp) -> None:
        self._to, self._splitter = port, splitter
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
        splitter = self._splitter()
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
