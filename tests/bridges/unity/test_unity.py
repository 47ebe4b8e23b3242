"""The C# client: event by event, over its transport, against the conformance vectors, and in a stub of Unity.

These tests do not cover import into Unity, IL2CPP and the editor's domain reload.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from rtcontrol_client.wire.messages import Bye, Hello, Observe
from tests.bridges import vectors
from tests.bridges.behaviour import Shell, TalkCore, cases, check, options_of
from tests.bridges.client.worlds import Process, free_port
from tests.bridges.program import Program, garbage, starting
from tests.bridges.web_ends import check_first_server, check_next_server, fronted
from tests.conformance.check import check_any_client
from tests.conformance.check.stand import Stand
from tests.helpers.processes import ROOT

PACKAGE = ROOT / "bridges" / "unity" / "com.rtcontrol.client"
CORE = PACKAGE / "Runtime" / "Core"
HERE = Path(__file__).resolve().parent
MISSING = [name for name in ("mono", "mcs") if shutil.which(name) is None]
REASON = f"{' and '.join(MISSING)} missing: apt-get install mono-mcs mono-runtime libmono-system-core4.0-cil"


def compile_cs(out: Path, sources: list[Path], *options: str) -> str:
    """Run mcs at Unity's language level with warnings as errors; return its output. If it failed, `out` does not
    exist."""
    done = subprocess.run(
        ["mcs", "-langversion:7", "-warn:4", "-warnaserror", f"-out:{out}", *options, *map(str, sorted(sources))],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


class Driver(Program):
    """The process `mono driver.exe MODE ...`, which reads commands and prints JSON lines."""

    def __init__(self, exe: Path, *arguments: str) -> None:
        super().__init__(["mono", str(exe), *arguments])


Start = Callable[..., Driver]


@pytest.fixture(scope="session")
def exe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if MISSING:
        pytest.skip(REASON)
    out = tmp_path_factory.mktemp("driver") / "driver.exe"
    said = compile_cs(out, [*CORE.rglob("*.cs"), *(HERE / "driver").glob("*.cs")])
    assert out.exists(), said
    return out


@pytest.fixture
def driver(exe: Path) -> Iterator[Start]:
    yield from starting(partial(Driver, exe))


@pytest.fixture(scope="module")
def core(exe: Path) -> Iterator[Driver]:
    """A driver of the client's core, without sockets."""
    for start in starting(partial(Driver, exe)):
        yield start("filter")


# Methods that cannot be tools are reported before connecting; unusual but valid methods work.


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("coroutine", "Coroutine.Dash: a coroutine or a task"),
        ("safe_coroutine", "SafeCoroutine.Stop: a coroutine or a task"),
        ("parameters", "two parameters are named top_speed"),
        ("backwards", "RtRange on speed is empty"),
    ],
)
def test_method_that_cannot_be_a_tool_is_reported(core: Driver, kind: str, problem: str) -> None:
    assert problem in core.ask(f"made {kind}")["wrong"]


@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("dash", {"direction": "far_right", "power": 10}, {"result": "dashed", "log": ["dash FarRight 10 True"]}),
        ("dash", {"direction": "left", "power": 3.0, "and_jump": False}, {"result": "dashed"}),
        ("turn", {"top_angle": 1}, {"result": "1"}),
        ("turn", {"top_angle": 1.25}, {"refused": "top_angle cannot be 1.25"}),
        ("dash", {"direction": "left", "power": 11}, {"refused": "power cannot be 11"}),
        ("dash", {"direction": "up", "power": 1}, {"refused": "direction cannot be up"}),
        ("dash", {"power": 1}, {"refused": "direction is missing"}),
        ("say", {"word": "hello"}, {"refused": "I do not talk."}),
        ("fly", {}, {"refused": "there is no tool fly"}),
        ("turn", {"top_angle": 0.75}, {"result": "0.75"}),
        ("zoom", {"factor": 1e300}, {"refused": "factor cannot be 1E+300"}),
    ],
)
def test_calls_become_invocations_within_bounds(
    core: Driver, name: str, arguments: dict[str, Any], answer: dict[str, Any]
) -> None:
    core.ask("tools")
    result = core.ask(f"invoke {msgpack.packb({'name': name, 'arguments': arguments}).hex()}")
    result["log"] = result.get("log", [])[-1:]
    assert {key: result.get(key) for key in answer} == answer


# The transport, with bytes in both directions.


@pytest.fixture
def echo() -> Iterator[str]:
    """Run a ROUTER that sends back every message, with pings in between."""
    socket = zmq.Context.instance().socket(zmq.ROUTER)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 20)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 5000)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            if socket.poll(50):
                socket.send_multipart(socket.recv_multipart())
        socket.close(linger=0)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"tcp://127.0.0.1:{port}"
    ended.set()
    thread.join()


@pytest.mark.parametrize("size", [0, 255, 256, 1_000_000])
def test_messages_of_any_size_are_echoed_unchanged(driver: Start, echo: str, size: int) -> None:
    one = driver("echo", "--endpoint", echo, "--bytes", str(size), "--times", "5")
    assert one.answer()
    assert one.process.wait(10) == 0


@pytest.mark.parametrize(
    "of", [vectors.valid, vectors.invalid, vectors.clock, vectors.phase, vectors.age, vectors.connect]
)
def test_core_passes_the_vectors(core: Driver, of: Any) -> None:
    of(core.ask)


def test_clock_counts_while_the_machine_is_suspended(core: Driver) -> None:
    second = 1_000_000_000
    wall = 1_790_000_000 * second
    # The stopwatch and the wall clock: 4 s of suspension, a small adjustment, a clock that is put back, and 1 s more.
    times = [(second, wall), (2 * second, wall + 5 * second), (3 * second, wall + 6 * second + 10**8)]
    times += [(4 * second, wall - second), (5 * second, wall), (6 * second, wall + 2 * second)]
    counted = core.ask(" ".join(["slept", *(str(ns) for pair in times for ns in pair)]))
    assert counted == [s * second for s in (1, 6, 7, 8, 9, 11)]


@cases("csharp")
def test_conversation_follows_the_behaviour_table(core: Driver, case: dict[str, Any]) -> None:
    check(case, Shell(TalkCore(core.ask, options_of(case))))


def test_client_follows_the_answers_of_connect(driver: Start) -> None:
    with fronted() as (front, first, second):
        client = check_first_server(front, first, lambda url: driver("run", "--endpoint", url, "--ttl-ms", "500"))
        check_next_server(front, first, second, client, client.stats)


def test_attributes_become_the_tool_schemas_of_the_hello(core: Driver) -> None:
    answer = core.ask("tools")
    tools = {t["function"]["name"]: t["function"] for t in answer["tools"]}
    assert answer["safe"] == "stop"
    # In the order of the methods' names, with base classes last.
    assert [t["function"]["name"] for t in answer["tools"]] == ["dash", "say", "turn", "zoom", "stop"]
    assert tools["dash"] == {
        "name": "dash",
        "description": "Dash.",
        "parameters": {
            "type": "object",
            "properties": {
                "direction": {"type": "string", "enum": ["left", "far_right"]},
                "power": {"type": "integer", "minimum": 0, "maximum": 10, "description": "How hard."},
                "and_jump": {"type": "boolean"},
            },
            "required": ["direction", "power"],
        },
    }
    assert tools["turn"]["parameters"]["properties"]["top_angle"] == {
        "type": "number",
        "minimum": -1,
        "maximum": 1,
        "multipleOf": 0.25,
    }
    assert tools["say"]["parameters"]["properties"]["word"] == {"type": "string", "enum": ["hello", "bye"]}
    assert tools["say"]["parameters"]["required"] == ["word"]


# A server's check of clients, and peers that are not servers.


def test_client_passes_the_conformance_check(driver: Start) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    by_name = endpoint.replace("127.0.0.1", "localhost")
    flying = driver("run", "--endpoint", by_name, "--ttl-ms", "500", "--hz", "20")
    findings = check_any_client(endpoint)
    assert [f.name for f in findings if f.status != "passed"] == [], findings
    assert flying.stats()["too_old"] == 0 and flying.process.poll() is None


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + bytes(32)
READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER"
SILENCE = "nobody answers|the peer says nothing"  # the second once the time for a handshake is over
# The peer's bytes, and a pattern of the client's error message.
GARBAGE: dict[str, tuple[list[bytes | None], str]] = {
    "silence": ([], SILENCE),
    "a web server": ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], "speaks no ZeroMQ"),
    "closed at once": ([None], "closed the connection at once"),
    "a greeting of CURVE": ([GREETING.replace(b"NULL" + bytes(16), b"CURVE" + bytes(15))], "wants CURVE keys"),
    "the wrong type": ([GREETING, READY.replace(b"\x1c", b"\x19").replace(b"\x06ROUTER", b"\x03PUB")], "PUB socket"),
    "a frame of 2^60 bytes": ([GREETING, READY, b"\x02\x10" + bytes(7) + b"x" * 100], "a frame of 1152921504606846976"),
    "pings": ([GREETING, READY, b"\x04\x0f\x04PING\x00\x64contextx" * 20_000], "says nothing"),
}


@pytest.fixture(scope="module")
def met_garbage(exe: Path) -> Iterator[dict[str, tuple[Driver, list[int]]]]:
    """Run a client against each kind of peer, all at the same time."""
    with ExitStack() as stack:
        flying: dict[str, tuple[Driver, list[int]]] = {}
        for kind, (parts, reported) in GARBAGE.items():
            address, met = stack.enter_context(garbage(parts))
            ends = ("--seconds", "1") if reported == SILENCE else ("--until", reported)
            one = Driver(exe, "run", "--endpoint", f"tcp://{address}", "--ttl-ms", "500", *ends)
            stack.callback(one.end)
            flying[kind] = one, met
        yield flying


@pytest.mark.parametrize("kind", GARBAGE)
def test_client_survives_peer_that_is_not_a_server(met_garbage: dict[str, tuple[Driver, list[int]]], kind: str) -> None:
    flying, met = met_garbage[kind]
    stats = flying.event("stats")["stats"]
    assert flying.process.wait(20) == 0
    assert met and re.search(GARBAGE[kind][1], stats["trouble"])
    assert (stats["executed"], stats["sessions"], stats["ended"]) == (0, 0, None)
    assert stats["memory_kb"] < 20_000


# The Unity side of the package against a stub of the engine: names and types match, and the life cycle is complete.
# These tests do not cover import into Unity, IL2CPP and the editor's domain reload.


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile everything in the package, with stubs of Unity and NUnit."""
    if MISSING:
        pytest.skip(REASON)
    out = tmp_path_factory.mktemp("stub") / "play.exe"
    sources = list(PACKAGE.rglob("*.cs")) + list((HERE / "stubs").glob("*.cs"))
    sources += [HERE / "driver" / name for name in ("Flight.cs", "Json.cs", "ToolBox.cs")]
    said = compile_cs(out, sources, "-nowarn:649,414,67")  # fields that the inspector sets
    assert out.exists(), said
    return out


@pytest.fixture
def play(stub: Path) -> Iterator[Start]:
    yield from starting(partial(Driver, stub))


def test_sample_scene_is_driven_and_closes_with_the_safe_call(play: Start, server: Process) -> None:
    playing = play("play", server.endpoint, "3")
    answer = playing.answer()
    print(answer)
    assert answer["executed"] > 10
    assert (answer["failed"], answer["refused"]) == (0, 0)
    assert (answer["closed"], answer["last"], answer["anew"]) == (True, "stop Safe", True)
    assert not [s for s in answer["said"] if s.startswith(("error", "exception"))]
    assert playing.process.wait(10) == 0


def test_observers_of_one_object_give_one_observation(play: Start, stand: Stand) -> None:
    playing = play("observers", stand.endpoint)
    stand.expect(Hello, 20.0, "hello")
    stand.welcome()
    observed = [stand.observation() for _ in range(3)]
    stand.call(observed[-1])
    stand.pump(3.0, lambda m: isinstance(m, Bye))
    answer = playing.answer()
    assert {o.text for o in observed} == {"a noise\na shadow"}
    assert all(o.t_ns <= answer["slow_ns"] for o in stand.heard if isinstance(o, Observe))
    # When paused, the client closes and is safe in the same frame; it reconnects on resume, unless it was disabled.
    assert (answer["closed"], answer["acts"][0], answer["anew"], answer["stays"]) == (True, "Safe", True, True)
    # The safe call failed three times, but the console shows the error once.
    assert answer["stopped"] and len([s for s in answer["said"] if "stuck" in s]) == 1
    assert answer["refused"] and any("Tools Of" in s for s in answer["said"]), answer
