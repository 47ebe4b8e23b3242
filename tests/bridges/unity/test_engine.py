"""The Unity side of the package against a stub of the engine: its names and types fit, its life cycle closes.

Import into Unity, IL2CPP and the editor's own domain reload are not shown by this.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from rtcontrol.bridges.wire.messages import Bye, Hello, Observe
from tests.bridges.client.worlds import Process
from tests.bridges.program import starting
from tests.bridges.unity.mono import HERE, MISSING, PACKAGE, REASON, Driver, Start, compile_cs
from tests.conformance.check.stand import Stand


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that the package ships, with stubs of Unity and NUnit."""
    if MISSING:
        pytest.skip(REASON)
    out = tmp_path_factory.mktemp("stub") / "play.exe"
    sources = list(PACKAGE.rglob("*.cs")) + list((HERE / "stubs").glob("*.cs"))
    sources += [HERE / "driver" / name for name in ("Flight.cs", "Json.cs", "ToolBox.cs", "Watched.cs")]
    said = compile_cs(out, sources, "-nowarn:649,414,67")  # fields that the inspector sets
    assert out.exists(), said
    return out


@pytest.fixture
def play(stub: Path) -> Iterator[Start]:
    yield from starting(partial(Driver, stub))


def test_scene_of_the_sample_is_driven_and_closes_safe(play: Start, server: Process) -> None:
    playing = play("play", server.endpoint, "3")
    told = playing.answer()
    print(told)
    assert told["executed"] > 10
    assert (told["failed"], told["refused"]) == (0, 0)
    assert (told["closed"], told["last"], told["anew"]) == (True, "stop Safe", True)
    assert not [s for s in told["said"] if s.startswith(("error", "exception"))]
    assert playing.process.wait(10) == 0


def test_scene_without_a_server_plays_on_and_says_so_once(play: Start) -> None:
    told = play("play", "tcp://127.0.0.1:9", "3").answer()
    assert (told["executed"], told["closed"]) == (0, True)
    assert len(told["said"]) == 1 and "nobody answers" in told["said"][0]


def test_mistaken_endpoint_disables_the_component_with_an_error(play: Start) -> None:
    said = play("play", "http://127.0.0.1", "0.1").answer()["said"]
    assert any(s.startswith("error") and "tcp://127.0.0.1:5555" in s for s in said), said


def test_observers_of_one_object_are_one_observation_of_when_they_looked(play: Start, stand: Stand) -> None:
    playing = play("observers", stand.endpoint)
    stand.expect(Hello, 20.0, "hello")
    stand.welcome()
    observed = [stand.observation() for _ in range(3)]
    stand.call(observed[-1])
    stand.pump(3.0, lambda m: isinstance(m, Bye))
    told = playing.answer()
    assert {o.text for o in observed} == {"a noise\na shadow"}
    assert all(o.t_ns <= told["slow_ns"] for o in stand.heard if isinstance(o, Observe))
    # Paused: closed, safe in the same frame, and connected anew when it goes on, but not where it was disabled.
    assert (told["closed"], told["acts"][0], told["anew"], told["stays"]) == (True, "Safe", True, True)
    # Its safe call failed three times, which the console has once.
    assert told["stopped"] and len([s for s in told["said"] if "stuck" in s]) == 1
    assert told["refused"] and any("Tools Of" in s for s in told["said"]), told


@pytest.mark.realtime  # a client that has no server closes within 100 ms
def test_packages_own_tests_pass(stub: Path) -> None:
    done = subprocess.run(["mono", str(stub), "tests"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("passed") == 4
