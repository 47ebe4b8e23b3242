"""A server whose decisions are a rule, in a thread: it speaks the wire at 16 Hz, and can be made to fall silent or to
send calls that are too old."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq

from rtcontrol.bridges.wire import PROTOCOL, decode_msgpack, encode_msgpack
from rtcontrol.bridges.wire.messages import (
    Bye,
    CallMessage,
    ErrorMessage,
    Executed,
    FunctionCall,
    Hello,
    Instruct,
    Observe,
    Ping,
    Pong,
    Program,
    Welcome,
)

HZ = 16.0
Policy = Callable[[str, str], FunctionCall]


def wander(text: str, instruction: str) -> FunctionCall:
    """Drive on; turn left where something is near. Told to halt: halt."""
    if instruction == "halt":
        return FunctionCall(name="stop")
    field = {name: float(value) for name, value in re.findall(r"(\w+) (-?[\d.]+)", text)}
    near = min(field["ahead"], field["left"], field["right"]) < 0.8
    return FunctionCall(name="drive", arguments={"speed": 0 if near else 30, "turn": "left" if near else "straight"})


class Brain:
    """`policy` gives the call for a text and an instruction.

    `silent`: nothing is sent; `stalled`: what is to be sent waits, and goes out at once when that is over; `bye`: says
    it once; `left`: it heard one; `age_ms`: this much is added to the age of what is answered. `sent_ms`: the age of
    each tick's call when it left.
    """

    def __init__(self, policy: Policy = wander, ttl_ms: float = 500.0) -> None:
        self.policy, self.ttl_ms = policy, ttl_ms
        self.silent = self.stalled = self.bye = self.left = False
        self.complaint: ErrorMessage | None = None  # said once
        self.sent_ms: dict[int, float] = {}
        self._queue: deque[CallMessage] = deque()
        self.age_ms = 0.0
        self.hello: Hello | None = None
        self.instruction = ""
        self.observed: Observe | None = None
        self.outcomes: list[Executed] = []
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.linger = 0
        self.endpoint = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        peer, tick, due = b"", 0, time.monotonic()
        while not self._stop.is_set():
            if self._socket.poll(max(0, int(1e3 * (due - time.monotonic())))):
                peer, *parts = self._socket.recv_multipart()
                self._hear(peer, decode_msgpack(parts))
            if time.monotonic() >= due:
                due += 1 / HZ
                tick += 1
                if self.observed is not None and not self.silent:
                    self._queue.append(self._call(tick, self.observed))
            if self.bye:
                self.bye, self.observed = False, None
                self._send(peer, Bye(reason="enough"))
            if self.complaint is not None:
                self._send(peer, self.complaint)
                self.complaint = None
            while self._queue and not self.stalled:
                call = self._queue.popleft()
                self.sent_ms[call.tick] = (time.monotonic_ns() - (call.t_obs_ns or 0)) / 1e6
                self._send(peer, call)

    def _call(self, tick: int, seen: Observe) -> CallMessage:
        now = time.monotonic_ns()
        return CallMessage(
            session=seen.session,
            tick=tick,
            epoch=0,
            seq_obs=None,
            t_obs_ns=seen.t_ns - int(self.age_ms * 1e6),
            status="fresh",
            call=self.policy(seen.text or "", self.instruction),
            ttl_ms=self.ttl_ms,
            deadline_ns=now,
            t_server_ns=now,
        )

    def _send(self, peer: bytes, message: Any) -> None:
        self._socket.send_multipart([peer, *encode_msgpack(message)])

    def _hear(self, peer: bytes, message: Any) -> None:
        now = time.monotonic_ns()
        if isinstance(message, Hello):
            self.hello, self.instruction, self.observed = message, message.instruction or "", None
            self._send(peer, self._welcome(message, now))
        elif isinstance(message, Observe):
            self.observed = message
        elif isinstance(message, Instruct):
            self.instruction = message.instruction
        elif isinstance(message, Bye):
            self.left = True
        elif isinstance(message, Executed):
            self.outcomes.append(message)
        elif isinstance(message, Ping):
            self._send(peer, Pong(id=message.id, t_ping_ns=message.t_ns, t_received_ns=now, t_sent_ns=now))

    def _welcome(self, hello: Hello, now: int) -> Welcome:
        return Welcome(
            protocol=list(PROTOCOL),
            server=Program(name="brain"),
            session="0123456789abcdef",
            resumed=False,
            epoch=0,
            t_client_ns=hello.t_client_ns,
            t_server_ns=now,
            tools=hello.tools or [],
            instruction=hello.instruction or "",
            model="rule",
            model_trained_on_tools=True,
            pacing="server",
            hz=HZ,
            period_ms=1000 / HZ,
            deadline_ms=1000 / HZ,
            ttl_ms=self.ttl_ms,
            max_age_ms=250.0,
            on_miss="hold",
            hold_ms=500.0,
            heartbeat_ms=1000.0,
            session_grace_s=30.0,
            limits={},
        )
