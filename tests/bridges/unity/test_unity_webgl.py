"""The C# client of a WebGL player, whose WebSocket is the browser's: the shipped .jslib is linked as a build links it
and run in Node, the C# under Mono calls it. A build by Unity and a browser are not shown by this."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bridges.client.worlds import until
from tests.bridges.program import starting
from tests.bridges.unity.mono import HERE, MISSING, PACKAGE, REASON, Driver, Start, compile_cs, core_sources
from tests.bridges.unity.test_unity_websocket import REFUSAL, WELCOME, text
from tests.bridges.unity.ws_peer import BINARY, TEXT, close, frame, ws_peer
from tests.bridges.web_ends import Served
from tests.rtcontrol.gateway.gateway_peer import FLAG, NODE, has_websocket

JSLIB = PACKAGE / "Runtime" / "Plugins" / "WebGL" / "RtControlSocket.jslib"
UNITY = PACKAGE / "Runtime" / "Unity"
TTL_MS = 500


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver as a WebGL build has it: without threads and sockets."""
    if MISSING:
        pytest.skip(REASON)
    if not has_websocket():
        pytest.skip("there is no `node` with a WebSocket")
    out = tmp_path_factory.mktemp("webgl") / "driver.exe"
    sources = [
        *core_sources(),
        UNITY / "WebGlTransport.cs",
        *(HERE / "driver").glob("*.cs"),
        HERE / "page" / "WebGlSocket.cs",
    ]
    said = compile_cs(out, sources, "-define:UNITY_WEBGL")
    assert out.exists(), said
    return out


@pytest.fixture
def page() -> Iterator[int]:
    """The port of a page of its own."""
    host = subprocess.Popen(
        [str(NODE), FLAG, str(HERE / "page" / "host.mjs"), str(JSLIB)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert host.stdout is not None
    yield int(json.loads(host.stdout.readline())["port"])
    host.kill()
    host.wait()


@pytest.fixture
def game(player: Path, page: int) -> Iterator[Start]:
    def start(endpoint: str, *more: str) -> Driver:
        given = ["--page", "1", "--endpoint", endpoint, "--ttl-ms", str(TTL_MS)]
        return Driver(player, "run", *given, *more, RTCONTROL_PAGE=str(page))

    yield from starting(start)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    one = Served(tmp_path_factory.mktemp("served"))
    one.start()
    yield one
    one.stop()


def test_flies_without_a_thread_and_closes_safe(game: Start, served: Served) -> None:
    flying = game(served.url, "--seconds", "4")
    stats = flying.event("stats")["stats"]
    closed = flying.event("closed")
    assert stats["executed"] > 20
    assert (stats["too_old"], stats["errors"], stats["failed"], closed["in_force"]) == (0, 0, 0, "safe")
    # The game's own thread does it all, and waits for nothing.
    assert stats["uses"] == stats["waits"] > 0


def test_killed_server_means_safe_within_its_time_to_live_and_a_new_session(game: Start, served: Served) -> None:
    flying = game(served.url)
    flying.event("call")
    served.kill()
    assert flying.event("safe")["cause"] == "expired"
    served.start()
    flying.event("connected")
    flying.event("call")
    stats = flying.stats()
    assert (stats["sessions"], stats["too_old"]) == (2, 0)


def test_message_right_before_the_end_is_heard(game: Start) -> None:
    # psygames/UnityWebSocket#40: in WebGL, what a server said right before it closed was lost.
    with ws_peer(0.5, frame(TEXT, text(REFUSAL)) + close(1000)) as peer:
        flying = game(peer.url)
        until(lambda: flying.stats()["ended"] is not None, "the refusal is not heard")
    assert "There is no such model." in flying.stats()["ended"]


def test_texts_of_any_letters_and_binary_messages_are_told_apart(game: Start) -> None:
    welcome = frame(TEXT, text({**WELCOME, "instruction": "x"}).replace(b'"x"', '"Go on. € \U0001f600"'.encode()))
    with ws_peer(0.5, frame(BINARY, b"{}"), frame(TEXT, b""), welcome) as peer:
        flying = game(peer.url)
        flying.event("connected")
        stats = flying.stats()
        flying.close()
    assert (stats["instruction"], stats["ignored"]) == ("Go on. € \U0001f600", 2)


def test_game_that_stands_still_does_not_fill_the_page(game: Start) -> None:
    # endel/NativeWebSocket#82: messages were piled up while the game was in the background.
    with ws_peer(0.5, frame(TEXT, text(WELCOME)), 1.0, frame(TEXT, b"{}") * 5000) as peer:
        flying = game(peer.url, "--until", "the game stood still", "--seconds", "60")
        flying.event("connected")
        flying.say("stall 3000")
        stats = flying.event("stats")["stats"]
    # Those that were kept, or fewer, where the welcome's session was counted silent before.
    assert "the game stood still" in stats["trouble"] or stats["ignored"] <= 1024


@pytest.mark.parametrize(
    ("endpoint", "told"),
    [("tcp://127.0.0.1:5555", "ws://192.168.1.5:8080/ws"), ("ws://127.0.0.1:9/ws", "nobody answers")],
)
def test_endpoint_that_a_browser_cannot_reach_is_told(game: Start, endpoint: str, told: str) -> None:
    if endpoint.startswith("tcp"):
        assert told in game(endpoint).failure()
    else:
        assert told in game(endpoint, "--until", told).event("stats")["stats"]["trouble"]


def test_client_without_a_transport_is_told_what_to_do(player: Path) -> None:
    one = Driver(player, "run", "--endpoint", "ws://127.0.0.1:8080/ws", "--plain", "1")
    told = one.failure()
    assert "NotSupportedException" in told and "WebGlTransport.Use" in told


def test_library_needs_no_way_of_calling_c_sharp() -> None:
    # mikerochip/unity-websocket#13, endel/NativeWebSocket#54, colyseus/colyseus-unity-sdk#258: each Unity has it anew.
    code = re.sub(r"//[^\n]*", "", JSLIB.read_text())
    assert re.findall(r"dynCall|makeDynCall|Pointer_stringify|Runtime\.|getWasmTableEntry|TextEncoder", code) == []
    # Syntax that the minifier of Unity 2021.3 reads.
    assert re.findall(r"=>|\blet\b|\bconst\b|`|\?\.|\?\?|\basync\b", code) == []


def test_functions_of_the_library_are_those_that_c_sharp_declares() -> None:
    declared = dict(re.findall(r"extern \w+ (RtControlSocket\w+)\(([^)]*)\)", (UNITY / "WebGlSocket.cs").read_text()))
    written = dict(re.findall(r"^  (RtControlSocket\w+): function \(([^)]*)\)", JSLIB.read_text(), re.MULTILINE))
    count: dict[str, Any] = {name: len(arguments.split(",")) for name, arguments in declared.items()}
    assert count == {name: len(arguments.split(",")) for name, arguments in written.items()}
    assert len(count) == 8


def test_package_compiles_as_a_webgl_build_does(tmp_path: Path) -> None:
    if shutil.which("mcs") is None:
        pytest.skip(REASON)
    out = tmp_path / "play.exe"
    drivers = [HERE / "driver" / name for name in ("Flight.cs", "Json.cs", "ToolBox.cs", "Watched.cs")]
    sources = [*PACKAGE.rglob("*.cs"), *(HERE / "stubs").glob("*.cs"), *drivers]
    said = compile_cs(out, sources, "-nowarn:649,414,67", "-define:UNITY_WEBGL")
    assert out.exists(), said
