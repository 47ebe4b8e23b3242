"""The tests' client: a raw DEALER for the wire protocol, without the client library."""

from __future__ import annotations

import time
from typing import Any, Self, TypeVar

import zmq

from rtcontrol_client.wire import PROTOCOL, Message, decode_msgpack, encode_msgpack
from rtcontrol_client.wire.messages import CallMessage, ErrorMessage, Hello, Observe, Ping, Pong, Program, Welcome

M = TypeVar("M")
WAIT_S = 60.0
TEXT = "x 0 y 100 vx 0 vy 0 angle 0 spin 0 legs 0 0"


class WirePeer:
    """A client whose `inbox` keeps messages that no call expected; `receive` answers pings."""

    def __init__(self, endpoint: str) -> None:
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(endpoint)
        self.welcome: Welcome | None = None
        self.inbox: list[Message] = []
        self.seq = 0
        self.epoch = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close(0)

    def send(self, message: Message) -> None:
        self.socket.send_multipart(encode_msgpack(message))

    def receive(self, timeout_s: float = WAIT_S) -> Message | None:
        """Return the next message that is not a ping."""
        give_up = time.monotonic() + timeout_s
        while (left := give_up - time.monotonic()) > 0:
            if self.socket.poll(int(1e3 * left) + 1):
                message = decode_msgpack(self.socket.recv_multipart())
                if not isinstance(message, Ping):
                    return message
                now = time.monotonic_ns()
                self.send(Pong(id=message.id, t_ping_ns=message.t_ns, t_received_ns=now, t_sent_ns=now))
        return None

    def expect(self, kind: type[M], timeout_s: float = WAIT_S, **fields: Any) -> M:
        """Return the next message of this type with these values; others go to the inbox."""
        give_up = time.monotonic() + timeout_s
        while (message := self.receive(max(0.0, give_up - time.monotonic()))) is not None:
            if isinstance(message, kind) and all(getattr(message, k) == v for k, v in fields.items()):
                return message
            self.inbox.append(message)
        raise AssertionError(f"no {kind.__name__} {fields or ''} in {timeout_s:g} s; came: {self.inbox[-5:]}")

    def hello(self, **fields: Any) -> Hello:
        """Send a hello, by default for the lander."""
        if "tools" not in fields and "resume" not in fields:
            fields.setdefault("agent", "lander")
        fields.setdefault("client", Program(name="test"))
        fields.setdefault("protocol", list(PROTOCOL))
        hello = Hello(t_client_ns=time.monotonic_ns(), **fields)
        self.send(hello)
        return hello

    def enter(self, **fields: Any) -> Welcome:
        """Send a hello, and return the welcome."""
        hello = self.hello(**fields)
        welcome = self.expect(Welcome)
        assert welcome.t_client_ns == hello.t_client_ns
        self.welcome, self.epoch = welcome, welcome.epoch
        return welcome

    def refused(self, timeout_s: float = WAIT_S) -> ErrorMessage:
        return self.expect(ErrorMessage, timeout_s)

    def denied(self, **fields: Any) -> ErrorMessage:
        """Send a hello, and return the refusal."""
        self.hello(**fields)
        return self.refused()

    @property
    def token(self) -> str:
        return "" if self.welcome is None else self.welcome.session

    def observe(self, text: str | None = TEXT, **fields: Any) -> int:
        """Send an observation; return the sequence number."""
        self.seq += 1
        base = {"session": self.token, "seq": self.seq, "epoch": self.epoch, "t_ns": time.monotonic_ns(), "text": text}
        message = Observe(**{**base, **fields})
        self.send(message)
        return message.seq

    def ask(self, text: str | None = TEXT, **fields: Any) -> CallMessage:
        """Send an observation in a client-paced session, and return the call."""
        return self.expect(CallMessage, seq_obs=self.observe(text, **fields))
