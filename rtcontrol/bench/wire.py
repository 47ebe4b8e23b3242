"""`rtcontrol bench wire`: observation out to call in, beside a bare echo of the same bytes and openpi's client."""

from __future__ import annotations

import importlib.util
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from rtcontrol.bench.wire_ways import (
    HTTP,
    NAMED,
    QUESTIONS,
    Echo,
    OpenPI,
    Servers,
    Way,
    WebSocket,
    WireSession,
    ZeroMQ,
    hello,
)
from rtcontrol.bridges.wire import encode_msgpack
from rtcontrol.bridges.wire.messages import Welcome
from rtcontrol.models.errors import UserError

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
    from rtcontrol.run.assemble import agent

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
