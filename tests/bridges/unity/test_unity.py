"""The C# client: event by event, over its transport, against the conformance vectors, and in a stub of Unity.

These tests do not cover import into Unity, IL2CPP and the editor's domain reload.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from rtcontrol_client.wire.messages import Bye, Hello, Observe
from tests.bridges import vectors
from tests.bridges.behaviour import Shell, TalkCore, cases, check, options_of
from tests.bridges.client.worlds import Process
from tests.bridges.program import starting
from tests.bridges.unity.conftest import HERE, MISSING, PACKAGE, REASON, Driver, Start, compile_cs
from tests.bridges.web_ends import check_first_server, check_next_server, fronted
from tests.conformance.check.stand import Stand

# Against a scripted server.


# Methods that cannot be tools are reported before connecting; unusual but valid methods work.


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("coroutine", "Coroutine.Dash: a coroutine or a task"),
        ("safe_coroutine", "SafeCoroutine.Stop: a coroutine or a task"),
        ("parameters", "two parameters are named top_speed"),
        ("backwards", "RtRange on speed is empty"),
    ],
)
def test_method_that_cannot_be_a_tool_is_reported(core: Driver, kind: str, told: str) -> None:
    assert told in core.ask(f"made {kind}")["wrong"]


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


@cases("csharp")
def test_conversation_follows_the_behaviour_table(core: Driver, case: dict[str, Any]) -> None:
    check(case, Shell(TalkCore(core.ask, options_of(case))))


def test_client_follows_the_answers_of_connect(driver: Start) -> None:
    with fronted() as (front, first, second):
        client = check_first_server(front, first, lambda url: driver("run", "--endpoint", url, "--ttl-ms", "500"))
        check_next_server(front, first, second, client, client.stats)


def test_attributes_become_the_tool_schemas_of_the_hello(core: Driver) -> None:
    told = core.ask("tools")
    tools = {t["function"]["name"]: t["function"] for t in told["tools"]}
    assert told["safe"] == "stop"
    # In the order of the methods' names, with base classes last.
    assert [t["function"]["name"] for t in told["tools"]] == ["dash", "say", "turn", "zoom", "stop"]
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
    told = playing.answer()
    print(told)
    assert told["executed"] > 10
    assert (told["failed"], told["refused"]) == (0, 0)
    assert (told["closed"], told["last"], told["anew"]) == (True, "stop Safe", True)
    assert not [s for s in told["said"] if s.startswith(("error", "exception"))]
    assert playing.process.wait(10) == 0


def test_observers_of_one_object_give_one_observation(play: Start, stand: Stand) -> None:
    playing = play("observers", stand.endpoint)
    stand.expect(Hello, 20.0, "hello")
    stand.welcome()
    observed = [stand.observation() for _ in range(3)]
    stand.call(observed[-1])
    stand.pump(3.0, lambda m: isinstance(m, Bye))
    told = playing.answer()
    assert {o.text for o in observed} == {"a noise\na shadow"}
    assert all(o.t_ns <= told["slow_ns"] for o in stand.heard if isinstance(o, Observe))
    # When paused, the client closes and is safe in the same frame; it reconnects on resume, unless it was disabled.
    assert (told["closed"], told["acts"][0], told["anew"], told["stays"]) == (True, "Safe", True, True)
    # The safe call failed three times, but the console shows the error once.
    assert told["stopped"] and len([s for s in told["said"] if "stuck" in s]) == 1
    assert told["refused"] and any("Tools Of" in s for s in told["said"]), told
