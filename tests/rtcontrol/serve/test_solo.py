"""`rtcontrol run --env remote`: a client of the wire as the environment of an ordinary run."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import zmq
from commands import refused

from rtcontrol.bridges.shutdown import Shutdown
from rtcontrol.bridges.wire.messages import Bye, CallMessage, ErrorMessage, Outcome, Reset, Welcome
from rtcontrol.models.errors import UserError
from rtcontrol.run.options import RunOptions
from rtcontrol.serve.single_client import run_remote
from tests.helpers.processes import Program, free_port
from tests.rtcontrol.serve.wire_peer import WirePeer

Fly = Callable[..., tuple["Future[int]", str]]
Start = Callable[..., tuple[Program, str]]
ANY = ("--bind", "tcp://127.0.0.1:*")


@pytest.fixture
def fly(tmp_path: Path) -> Iterator[Fly]:
    """Runs in a thread of this process; gives what will be its exit status, and the endpoint on which it waits."""
    ending = Shutdown(lambda name: None)
    with ThreadPoolExecutor() as pool:

        def run(**options: Any) -> tuple[Future[int], str]:
            given = {"out": tmp_path / "o", "model": "random", "host": "inprocess", "live": False, "hz": 20.0}
            endpoint = f"tcp://127.0.0.1:{free_port()}"
            config = RunOptions(env="remote", **{**given, **options})
            return pool.submit(run_remote, config, ending, endpoint), endpoint

        yield run
        ending._handle(signal.SIGTERM, None)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `rtcontrol run`; gives its process and the endpoint on which it waits."""
    made: list[Program] = []

    def run(*arguments: str) -> tuple[Program, str]:
        given = ["--model", "random", "--host", "inprocess", "--no-live", "--out", str(tmp_path / "o"), *arguments]
        command = ["-m", "rtcontrol", "run", "--env", "remote", *given]
        made.append(Program(command, tmp_path / "log", stdout=subprocess.DEVNULL))
        made[-1].says("waiting for a client")
        return made[-1], made[-1].log().split()[-1]

    yield run
    for program in made:
        program.kill()


def report(tmp_path: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((tmp_path / "o" / "report.json").read_text())
    return told


def test_a_client_that_asks_for_it_gets_as_many_calls_a_tick_as_the_run_allows(fly: Fly, tmp_path: Path) -> None:
    tool = {"name": "move", "parameters": {"type": "object", "properties": {"dx": {"const": 1}}, "required": ["dx"]}}
    status, endpoint = fly(calls_per_tick=3)
    with WirePeer(endpoint) as peer:
        welcome = peer.enter(tools=[tool], instruction="go", pacing="client", calls_per_tick=5)
        assert welcome.calls_per_tick == 3
        told = [peer.ask(), peer.expect(CallMessage)]
        assert [message.more for message in told] == [True, None]
        peer.send(Bye(session=peer.token))
        assert status.result(timeout=30) == 0
    assert report(tmp_path)["calls"]["total"] == 1


def test_a_client_that_did_not_ask_gets_one_call_a_tick_whatever_the_run_allows(fly: Fly) -> None:
    _, endpoint = fly(calls_per_tick=3)
    with WirePeer(endpoint) as peer:
        assert peer.enter(pacing="client").calls_per_tick is None
        assert [(c.tick, c.more) for c in (peer.ask(), peer.ask())] == [(0, None), (1, None)]
        peer.send(Bye(session=peer.token))


def test_client_flies_episodes_until_they_are_done(fly: Fly, tmp_path: Path) -> None:
    status, endpoint = fly(episodes=2, hz=50.0)
    with WirePeer(endpoint) as peer:
        welcome = peer.enter(pacing="client", hz=1.0)
        assert welcome.hz == 50.0 and welcome.agent == "lander"
        for epoch in (1, 2):
            assert peer.ask().status == "fresh"
            peer.send(Reset(session=peer.token, epoch=epoch, ended=Outcome(seed=epoch, ret=1.0, success=True)))
            peer.epoch = epoch
        peer.observe()
        assert peer.expect(Bye).reason == "episodes"
    assert status.result(20) == 0
    told = report(tmp_path)
    assert told["ended_by"] == "episodes" and told["env"] == "remote" and told["agent"] == "lander"
    assert [e["seed"] for e in told["outcome"]["episodes"]] == [1, 2]


def test_a_tool_to_confirm_that_the_client_does_not_bring_is_a_mistake(fly: Fly) -> None:
    status, endpoint = fly(confirm=("launch",))
    with WirePeer(endpoint) as peer:
        peer.hello()
        assert "--confirm launch is no tool of lander" in peer.expect(ErrorMessage).message
    with pytest.raises(UserError, match="There are engines"):
        status.result(20)


def test_lost_client_costs_misses_and_comes_back_and_another_one_does_not_take_its_place(
    fly: Fly, tmp_path: Path
) -> None:
    status, endpoint = fly(max_age_ms=100.0)
    with WirePeer(endpoint) as first, WirePeer(endpoint) as other:
        token = first.enter().session
        first.observe()
        assert first.expect(CallMessage).status == "fresh"
        assert other.denied().code == "busy"
    time.sleep(0.5)
    with WirePeer(endpoint) as other, WirePeer(endpoint) as again:
        assert other.denied(agent="paddle").code == "busy"
        assert again.enter(resume=token).resumed
        again.seq = first.seq
        again.observe()
        assert again.expect(CallMessage, status="fresh").tick >= 8
        again.send(Bye(session=token))
        assert status.result(20) == 0
    told = report(tmp_path)
    assert told["ended_by"] == "client said bye"
    assert told["misses_by_cause"]["stale_observation"] >= 5


@pytest.mark.parametrize("pacing", ["server", "client"])
def test_client_that_starts_again_takes_its_own_place(fly: Fly, tmp_path: Path, pacing: Any) -> None:
    status, endpoint = fly()
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
        assert status.result(20) == 0
    assert report(tmp_path)["ended_by"] == "client said bye"


def test_run_dials_a_client_that_listens_and_waits_on_where_it_refused_its_hello(start: Start, tmp_path: Path) -> None:
    with WirePeer("tcp://127.0.0.1:*", bind=True) as peer:
        endpoint = peer.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        program, _ = start("--connect", endpoint)
        assert peer.denied(agent="nobody").code == "agent"
        peer.enter(pacing="client")
        assert peer.ask().status == "fresh"
        program.popen.send_signal(signal.SIGHUP)
        assert peer.expect(CallMessage, status="safe").call is not None
        assert peer.expect(Bye).reason == "SIGHUP"
        assert program.popen.wait(20) == 129
    assert report(tmp_path)["ended_by"] == "SIGHUP"


def test_a_run_that_waits_for_a_client_is_ended_and_leaves_no_folder(start: Start, tmp_path: Path) -> None:
    assert start(*ANY, "--agent", "lander")[0].end(signal.SIGHUP) == 129
    assert [p.name for p in tmp_path.iterdir()] == ["log"]


@pytest.mark.parametrize(
    ("env", "arguments", "says"),
    [
        ("lander", ANY, "--env remote"),
        ("remote", (*ANY, "--connect", "tcp://127.0.0.1:1"), "exclude"),
        ("remote", ("--bind", "nonsense"), "nonsense"),
        ("remote", ("--bind", "tcp://0.0.0.0:5999"), "keys"),
    ],
)
def test_mistakes_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], env: str, arguments: tuple[str, ...], says: str
) -> None:
    assert says in refused(capsys, "run", "--env", env, *arguments, "--out", str(tmp_path / "o"))
    assert not (tmp_path / "o").exists()


def test_a_page_that_cannot_be_served_is_told_before_a_client_comes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        arguments = (*ANY, "--view", "--view-port", str(taken.getsockname()[1]), "--out", str(tmp_path / "o"))
        assert "cannot be bound" in refused(capsys, "run", "--env", "remote", *arguments)
    assert not (tmp_path / "o").exists()
