"""What the stand-in does wrong on command, as CARLA's client sees it; and how it ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bridges.carla.standin.process import ROOT, StandIn

pytest.importorskip("carla", reason="the carla extra (client 0.9.16) is not installed")

# A client in lockstep that ticks once for each line it is given, says what came of it, and ends with `end`.
TICKER = """
import sys, carla
client = carla.Client("127.0.0.1", int(sys.argv[1]))
client.set_timeout(2.0)
world = client.get_world()
settings = world.get_settings()
settings.synchronous_mode, settings.fixed_delta_seconds = True, 0.0625
world.apply_settings(settings)
print("ready", flush=True)
for line in iter(sys.stdin.readline, "end\\n"):
    try:
        print("frame", world.tick(1.0), flush=True)
    except RuntimeError as error:
        print("error", error, flush=True)
"""


class Ticker:
    def __init__(self, port: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", TICKER, str(port)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        assert self.process.stdout.readline() == "ready\n"

    def tick(self) -> list[str]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("tick\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().split()

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.communicate("end\n", timeout=20)
        return self.process.returncode


@pytest.fixture
def standin(tmp_path: Path) -> Iterator[StandIn]:
    with StandIn("--traffic", "5", state=tmp_path / "state.json") as started:
        yield started


@pytest.fixture
def ticker(standin: StandIn) -> Iterator[Ticker]:
    started = Ticker(standin.port)
    yield started
    started.process.kill()
    started.process.communicate()


def test_frozen_it_answers_nothing_and_thawed_it_goes_on(standin: StandIn, ticker: Ticker) -> None:
    assert ticker.tick()[0] == "frame"
    standin.command("freeze")
    said = ticker.tick()
    assert said[:2] == ["error", "time-out"]
    standin.command("thaw")
    # Also the cue that nobody waits for any more is answered now.
    frames = [int(ticker.tick()[1]) for _ in range(3)]
    assert frames == [frames[0], frames[0] + 1, frames[0] + 2]
    assert ticker.end() == 0


def test_a_stall_shorter_than_the_clients_patience_delays_a_tick(standin: StandIn, ticker: Ticker) -> None:
    standin.command("slow 300")
    before = time.monotonic()
    assert ticker.tick()[0] == "frame"
    assert time.monotonic() - before >= 0.3
    standin.command("slow 0")
    standin.command("stall 200")
    assert ticker.tick()[0] == "frame"


def test_killed_it_leaves_the_client_with_an_error(standin: StandIn, ticker: Ticker) -> None:
    assert ticker.tick()[0] == "frame"
    standin.process.stdin.write("die\n")  # type: ignore[union-attr]
    standin.process.stdin.flush()  # type: ignore[union-attr]
    assert standin.process.wait(5.0) == -signal.SIGKILL
    assert ticker.tick()[0] == "error"


def test_a_garbled_packet_aborts_the_clients_process(standin: StandIn, ticker: Ticker) -> None:
    assert ticker.tick()[0] == "frame"
    standin.command("garbage")
    ticker.process.wait(30.0)
    assert ticker.process.returncode in (-signal.SIGABRT, -signal.SIGSEGV)
    assert standin.process.poll() is None


def test_hung_up_on_the_client_must_connect_anew(standin: StandIn, ticker: Ticker) -> None:
    assert ticker.tick()[0] == "frame"
    standin.command("hangup")
    assert ticker.tick()[0] == "error"
    anew = Ticker(standin.port)
    assert anew.tick()[0] == "frame"
    assert anew.end() == 0


def test_bytes_that_are_no_calls_end_their_connection_only(standin: StandIn, ticker: Ticker) -> None:
    with socket.create_connection(("127.0.0.1", standin.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        stranger.settimeout(5.0)
        assert stranger.recv(1) == b""
    assert ticker.tick()[0] == "frame"


def test_it_ends_on_sigterm_and_writes_what_was(standin: StandIn, ticker: Ticker) -> None:
    frame = int(ticker.tick()[1])
    assert standin.end() == 0
    state: dict[str, Any] = json.loads(standin.state_path.read_text())  # type: ignore[union-attr]
    assert state["what"] == "the CARLA stand-in, not CARLA"
    assert state["frame"] == frame
    assert state["settings"]["synchronous"] is True
    assert len(state["traffic"]) == 5


def test_it_does_not_outlive_who_started_it() -> None:
    with StandIn() as started:
        started.process.stdin.close()  # type: ignore[union-attr]
        started.process.stdin = None
        assert started.process.wait(5.0) == 0


def test_a_taken_port_is_an_error(standin: StandIn) -> None:
    command = [sys.executable, "-m", "tests.bridges.carla.standin", "--port", str(standin.port)]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
    assert done.returncode != 0
    assert "in use" in done.stderr


def test_another_version_can_be_claimed(tmp_path: Path) -> None:
    program = (
        "import sys, carla; c = carla.Client('127.0.0.1', int(sys.argv[1])); c.set_timeout(5.0);"
        "print(c.get_server_version(), c.get_client_version())"
    )
    with StandIn("--claim-version", "0.9.15") as started:
        command = [sys.executable, "-c", program, str(started.port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.stdout.split() == ["0.9.15", "0.9.16"]
