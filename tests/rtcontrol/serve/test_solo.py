"""`rtcontrol run --env remote`: a client of the wire as the environment of an ordinary run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from wire_peer import WirePeer

from rtcontrol.bridges.wire.messages import Bye, CallMessage, ErrorMessage, Outcome, Reset, Welcome
from tests.helpers.processes import cli, environment

Start = Callable[..., tuple["subprocess.Popen[str]", str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a run; gives its process and the endpoint on which it waits."""
    made = []

    def run(*arguments: str) -> tuple[subprocess.Popen[str], str]:
        given = ["--model", "random", "--host", "inprocess", "--no-live", "--out", str(tmp_path / "o"), *arguments]
        process = subprocess.Popen(
            [sys.executable, "-m", "rtcontrol", "run", "--env", "remote", *given],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        made.append(process)
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("waiting for a client"), line + process.stderr.read()
        return process, line.split()[-1]

    yield run
    for process in made:
        if process.poll() is None:
            process.kill()
        process.communicate()


def report(tmp_path: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((tmp_path / "o" / "report.json").read_text())
    return told


def test_client_flies_episodes_until_they_are_done(start: Start, tmp_path: Path) -> None:
    process, endpoint = start("--bind", "tcp://127.0.0.1:*", "--episodes", "2", "--hz", "50")
    with WirePeer(endpoint) as peer:
        welcome = peer.enter(pacing="client", hz=1.0)
        assert welcome.hz == 50.0 and welcome.agent == "lander"
        for epoch in (1, 2):
            assert peer.ask().status == "fresh"
            peer.send(Reset(session=peer.token, epoch=epoch, ended=Outcome(seed=epoch, ret=1.0, success=True)))
            peer.epoch = epoch
        peer.observe()
        assert peer.expect(Bye).reason == "episodes"
    assert process.wait(20) == 0
    told = report(tmp_path)
    assert told["ended_by"] == "episodes" and told["env"] == "remote" and told["agent"] == "lander"
    assert [e["seed"] for e in told["outcome"]["episodes"]] == [1, 2]


def test_lost_client_costs_misses_and_comes_back(start: Start, tmp_path: Path) -> None:
    process, endpoint = start("--bind", "tcp://127.0.0.1:*", "--hz", "20", "--max-age-ms", "100", "--duration", "60")
    with WirePeer(endpoint) as first:
        token = first.enter().session
        first.observe()
        assert first.expect(CallMessage).status == "fresh"
        second = WirePeer(endpoint)
        assert second.denied().code == "busy"
        second.close()
    time.sleep(0.5)
    with WirePeer(endpoint) as again:
        assert again.enter(resume=token).resumed
        again.seq = first.seq
        again.observe()
        call = again.expect(CallMessage, status="fresh")
        assert call.tick >= 8
        again.send(Bye(session=token))
        assert process.wait(20) == 0
    told = report(tmp_path)
    assert told["ended_by"] == "client said bye"
    assert told["misses_by_cause"]["stale_observation"] >= 5


@pytest.mark.parametrize("pacing", ["server", "client"])
def test_client_that_starts_again_takes_its_own_place(start: Start, tmp_path: Path, pacing: Any) -> None:
    process, endpoint = start("--bind", "tcp://127.0.0.1:*", "--hz", "20", "--duration", "60")
    with WirePeer(endpoint) as first:
        first.enter(pacing=pacing)
        first.seq = 100
        first.observe()
        first.expect(CallMessage, status="fresh")
    # As kill -9 does: no bye, and the token is forgotten.
    with WirePeer(endpoint) as other, WirePeer(endpoint) as again:
        give_up = time.monotonic() + 20
        while True:
            again.hello(pacing=pacing)
            answer = again.expect((Welcome, ErrorMessage))  # type: ignore[type-var]
            if isinstance(answer, Welcome):
                break
            assert answer.code in ("busy", "rate") and answer.retryable and time.monotonic() < give_up
            time.sleep(0.3)
        again.welcome, again.epoch = answer, answer.epoch
        assert not answer.resumed and answer.epoch == 1
        again.observe()
        assert again.expect(CallMessage, status="fresh", epoch=1).seq_obs == 1
        assert other.denied(pacing=pacing).code == "busy"
        again.send(Bye(session=again.token))
        assert process.wait(20) == 0
    assert report(tmp_path)["ended_by"] == "client said bye"


def test_another_client_does_not_take_the_place_of_one_that_is_gone(start: Start) -> None:
    _, endpoint = start("--bind", "tcp://127.0.0.1:*", "--hz", "20", "--duration", "60")
    with WirePeer(endpoint) as first:
        token = first.enter().session
        first.observe()
        first.expect(CallMessage, status="fresh")
    with WirePeer(endpoint) as other, WirePeer(endpoint) as again:
        assert other.denied(agent="paddle").code == "busy"
        assert again.enter(resume=token).resumed


def test_run_dials_a_client_that_listens(start: Start, tmp_path: Path) -> None:
    with WirePeer("tcp://127.0.0.1:*", bind=True) as peer:
        endpoint = peer.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        process, _ = start("--connect", endpoint)
        peer.enter(pacing="client")
        assert peer.ask().status == "fresh"
        process.send_signal(signal.SIGHUP)
        assert peer.expect(CallMessage, status="safe").call is not None
        assert peer.expect(Bye).reason == "SIGHUP"
        assert process.wait(20) == 129
    assert report(tmp_path)["ended_by"] == "SIGHUP"


def test_refused_hello_leaves_the_run_waiting(start: Start) -> None:
    process, endpoint = start("--bind", "tcp://127.0.0.1:*", "--agent", "lander")
    with WirePeer(endpoint) as peer:
        assert peer.denied(agent="nobody").code == "agent"
        peer.enter()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130


def test_a_run_that_waits_for_a_client_is_ended_and_leaves_no_folder(start: Start, tmp_path: Path) -> None:
    process, _ = start("--bind", "tcp://127.0.0.1:*", "--agent", "lander")
    process.send_signal(signal.SIGHUP)
    assert process.wait(20) == 129
    assert [p.name for p in tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--env", "lander", "--bind", "tcp://127.0.0.1:*"], "--env remote"),
        (["--env", "remote", "--bind", "tcp://127.0.0.1:*", "--connect", "tcp://127.0.0.1:1"], "exclude"),
        (["--env", "remote", "--bind", "nonsense"], "nonsense"),
        (["--env", "remote", "--bind", "tcp://0.0.0.0:5999"], "keys"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = cli("run", *arguments, "--out", str(tmp_path / "o"))
    assert done.returncode == 2, done.stderr
    assert says in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "o").exists()
