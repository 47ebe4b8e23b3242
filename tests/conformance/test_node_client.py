"""The client in `node/`, written from docs/protocol.md alone: the vectors, a drive, and kill -9 of either side."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

import pytest

from tests.bridges.client.worlds import Process, free_port
from tests.conformance import FOLDER

SOURCE = Path(__file__).with_name("node")
# From the end of a time-to-live to the act: the client looks every 10 ms; the rest is a busy machine's.
LATE_MS = 150


@pytest.fixture(scope="module")
def node() -> Path:
    """The folder where the client is installed: kept between runs, made anew when its dependencies change."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}")
    wanted = (SOURCE / "package.json").read_text()
    folder = Path(tempfile.gettempdir()) / f"rtcontrol-node-client-{os.getuid()}"
    installed = folder / "installed.json"
    if not installed.exists() or installed.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("node_modules"))
        try:
            done = subprocess.run(
                ["npm", "install", "--no-audit", "--no-fund"], cwd=folder, capture_output=True, text=True, timeout=120
            )
        except subprocess.TimeoutExpired:
            pytest.skip("npm install took longer than 120 s")
        if done.returncode:
            pytest.skip(f"npm install failed: {done.stderr.strip()[-500:]}")
        check = subprocess.run(["node", "-e", "import('zeromq')"], cwd=folder, capture_output=True, text=True)
        if check.returncode:
            pytest.skip(f"the zeromq package does not load: {check.stderr.strip()[-500:]}")
        installed.write_text(wanted)
    for file in SOURCE.glob("*.mjs"):
        shutil.copy(file, folder)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    served = Process(tmp_path_factory.mktemp("served"), free_port())
    served.start()
    yield served
    served.stop()


class Drive:
    """`node drive.mjs`: its events as they come, its report at the end."""

    def __init__(self, node: Path, endpoint: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            ["node", "drive.mjs", endpoint, "--events", *arguments],
            cwd=node,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.events: Queue[dict[str, Any]] = Queue()
        self.seen: list[dict[str, Any]] = []
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.events.put(json.loads(line) if line.startswith("{") else {"event": "said", "text": line.rstrip()})

    def wait_for(self, event: str, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                self.seen.append(self.events.get(timeout=left))
            except Empty:
                break
            if self.seen[-1]["event"] == event:
                return self.seen[-1]
        raise AssertionError(f"no {event!r} within {seconds} s; there were {self.seen}")

    def end(self, number: int = 0) -> dict[str, Any]:
        """Its report, after a signal or when it is done."""
        self.process.send_signal(number)
        self.process.wait(20)
        assert self.process.stdout is not None
        said: dict[str, Any] = json.loads(self.process.stdout.read())
        return said

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=10)


@contextmanager
def driving(node: Path, endpoint: str, *arguments: str) -> Iterator[Drive]:
    drive = Drive(node, endpoint, *arguments)
    try:
        yield drive
    finally:
        drive.kill()


def test_vectors(node: Path) -> None:
    done = subprocess.run(
        ["node", "conformance.mjs", str(FOLDER)], cwd=node, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counts = json.loads(done.stdout)
    assert counts.pop("failed") == 0
    for name, count in counts.items():
        passed, total = count.split(" of ")
        assert passed == total != "0", name


def test_drive_and_kill_the_client(node: Path, server: Process) -> None:
    # Of 1.0, as clients that were written before are.
    flags = ("--agent", "lander", "--seconds", "1.5", "--instruct", "Fly to the right.", "--minor", "0")
    with driving(node, server.endpoint) as killed, driving(node, server.endpoint) as drive:
        killed.wait_for("first", 30)
        drive.wait_for("first", 30)
        killed.process.send_signal(signal.SIGKILL)
        with driving(node, server.endpoint, *flags) as lander:
            flown = lander.end()
        said = drive.end(signal.SIGTERM)
    assert server.process is not None and server.process.poll() is None
    assert said["reason"] == "SIGTERM" and said["sessions"] == 1 and said["resumes"] == 0
    assert said["calls"]["fresh"] > 20 and said["executed_too_old"] == 0
    assert said["offset"]["rtt_ms"] >= 0
    assert said["timed"] > 20, "the server tells when it ticks"
    assert flown["reason"] == "done" and flown["agent"] == "lander" and flown["instructs"] == 1
    assert flown["calls"]["fresh"] > 10 and not flown["notices"]


def test_a_stalled_server_is_resumed(node: Path, server: Process) -> None:
    with driving(node, server.endpoint) as drive:
        drive.wait_for("first", 30)
        server.signal(signal.SIGSTOP)
        try:
            drive.wait_for("safe", 5)
            assert drive.wait_for("notice", 6)["text"] == "connection lost"
        finally:
            server.signal(signal.SIGCONT)
        assert drive.wait_for("welcome", 15)["resumed"]
        said = drive.end(signal.SIGTERM)
    assert said["sessions"] == 1 and said["resumes"] == 1 and said["executed_too_old"] == 0


def test_kill_the_server(node: Path, server: Process) -> None:
    with driving(node, server.endpoint, "--stuck", "3") as drive:
        drive.wait_for("first", 30)
        server.kill()
        try:
            safe, last = drive.wait_for("safe", 5), drive.wait_for("safe", 5)
        finally:
            server.start()
        # Of two safe calls each is tried until it is carried out.
        assert [e["name"] for e in drive.seen if e["event"] == "stuck"] == ["thrust", "tilt", "thrust"]
        assert (safe["name"], last["name"]) == ("tilt", "thrust")
        assert safe["after_ms"] is not None and safe["after_ms"] <= safe["ttl_ms"] + LATE_MS
        welcome = drive.wait_for("welcome", 60)
        assert not welcome["resumed"], "another server cannot know the session"
        time.sleep(0.5)
        said = drive.end(signal.SIGTERM)
    assert server.process is not None and server.process.poll() is None
    assert said["sessions"] == 2 and said["executed_too_old"] == 0 and said["safe_actions"] >= 1
    assert said["calls"]["fresh"] > 3
