"""A scripted server that remembers what the client did, and the results that a check reports."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import zmq

from rtcontrol_client.wire import LIMITS, PROTOCOL, Message, WireError, decode_msgpack, encode_msgpack
from rtcontrol_client.wire.messages import CallMessage, FunctionCall, Hello, Observe, Ping, Pong, Program, Welcome

HEARTBEAT_MS = 300.0
TTL_MS = 400.0
# Of each time that a client is given.
PATIENCE = 1.0
M = TypeVar("M", bound=Message)


class Stand:
    """A server with one ROUTER socket and one client. While `alive` it answers and sends pings, and nothing else."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.heard: list[Message] = []
        self.broken: list[str] = []  # messages that the client should not have sent
        self.peer: bytes | None = None
        self.hello: Hello | None = None
        self.token = ""
        self.tick = 0
        self.alive = True
        self._pinged_s = 0.0
        self._socket = self._open()

    def _open(self) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.ZAP_DOMAIN, b"rtcontrol")
        socket.setsockopt(zmq.MAXMSGSIZE, LIMITS.max_message_bytes)
        for attempt in range(50):
            try:
                socket.bind(self.endpoint)
                break
            except zmq.ZMQError:
                # The port of the socket that was closed just now.
                if attempt == 49:
                    raise
                time.sleep(0.1)
        self.endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        return socket

    def restart(self) -> None:
        """Act like a killed and restarted process: use a new socket, and forget the session."""
        self.close()
        self.peer, self.token, self.tick = None, "", 0
        self._socket = self._open()

    def close(self) -> None:
        self._socket.close(linger=0)

    def send(self, message: Message) -> None:
        self.send_raw(encode_msgpack(message))

    def send_raw(self, parts: list[bytes]) -> None:
        if self.peer is not None:
            self._socket.send_multipart([self.peer, *parts])

    def pump(self, seconds: float, until: Callable[[Message], bool] = lambda message: False) -> Message | None:
        """Receive messages until one fits or the time is over; return that message or None."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            if self.alive and self.token and time.monotonic() - self._pinged_s > HEARTBEAT_MS / 2000:
                self._pinged_s = time.monotonic()
                self.send(Ping(id=0, t_ns=time.monotonic_ns()))
            if not self._socket.poll(int(1e3 * min(left_s, 0.05)) + 1):
                continue
            peer, *parts = self._socket.recv_multipart()
            try:
                message = decode_msgpack(parts)
            except WireError as error:
                self.broken.append(str(error))
                continue
            if isinstance(message, Hello):
                self.peer, self.hello = peer, message
            elif peer != self.peer:
                continue  # of the connection before
            elif self.alive and isinstance(message, Ping):
                now = time.monotonic_ns()
                self.send(Pong(id=message.id, t_ping_ns=message.t_ns, t_received_ns=now, t_sent_ns=now))
            self.heard.append(message)
            if until(message):
                return message
        return None

    def expect(self, kind: type[M], seconds: float, what: str, fits: Callable[[M], bool] = lambda m: True) -> M:
        """Return the next message of the kind that fits. Raises Failure if none comes in time."""
        result = self.pump(PATIENCE * seconds, lambda m: isinstance(m, kind) and fits(m))
        if not isinstance(result, kind):
            broken = f"; last refused: {self.broken[-1][:160]}" if self.broken else ""
            raise Failure(f"no {what} in {seconds:g} s{broken}")
        return result

    def welcome(self, resumed: bool = False, token: str | None = None, **changes: Any) -> None:
        """Answer the client's hello with a welcome."""
        assert self.hello is not None
        if not resumed:
            self.token, self.tick = token or secrets.token_urlsafe(24), 0
        fields: dict[str, Any] = {
            "protocol": list(PROTOCOL),
            "server": Program(name="conformance"),
            "session": self.token,
            "resumed": resumed,
            "epoch": 0,
            "t_client_ns": self.hello.t_client_ns,
            "t_server_ns": time.monotonic_ns(),
            "agent": self.hello.agent,
            "tools": self.tools,
            "instruction": self.hello.instruction or "",
            "model": "none",
            "model_trained_on_tools": False,
            "safe_call": self.hello.safe_call,
            "pacing": self.hello.pacing,
            "hz": 10.0,
            **dict.fromkeys(("period_ms", "deadline_ms"), 100.0),
            "ttl_ms": TTL_MS,
            "max_age_ms": 1000.0,
            "on_miss": "hold",
            "hold_ms": 250.0,
            "heartbeat_ms": HEARTBEAT_MS,
            "session_grace_s": 30.0,
            "limits": LIMITS.to_dict(),
        }
        self.send(Welcome(**{**fields, **changes}))

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The client's tools, or one without parameters for a client that named an agent."""
        assert self.hello is not None
        return self.hello.tools or [{"type": "function", "function": {"name": "act"}}]

    def call(self, observed: Observe, **changes: Any) -> CallMessage:
        """Send a fresh call that answers the observation, with the next tick unless `changes` say otherwise."""
        if "tick" not in changes:
            self.tick += 1
        fields: dict[str, Any] = {
            "session": self.token,
            "tick": self.tick,
            "epoch": 0,
            "seq_obs": observed.seq,
            "t_obs_ns": observed.t_ns,
            "status": "fresh",
            "call": example(self.tools[0]),
            "ttl_ms": TTL_MS,
            "deadline_ns": time.monotonic_ns(),
            "t_server_ns": time.monotonic_ns(),
        }
        message = CallMessage(**{**fields, **changes})
        self.send(message)
        return message

    def observation(self) -> Observe:
        """Return the next observation of this session. Raises Failure."""
        return self.expect(Observe, 3.0, "observation", lambda m: m.session == self.token)

    def new_observation(self) -> Observe:
        """Return the next observation that is young enough, by this machine's CLOCK_MONOTONIC. Raises Failure."""
        return self.expect(Observe, 3.0, "new observation", self._is_new)

    def _is_new(self, message: Observe) -> bool:
        return message.session == self.token and time.monotonic_ns() - message.t_ns < TTL_MS * 500_000


def example(tool: Mapping[str, Any]) -> FunctionCall:
    """Return a legal call of a tool: for each required parameter the first value that the schema lists."""
    body = tool.get("function", tool)
    schema = body.get("parameters") or {}
    properties = schema.get("properties", {})
    return FunctionCall(name=body["name"], arguments={k: _value(properties[k]) for k in schema.get("required", [])})


def _value(schema: Mapping[str, Any]) -> Any:
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "string")
    number = schema.get("minimum", 0)
    return {"integer": number, "number": float(number), "boolean": False, "array": [], "object": {}}.get(kind, "a")


@dataclass(frozen=True)
class Finding:
    """The result for one behaviour: `passed`, `failed` or `skipped`, and why."""

    name: str
    status: Literal["passed", "failed", "skipped"]
    detail: str = ""


class Failure(Exception):
    """Raised if a behaviour is not as docs/protocol.md says; the text says what came instead."""


class Skip(Exception):
    """Raised if a behaviour cannot be checked with this client; the text says why."""


def table(findings: Sequence[Finding]) -> str:
    """Return the findings as lines of text for people."""
    width = max((len(f.name) for f in findings), default=0)
    lines = [f"{f.status:8} {f.name:{width}}  {f.detail}".rstrip() for f in findings]
    counts = {s: sum(f.status == s for f in findings) for s in ("passed", "failed", "skipped")}
    return "\n".join([*lines, ", ".join(f"{n} {s}" for s, n in counts.items())])
