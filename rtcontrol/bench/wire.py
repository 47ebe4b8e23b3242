"""`rtcontrol bench wire`: observation out to call in, beside a bare echo of the same bytes and openpi's client."""

from __future__ import annotations

import importlib.util
import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from http.client import HTTPConnection
from typing import Any, Protocol, Self

import zmq

from rtcontrol.models.errors import UserError
from rtcontrol.models.questions import StateQuestion
from rtcontrol_client.wire import PROTOCOL, decode_json, decode_msgpack, encode_json, encode_msgpack
from rtcontrol_client.wire.messages import (
    CallMessage,
    ErrorMessage,
    Hello,
    Message,
    Observe,
    Ping,
    Pong,
    Program,
    Welcome,
)

TIMEOUT_MS = 30_000
OPTIONS = ("main", "side", "none")
LEVELS = ("slow", "middling", "fast")
# The same three as the model reads them, and in the words of both decision APIs.
STATED = (
    StateQuestion("Is it falling?\ntrue\nfalse", ("true", "false")),
    StateQuestion("Which engine?\nmain\nside\nnone", OPTIONS),
    StateQuestion("How fast?\n0: slow\n1: middling\n2: fast", ("0", "1", "2")),
)
QUESTIONS: list[dict[str, Any]] = [
    {"type": "predicate", "instructions": "Is it falling?"},
    {"type": "choice", "instructions": "Which engine?", "choices": [{"value": value} for value in OPTIONS]},
    {"type": "score", "instructions": "How fast?", "levels": [{"label": label} for label in LEVELS]},
]
NAMED: dict[str, dict[str, Any]] = {
    "falling": {"type": "noul", "instructions": "Is it falling?"},
    "engine": {"type": "choice", "instructions": "Which engine?", "criteria": dict.fromkeys(OPTIONS)},
    "speed": {"type": "score", "instructions": "How fast?", "criteria": list(LEVELS)},
}


class Way(Protocol):
    """One round trip. `text` is the observation."""

    def trip(self, text: str) -> None: ...

    def close(self) -> None: ...


def hello(agent: str, **options: Any) -> Hello:
    """A client-paced hello of the benchmark's."""
    client = Program(name="bench", language="python")
    named = {"pacing": "client", **options}
    return Hello(protocol=list(PROTOCOL), client=client, t_client_ns=time.monotonic_ns(), agent=agent, **named)


def pong(ping: Ping) -> Pong:
    """The answer that keeps a session alive while it is opened."""
    now = time.monotonic_ns()
    return Pong(id=ping.id, t_ping_ns=ping.t_ns, t_received_ns=now, t_sent_ns=now)


class WireSession:
    """The client's side of a session, without a transport."""

    def __init__(self, welcome: Message) -> None:
        if not isinstance(welcome, Welcome):
            raise UserError(f"The server answered {welcome}.", "Look at the server's own lines above.")
        self.welcome = welcome
        self._seq = 0

    def observe(self, text: str) -> Observe:
        self._seq += 1
        token, epoch = self.welcome.session, self.welcome.epoch
        return Observe(session=token, seq=self._seq, epoch=epoch, t_ns=time.monotonic_ns(), text=text)

    def answered(self, message: Message) -> bool:
        """Whether this is the last observation's call. UserError for an error of the server's."""
        if isinstance(message, ErrorMessage):
            raise UserError(f"The server refused an observation: {message.message}", message.remedy)
        return isinstance(message, CallMessage) and message.seq_obs == self._seq


class Echo:
    """The floor: a bare DEALER to a bare ROUTER, which sends the same bytes back; nothing is packed or read."""

    def __init__(self, endpoint: str, body: bytes) -> None:
        self._socket, self._body = dealer(endpoint), body

    def trip(self, text: str) -> None:
        self._socket.send(self._body)
        self._socket.recv()

    def close(self) -> None:
        self._socket.close(0)


class ZeroMQ:
    """The protocol as msgpack over ZeroMQ."""

    def __init__(self, endpoint: str, first: Hello) -> None:
        self._socket = self._open(endpoint)
        self._send(first)
        self._session = WireSession(self._receive())

    def trip(self, text: str) -> None:
        self._send(self._session.observe(text))
        while not self._session.answered(self._receive()):
            pass

    def _receive(self) -> Message:
        while isinstance(message := self._next(), Ping):
            self._send(pong(message))
        return message

    def _open(self, endpoint: str) -> Any:
        return dealer(endpoint)

    def _send(self, message: Message) -> None:
        self._socket.send_multipart(encode_msgpack(message))

    def _next(self) -> Message:
        return decode_msgpack(self._socket.recv_multipart())

    def close(self) -> None:
        self._socket.close()


class WebSocket(ZeroMQ):
    """The protocol as JSON over WebSocket."""

    def _open(self, endpoint: str) -> Any:
        from websockets.sync.client import connect

        return connect(endpoint, compression=None)

    def _send(self, message: Message) -> None:
        self._socket.send(encode_json(message))

    def _next(self) -> Message:
        return decode_json(self._socket.recv(TIMEOUT_MS / 1e3))


class HTTP:
    """A POST to `path` on a connection that is kept, by the standard library's client: `body` with the observation as
    its `field`. `decide_ms` is what the decision itself took, where the answer tells it."""

    def __init__(self, port: int, path: str, body: dict[str, Any], field: str) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_MS / 1e3)
        self._connection.connect()
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._path, self._body, self._field = path, body, field
        self.decide_ms = 0.0

    def trip(self, text: str) -> None:
        told = [text] if self._field == "environment" else text
        body = json.dumps({**self._body, self._field: told}).encode()
        self._connection.request("POST", self._path, body, {"content-type": "application/json"})
        answered = self._connection.getresponse()
        answer = json.loads(answered.read())
        if answered.status != 200 or not answer.get("success", True):
            raise UserError(f"The server refused {self._path}: {answer.get('error')}", "Look at its lines above.")
        self.decide_ms = answer.get("rtcontrol", {}).get("decide_ms", 0.0)

    def close(self) -> None:
        self._connection.close()


class OpenPI:
    """openpi's own client against an echo server: WebSocket and msgpack, no session, no stamps."""

    def __init__(self, port: int) -> None:
        from openpi_client.websocket_client_policy import WebsocketClientPolicy

        self._policy = WebsocketClientPolicy("127.0.0.1", port)

    def trip(self, text: str) -> None:
        self._policy.infer({"prompt": text})

    def close(self) -> None:
        self._policy._ws.close()


def dealer(endpoint: str) -> zmq.Socket[bytes]:
    """A connected DEALER that gives up after `TIMEOUT_MS`."""
    made: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    made.linger, made.rcvtimeo, made.sndtimeo = 0, TIMEOUT_MS, TIMEOUT_MS
    made.connect(endpoint)
    return made


class Servers:
    """The processes that a benchmark starts; all end with the `with` block."""

    def __init__(self) -> None:
        self._processes: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def start(self, arguments: list[str]) -> None:
        """Run `python ARGUMENTS`; its output is shown only if it ends by itself."""
        import subprocess
        import sys

        process = subprocess.Popen(
            [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        self._processes.append(process)

    @property
    def pid(self) -> int:
        """Of the process that was started last."""
        return int(self._processes[-1].pid)

    def check(self) -> None:
        """UserError when one has ended."""
        for process in self._processes:
            if process.poll() is not None:
                said = process.stdout.read().decode(errors="replace").strip().splitlines()
                raise UserError(f"A server of the benchmark ended: {' '.join(said[-3:])}", "Run with --debug.")

    def stop_last(self) -> list[str]:
        """End the one started last; gives the lines that it wrote."""
        process = self._processes.pop()
        process.terminate()
        return str(process.communicate(timeout=20)[0].decode(errors="replace")).split()

    def __exit__(self, *exc: object) -> None:
        import subprocess

        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


BLOCK = 20
WARM_UP = 100
START_S = 120.0
OVER_DECIDE = ("bare_decide", "model_decisions", "model_systemone")
TEXT = ("x 12 y 95 vx -3 vy -41 angle 2 spin 0 legs 0 " * 8)[:300]


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int, servers: Servers) -> None:
    """Until somebody listens. UserError when a server ended, or after `START_S`."""
    give_up = time.monotonic() + START_S
    while time.monotonic() < give_up:
        servers.check()
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise UserError(f"The server did not listen within {START_S:g} s.", "Run `rtcontrol serve` by hand.")


def bench(trips: int, model: str, progress: Callable[[int], None]) -> dict[str, Any]:
    """Raw round trips in milliseconds by way, blocks of all ways taken in turn; `over_decide_ms`: of those that ask
    questions, without what the decision itself took."""
    from rtcontrol.run.assembly import agent

    lander = agent("lander")
    tools, told = list(lander.tools.openai()), lander.instruction
    echo, pi, bare = free_port(), free_port(), free_port()
    with Servers() as servers, ExitStack() as stack:
        servers.start(["-m", "rtcontrol.bench.wire_echo", "zeromq", str(echo)])
        ports = {name: (free_port(), free_port()) for name in ("null", "model")}
        for name, (wire, http) in ports.items():
            chosen = "noop" if name == "null" else model
            options = ["--model", chosen, "--bind", f"tcp://127.0.0.1:{wire}", "--http", f"127.0.0.1:{http}"]
            servers.start(["-m", "rtcontrol", "serve", *options])
        servers.start(["-m", "rtcontrol.bench.wire_echo", "decide", str(bare), model])
        with_openpi = importlib.util.find_spec("openpi_client") is not None
        if with_openpi:
            servers.start(["-m", "rtcontrol.bench.wire_echo", "openpi", str(pi)])
        for port in (echo, *(p for pair in ports.values() for p in pair), *((pi,) if with_openpi else ())):
            wait_for(port, servers)
        makers: dict[str, Callable[[], Way]] = {"echo": partial(Echo, f"tcp://127.0.0.1:{echo}", sample_bytes())}
        for name, (wire, http) in ports.items():
            makers[f"{name}_zmq"] = partial(ZeroMQ, f"tcp://127.0.0.1:{wire}", hello("lander"))
            makers[f"{name}_ws"] = partial(WebSocket, f"ws://127.0.0.1:{http}/ws", hello("lander"))
        web, messages = ports["model"][1], [{"role": "user", "content": told}]
        given = {"model": "default", "messages": messages, "tools": tools}
        makers["model_http"] = partial(HTTP, web, "/v1/function_call", given, "environment")
        makers["model_chat"] = partial(HTTP, web, "/v1/chat/completions", given, "environment")
        asked = {"model": "default", "questions": QUESTIONS}
        makers["bare_decide"] = partial(HTTP, bare, "/", asked, "input")
        makers["model_decisions"] = partial(HTTP, web, "/v1/decisions", asked, "input")
        makers["model_systemone"] = partial(HTTP, web, "/v1/systemone", {"questions": NAMED}, "state")
        if with_openpi:
            makers["openpi_echo"] = partial(OpenPI, pi)
        ways = open_all(makers, stack)
        ms: dict[str, list[float]] = {name: [] for name in ways}
        over: dict[str, list[float]] = {name: [] for name in OVER_DECIDE}
        while len(ms["echo"]) < trips:
            for name, way in ways.items():
                # The first trip of a block finds everything asleep, and the others of the block too busy to be.
                way.trip(TEXT)
                for _ in range(BLOCK):
                    ms[name].append(_timed(way))
                    if name in over:
                        assert isinstance(way, HTTP), "it asks questions"
                        over[name].append(ms[name][-1] - way.decide_ms)
            progress(BLOCK)
            servers.check()
    return {"ms": ms, "over_decide_ms": over, "bytes": len(sample_bytes()), "observation_bytes": len(TEXT)}


def open_all(makers: dict[str, Callable[[], Way]], stack: ExitStack) -> dict[str, Way]:
    """Open and warm up all ways at once: a session that says nothing until the slowest is open would be parked."""
    opened: dict[str, Way] = {}
    everyone = threading.Event()

    def open_one(name: str) -> None:
        way = makers[name]()
        for _ in range(WARM_UP):
            way.trip(TEXT)
        opened[name] = way
        while not everyone.wait(0.5):
            way.trip(TEXT)

    with ThreadPoolExecutor(len(makers)) as threads:
        tasks = [threads.submit(open_one, name) for name in makers]
        try:
            while len(opened) < len(makers) and not any(task.done() for task in tasks):
                time.sleep(0.1)
        finally:
            everyone.set()
        for task in tasks:
            task.result()
    for way in opened.values():
        stack.callback(way.close)
    return {name: opened[name] for name in makers}


def _timed(way: Way) -> float:
    began = time.perf_counter_ns()
    way.trip(TEXT)
    return (time.perf_counter_ns() - began) / 1e6


def sample_bytes() -> bytes:
    """The observation's message as it goes over the wire."""
    welcome = Welcome.model_construct(session="s" * 32, epoch=1)
    return encode_msgpack(WireSession(welcome).observe(TEXT))[0]
