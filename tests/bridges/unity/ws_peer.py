"""A peer that opens WebSockets and then sends whatever bytes a test wants; what the client sends, frame by frame."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import socket as sockets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def frame(kind: int, body: bytes = b"", last: bool = True, mask: bytes = b"", size: bytes | None = None) -> bytes:
    """One frame of a server; `size` replaces its length's bytes, `mask` makes it a client's."""
    if size is None:
        n = len(body)
        size = (
            bytes([n]) if n < 126 else b"\x7e" + n.to_bytes(2, "big") if n < 65536 else b"\x7f" + n.to_bytes(8, "big")
        )
    head = bytes([(0x80 if last else 0) | kind, size[0] | (0x80 if mask else 0)]) + size[1:]
    return head + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(body)) if mask else head + body


def close(code: int, reason: str = "") -> bytes:
    return frame(CLOSE, code.to_bytes(2, "big") + reason.encode())


@dataclass
class Heard:
    """A frame of the client."""

    kind: int
    masked: bool
    mask: bytes
    body: bytes


@dataclass
class WsPeer:
    """`parts` are sent after the handshake, whose answer `answer` makes of the key; a number is a pause in seconds."""

    parts: list[bytes | float]
    answer: Callable[[bytes], bytes]
    reads: bool = True
    url: str = ""
    requests: list[bytes] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)

    def talk(self, peer: sockets.socket, over: threading.Event) -> None:
        request = b""
        while b"\r\n\r\n" not in request and (more := peer.recv(65536)):
            request += more
        self.requests.append(request)
        key = re.search(rb"(?i)sec-websocket-key: (\S+)", request)
        peer.sendall(self.answer(key[1] if key else b""))
        for part in self.parts:
            if isinstance(part, float):
                time.sleep(part)
            else:
                peer.sendall(part)
        if not self.reads:
            over.wait()
        data = b""
        while more := peer.recv(65536):
            data = self._frames(data + more)

    def _frames(self, data: bytes) -> bytes:
        while len(data) >= 2:
            size, at = data[1] & 0x7F, 2
            if size >= 126:
                wide = 2 if size == 126 else 8
                size, at = int.from_bytes(data[2 : 2 + wide], "big"), 2 + wide
            masked = bool(data[1] & 0x80)
            mask = data[at : at + 4] if masked else b""
            at += len(mask)
            if len(data) < at + size:
                break
            body = (
                bytes(b ^ mask[i % 4] for i, b in enumerate(data[at : at + size])) if masked else data[at : at + size]
            )
            self.heard.append(Heard(data[0] & 0x0F, masked, mask, body))
            data = data[at + size :]
        return data

    def of(self, kind: int) -> list[Heard]:
        return [one for one in self.heard if one.kind == kind]


def accepted(key: bytes, **changes: str | None) -> bytes:
    """The answer that says yes; `changes` are headers by their names with `_` for `-`, None: left out."""
    headers: dict[str, Any] = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Accept": base64.b64encode(hashlib.sha1(key + GUID).digest()).decode(),
        "Sec-WebSocket-Protocol": "rtcontrol.v1",
    }
    headers |= {name.replace("_", "-"): value for name, value in changes.items()}
    lines = [f"{name}: {value}\r\n" for name, value in headers.items() if value is not None]
    return ("HTTP/1.1 101 Switching Protocols\r\n" + "".join(lines) + "\r\n").encode()


@contextlib.contextmanager
def ws_peer(*parts: bytes | float, answer: Callable[[bytes], bytes] = accepted, reads: bool = True) -> Iterator[WsPeer]:
    """Does so to whoever connects."""
    over = threading.Event()
    peer = WsPeer(list(parts), answer, reads)

    def talk(one: sockets.socket) -> None:
        with contextlib.suppress(OSError):
            peer.talk(one, over)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                one, _ = listener.accept()
                threading.Thread(target=talk, args=(one,), daemon=True).start()

    with sockets.create_server(("127.0.0.1", 0)) as listener:
        peer.url = f"ws://127.0.0.1:{listener.getsockname()[1]}/ws"
        threading.Thread(target=serve, daemon=True).start()
        yield peer
        over.set()
