"""`rtcontrol bench wire`: measure round trips from observation to call, and a bare echo of the same bytes.

`python -m rtcontrol.bench.wire PORT` runs the echo server.
"""

from __future__ import annotations

import socket
import sys
import time
from contextlib import ExitStack, closing
from subprocess import DEVNULL, Popen, TimeoutExpired
from typing import Any

import torch
import zmq

from rtcontrol.bench.timing import Progress, Stopwatch
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.histogram import Histogram
from rtcontrol_client.wire import PROTOCOL, decode_json, decode_msgpack, encode_json, encode_msgpack, messages
from rtcontrol_client.wire.messages import Message, Ping, Welcome

START_S = 120.0
TIMEOUT_MS = 30_000


class Servers(ExitStack):
    """A context manager for the server processes of a benchmark, which end with the `with` block."""

    def start(self, port: int, *arguments: str) -> None:
        """Run `python ARGUMENTS`, and wait until the process listens on the port. Raises UserError."""
        process = Popen([sys.executable, *arguments], stdout=DEVNULL, start_new_session=True)
        self.callback(_end, process)
        end_s = time.monotonic() + START_S
        while process.poll() is None and time.monotonic() < end_s:
            with closing(socket.socket()) as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        raise UserError("A server of the benchmark ended, or did not listen in time.", "See its log lines above.")


def _end(process: Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=20)
    except TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """Return a TCP port that is currently free."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def connect_dealer(endpoint: str) -> Any:
    """Return a DEALER socket that is connected to `endpoint`, with a timeout of `TIMEOUT_MS`."""
    dealer: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    dealer.linger, dealer.rcvtimeo, dealer.sndtimeo = 0, TIMEOUT_MS, TIMEOUT_MS
    dealer.connect(endpoint)
    return dealer


BLOCK = 20
WARM_UP = 100
TEXT = ("x 12 y 95 vx -3 vy -41 angle 2 spin 0 legs 0 " * 8)[:300]


def hello(agent: str, **options: Any) -> messages.Hello:
    """Return a Hello, the first message of a client. By default the client sets the pace of ticks."""
    client = messages.Program(name="bench", language="python")
    named = {"pacing": "client", **options}
    return messages.Hello(protocol=list(PROTOCOL), client=client, t_client_ns=time.monotonic_ns(), agent=agent, **named)


def pong(ping: Ping) -> messages.Pong:
    """Return the response to a Ping. The server closes a session that does not respond."""
    now = time.monotonic_ns()
    return messages.Pong(id=ping.id, t_ping_ns=ping.t_ns, t_received_ns=now, t_sent_ns=now)


class WireSession:
    """The client's side of a session, without a transport. It creates observations and recognizes their calls."""

    def __init__(self, welcome: Message) -> None:
        if not isinstance(welcome, Welcome):
            raise UserError(f"The server sent no welcome, but {welcome}.", "See the server's log lines above.")
        self.welcome = welcome
        self._seq = 0

    def observe(self, text: str) -> messages.Observe:
        self._seq += 1
        token, epoch = self.welcome.session, self.welcome.epoch
        return messages.Observe(session=token, seq=self._seq, epoch=epoch, t_ns=time.monotonic_ns(), text=text)

    def is_call_for_last(self, message: Message) -> bool:
        """Return whether the message is the call for the last observation. Raises UserError for an error message."""
        if isinstance(message, messages.ErrorMessage):
            raise UserError(f"The server refused an observation: {message.message}", message.remedy)
        return isinstance(message, messages.CallMessage) and message.seq_obs == self._seq


class Echo:
    """The lower bound of round trips: a DEALER sends bytes to a ROUTER, which returns them without decoding them."""

    def __init__(self, endpoint: str, body: bytes) -> None:
        self._socket, self._body = connect_dealer(endpoint), body

    def trip(self) -> None:
        self._socket.send(self._body)
        self._socket.recv()

    def close(self) -> None:
        self._socket.close(0)


class ZeroMQ:
    """A client of the protocol with msgpack over ZeroMQ."""

    def __init__(self, endpoint: str) -> None:
        self._socket = self._open(endpoint)
        self._send(hello("lander"))
        self._session = WireSession(self._receive())

    def trip(self) -> None:
        self._send(self._session.observe(TEXT))
        while not self._session.is_call_for_last(self._receive()):
            pass

    def _receive(self) -> Message:
        while isinstance(message := self._next(), Ping):
            self._send(pong(message))
        return message

    def _open(self, endpoint: str) -> Any:
        return connect_dealer(endpoint)

    def _send(self, message: Message) -> None:
        self._socket.send_multipart(encode_msgpack(message))

    def _next(self) -> Message:
        return decode_msgpack(self._socket.recv_multipart())

    def close(self) -> None:
        self._socket.close()


class WebSocket(ZeroMQ):
    """A client of the protocol with JSON over WebSocket."""

    def _open(self, endpoint: str) -> Any:
        from websockets.sync.client import connect

        return connect(endpoint, compression=None)

    def _send(self, message: Message) -> None:
        self._socket.send(encode_json(message))

    def _next(self) -> Message:
        return decode_json(self._socket.recv(TIMEOUT_MS / 1e3))


def measure(trips: int, model: str, progress: Progress) -> dict[str, Any]:
    """Return the result document of `bench wire`: the round-trip times of all methods, which alternate in blocks."""
    with Servers() as servers:
        ways = _connect_methods(servers, model)
        for way in ways.values():
            servers.callback(way.close)
        for _ in range(WARM_UP):
            for way in ways.values():
                way.trip()
        ms: dict[str, list[float]] = {name: [] for name in ways}
        watch = Stopwatch(torch.device("cpu"))
        while len(ms["echo"]) < trips:
            for name, way in ways.items():
                # Do not measure the first trip of a block, which wakes sleeping processes.
                way.trip()
                ms[name] += [watch.time(way.trip)[1] for _ in range(BLOCK)]
            progress(len(ms["echo"]), trips)
    times = {name: Histogram(values).summary() for name, values in ms.items()}
    return {"bench": "wire", "model": model, "ms": times, "bytes": len(_sample_bytes()), "trips": trips}


def _connect_methods(servers: Servers, model: str) -> dict[str, Echo | ZeroMQ]:
    """Start all servers, and then connect a client for each method. (A client that waits too long is dropped.)"""
    port, ports = free_port(), {name: (free_port(), free_port()) for name in ("null", "model")}
    servers.start(port, "-m", "rtcontrol.bench.wire", str(port))
    for name, (wire, web) in ports.items():
        addresses = ("--bind", f"tcp://127.0.0.1:{wire}", "--http", f"127.0.0.1:{web}")
        servers.start(web, "-m", "rtcontrol", "serve", "--model", model if name == "model" else "noop", *addresses)
    ways: dict[str, Echo | ZeroMQ] = {"echo": Echo(f"tcp://127.0.0.1:{port}", _sample_bytes())}
    for name, (wire, web) in ports.items():
        ways[f"{name}_zmq"] = ZeroMQ(f"tcp://127.0.0.1:{wire}")
        ways[f"{name}_ws"] = WebSocket(f"ws://127.0.0.1:{web}/ws")
    return ways


def _sample_bytes() -> bytes:
    """Return the bytes of an observation message."""
    welcome = Welcome.model_construct(session="s" * 32, epoch=1)
    return encode_msgpack(WireSession(welcome).observe(TEXT))[0]


def run_echo_server(port: int) -> None:
    """Return every message to its sender, by a ZeroMQ ROUTER socket on the port."""
    router: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    router.bind(f"tcp://127.0.0.1:{port}")
    while True:
        router.send_multipart(router.recv_multipart())


if __name__ == "__main__":
    run_echo_server(int(sys.argv[1]))
