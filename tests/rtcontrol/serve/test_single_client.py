"""`rtcontrol run --env remote`, a server's default tools, and servers that cannot start."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from commands import refused, report_in

from rtcontrol.models.checkpoint.checkpoint import ZOO
from rtcontrol.models.checkpoint.training_metadata import FILE_NAME as LEARNT
from rtcontrol.run.options import RunOptions
from rtcontrol.serve.single_client import run_remote
from rtcontrol_client.shutdown import Shutdown
from rtcontrol_client.wire.messages import Bye, CallMessage, Outcome, Reset
from tests.helpers.processes import Program, cli, free_port
from tests.rtcontrol.serve.wire_peer import WirePeer

Fly = Callable[..., tuple["Future[int]", str]]
Start = Callable[..., tuple[Program, str]]
ANY = ("--set", "serve.bind=tcp://127.0.0.1:*")


@pytest.fixture
def fly(tmp_path: Path) -> Iterator[Fly]:
    """Return a function that starts a run on a thread, and returns the future exit status and the endpoint."""
    ending = Shutdown(lambda name: None)
    with ThreadPoolExecutor() as pool:

        def run(**options: Any) -> tuple[Future[int], str]:
            fields = {"out": tmp_path / "o", "model": "random", "host": "inprocess", "live": False, "hz": 20.0}
            endpoint = f"tcp://127.0.0.1:{free_port()}"
            config = RunOptions(env="remote", **{**fields, **options})
            return pool.submit(run_remote, config, ending, endpoint), endpoint

        yield run
        ending._handle(signal.SIGTERM, None)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts `rtcontrol run`, and returns the process and the endpoint."""
    running: list[Program] = []

    def run(*arguments: str) -> tuple[Program, str]:
        fields = ["--model", "random", "--host", "inprocess", "--no-live", "--out", str(tmp_path / "o"), *arguments]
        command = ["-m", "rtcontrol", "run", "--env", "remote", *fields]
        running.append(Program(command, tmp_path / "log", stdout=subprocess.DEVNULL))
        running[-1].says("waiting for a client")
        return running[-1], running[-1].log().split()[-1]

    yield run
    for program in running:
        program.kill()


def test_client_plays_episodes_until_run_ends(fly: Fly, tmp_path: Path) -> None:
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
    reported = report_in(tmp_path / "o")
    assert reported["ended_by"] == "episodes" and reported["env"] == "remote" and reported["agent"] == "lander"
    assert [e["seed"] for e in reported["outcome"]["episodes"]] == [1, 2]


def test_lost_client_causes_misses_until_it_returns(fly: Fly, tmp_path: Path) -> None:
    status, endpoint = fly(max_age_ms=100.0)
    with WirePeer(endpoint) as first, WirePeer(endpoint) as other:
        token = first.enter().session
        first.observe()
        assert first.expect(CallMessage).status == "fresh"
        assert other.denied().code == "busy"
    time.sleep(0.5)
    with WirePeer(endpoint) as other, WirePeer(endpoint) as again:
        assert other.denied(agent="paddle").code == "state"
        assert again.enter(resume=token).resumed
        again.seq = first.seq
        again.observe()
        assert again.expect(CallMessage, status="fresh").tick >= 8
        again.send(Bye(session=token))
        assert status.result(20) == 0
    reported = report_in(tmp_path / "o")
    assert reported["ended_by"] == "client said bye"
    assert reported["misses_by_cause"]["stale_observation"] >= 5


def test_run_ended_while_waiting_leaves_no_folder(start: Start, tmp_path: Path) -> None:
    assert start(*ANY, "--agent", "lander")[0].end(signal.SIGHUP) == 129
    assert [p.name for p in tmp_path.iterdir()] == ["log"]


TURN = {"name": "turn", "parameters": {"properties": {"side": {"enum": ["left", "right"]}}, "required": ["side"]}}
OWN = {"name": "move", "parameters": {"properties": {"dx": {"enum": [-1, 1]}}, "required": ["dx"]}}


@pytest.fixture
def file(tmp_path: Path) -> str:
    (path := tmp_path / "tools.json").write_text(json.dumps([TURN]))
    return str(path)


def test_client_without_tools_gets_the_servers(bench: Any, file: str) -> None:
    running = bench(tools=file)
    peer = running.enter(tools=None, instruction="turn", pacing="client")
    assert peer.welcome.agent is None and {peer.ask().call.name for _ in range(5)} == {"turn"}
    assert running.enter(tools=[OWN], instruction="go", pacing="client").ask().call.name == "move"
    assert running.enter(agent="lander", pacing="client").ask().call.name == "engines"
    assert "A hello with tools needs an instruction" in running.peer().denied(tools=None).message


def test_server_that_cannot_start_leaves_no_folder(
    tmp_path: Path, file: str, running: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = running.server.router.endpoints[0]
    out = tmp_path / "left"
    (tmp_path / "cwd").mkdir()
    serve = ("serve", "--model", "random", "--host", "inprocess", "--out", str(out))
    assert "a port that is free" in refused(capsys, *serve, "--bind", taken)
    assert "cannot bind" in refused(
        capsys, *serve, "--bind", "tcp://127.0.0.1:*", "--http", f"127.0.0.1:{taken.rpartition(':')[2]}"
    )
    assert "cannot be read as tools" in refused(capsys, *serve, "--tools", f"{file}.none")
    assert "loop.hz" in refused(capsys, *serve, "--set", "loop.hz=0")
    assert not out.exists()
    ended = cli(*serve[:-2], "--bind", taken, cwd=tmp_path / "cwd")
    assert ended.returncode == 2 and "a port that is free" in ended.stderr
    assert [*(tmp_path / "cwd").iterdir()] == []


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a copy of a model, so that no part of it is loaded yet."""
    return Path(shutil.copytree(ZOO / "lander", tmp_path / "lander", ignore=shutil.ignore_patterns(LEARNT)))


def test_unloadable_checkpoint_ends_the_server_at_start(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "model.safetensors").unlink()
    serve = ("serve", "--host", "inprocess", "--bind", "tcp://127.0.0.1:*", "--out", str(tmp_path / "out"))
    assert str(model) in refused(capsys, *serve, "--model", str(model))
    assert not (tmp_path / "out").exists()
