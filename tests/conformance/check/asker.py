"""A raw peer of a server: what is sent is what a check says, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import zmq

from rtcontrol.bridges.client.options import Options
from rtcontrol.bridges.wire import Message, WireError, decode_msgpack, encode_msgpack
from rtcontrol.bridges.wire.messages import Bye, ErrorMessage, Hello, Observe, Welcome
from tests.conformance.check.finding import Failure

M = TypeVar("M", bound=Message)
ANSWER_S = 5.0


class Asker:
    """A DEALER without any help: what is sent is what the test says."""

    def __init__(self, endpoint: str, options: Options, wait_s: float) -> None:
        self.endpoint, self.options, self.wait_s = endpoint, options, wait_s
        self.token, self.epoch, self.seq = "", 0, 0
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        if (keys := options.key_pairs()) is not None:
            pair, server = keys
            self._socket.setsockopt(zmq.CURVE_PUBLICKEY, pair.public.encode())
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, pair.secret.encode())
            self._socket.setsockopt(zmq.CURVE_SERVERKEY, server.encode())
        self._socket.connect(endpoint)

    def close(self) -> None:
        if self.token:
            self.send(Bye(session=self.token, reason="checked"))
        self._socket.close(linger=200)

    def send(self, message: Message) -> None:
        self._socket.send_multipart(encode_msgpack(message))

    def raw(self, *parts: bytes) -> None:
        self._socket.send_multipart(parts)

    def take(self, seconds: float) -> Message | None:
        if not self._socket.poll(int(1e3 * seconds)):
            return None
        parts = self._socket.recv_multipart()
        try:
            return decode_msgpack(parts)
        except WireError as error:
            raise Failure(f"a message that breaks the protocol: {error}") from None

    def expect(self, kind: type[M], what: str, fits: Callable[[M], bool] = lambda m: True, s: float | None = None) -> M:
        s = min(ANSWER_S, self.wait_s) if s is None else s
        end_s, others = time.monotonic() + s, []
        while (left_s := end_s - time.monotonic()) > 0:
            message = self.take(left_s)
            if isinstance(message, kind) and fits(message):
                return message
            if isinstance(message, ErrorMessage):
                others.append(f"{message.code}: {message.message}")
        raise Failure(f"no {what} in {s:g} s" + (f"; but {others[-1]}" if others else ""))

    def error(self, code: str, after: str) -> ErrorMessage:
        told = self.expect(ErrorMessage, f"error after {after}")
        if told.code != code:
            raise Failure(f"error {told.code} after {after}, not {code}: {told.message}")
        if not told.message or not told.remedy:
            raise Failure("an error without message or remedy")
        return told

    def hello(self, **changes: Any) -> Hello:
        hello = self.options.hello(time.monotonic_ns()).model_copy(update=changes)
        self.send(hello)
        return hello

    def greet(self, **changes: Any) -> Welcome:
        hello = self.hello(**changes)
        welcome = self.expect(Welcome, "welcome", s=self.wait_s)
        if welcome.t_client_ns != hello.t_client_ns:
            raise Failure("t_client_ns is not the hello's")
        self.token, self.epoch = welcome.session, welcome.epoch
        return welcome

    def observe(self, **changes: Any) -> Observe:
        self.seq += 1
        fields = {"session": self.token, "seq": self.seq, "epoch": self.epoch, "t_ns": time.monotonic_ns()}
        message = Observe(**{**fields, "text": "left 40 right 10", **changes})
        self.send(message)
        return message
