"""Servers and runs whose output nobody reads: they serve on, and end when they are asked to."""

from __future__ import annotations

import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from rtcontrol.bridges.wire.messages import Bye
from rtcontrol.serve.supervise import command_line
from tests.helpers.processes import Program, cli, free_port, full_pipe, until
from tests.rtcontrol.serve.wire_peer import WirePeer

NO_REQUEST = b"\x16\x03\x01 no request\r\n\r\n"
# It says more than a pipe holds, on both streams, from the thread that steps it.
TALKER = """
import sys

class Talker:
    step_s = 0.02

    def reset(self, seed):
        self.at = 0

    def step(self):
        print("out " * 1000)
        print("err " * 1000, file=sys.stderr)

    def observe(self):
        return {"at": self.at}

    def outcome(self):
        return None

    def instruct(self, text):
        self.told = text

    def go(self, by: bool):
        self.at += by
"""
AGENT = """
from rtcontrol.agents import tool

@tool
def go(by: bool) -> None:
    "Go."

instruction = "go"
"""


def test_a_server_serves_on_and_ends_in_order(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/s"
    command = ["-m", "rtcontrol", "serve", "--bind", endpoint, "--model", "random", "--out", str(tmp_path / "out")]
    with full_pipe() as (_, writing):
        server = Program(command, tmp_path / "log", stdout=writing, stderr=writing)
        try:
            with WirePeer(endpoint) as refused, WirePeer(endpoint) as peer:
                for _ in range(10):
                    refused.hello(agent="nobody")
                    assert refused.refused(60).code in ("agent", "rate")
                for _ in range(3):
                    peer.enter(pacing="client")
                    assert peer.ask().status == "fresh"
                    peer.send(Bye(session=peer.token))
            assert server.end() == 143
        finally:
            server.kill()
    assert len(list((tmp_path / "out").glob("session-*/report.json"))) == 3


def test_requests_that_are_none_stop_no_gateway(tmp_path: Path) -> None:
    port, endpoint = free_port(), f"ipc://{tmp_path}/s"
    command = ["-m", "rtcontrol", "serve", "--model", "random", "--host", "inprocess", "--bind", endpoint]
    command += ["--http", f"127.0.0.1:{port}", "--out", str(tmp_path / "out")]
    with full_pipe() as (_, writing):
        server = Program(command, tmp_path / "log", stdout=writing, stderr=writing)
        try:
            with WirePeer(endpoint) as peer:
                peer.enter(pacing="client")
                for _ in range(300):
                    with socket.create_connection(("127.0.0.1", port), 5) as line:
                        line.settimeout(5)
                        line.sendall(NO_REQUEST)
                        assert line.recv(4096).startswith(b"HTTP/1.1 400")
                assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200
                assert peer.ask().status == "fresh"
            assert server.end() == 143
        finally:
            server.kill()
    assert (tmp_path / "out" / "server.json").exists() and list((tmp_path / "out").glob("session-*/report.json"))


def test_streams_that_are_closed_at_the_start_become_nothing_else(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/s"
    serve = ["-m", "rtcontrol", "serve", "--model", "random", "--host", "inprocess", "--bind", endpoint]
    command = ["-c", 'exec "$@" 0<&- 1>&- 2>&-', "-", sys.executable, *serve, "--out", str(tmp_path / "out")]
    server = Program(command, tmp_path / "log", python="bash")
    try:
        with WirePeer(endpoint) as peer:
            peer.enter(pacing="client")
            opened = Path(f"/proc/{server.popen.pid}/fd")
            assert {str((opened / name).readlink()) for name in "012"} == {"/dev/null"}
            assert peer.ask().status == "fresh"
        assert server.end() == 143
    finally:
        server.kill()


def test_a_run_whose_world_prints_more_than_a_pipe_holds_goes_on_and_ends_in_order(tmp_path: Path) -> None:
    (tmp_path / "talker.py").write_text(TALKER)
    (tmp_path / "agent.py").write_text(AGENT)
    out = tmp_path / "out"
    command = ["-m", "rtcontrol", "run", "--env", str(tmp_path / "talker.py"), "--model", "random", "--hz", "50"]
    command += ["--host", "inprocess", "--agent", str(tmp_path / "agent.py"), "--no-live", "--out", str(out)]
    with full_pipe() as (_, writing):
        run = Program(command, tmp_path / "log", stdout=writing, stderr=writing)
        try:
            until(lambda: (out / "record.mcap").exists(), "no record", 60)
            time.sleep(1.5)
            assert run.end() == 143
        finally:
            run.kill()
    found = cli("report", str(out), "--format", "json", "--gate", "on_time>=30")
    assert found.returncode == 0, found.stderr


def test_a_supervisor_passes_signals_on(tmp_path: Path) -> None:
    command = command_line(
        ["serve", "--model", "random", "--bind", f"ipc://{tmp_path}/s", "--out", str(tmp_path)], None
    )
    with full_pipe() as (_, writing):
        supervisor = Program(command[1:], tmp_path / "log", stdout=writing, stderr=writing)
        try:
            with WirePeer(f"ipc://{tmp_path}/s") as peer:
                peer.enter(pacing="client")
            assert supervisor.end(signal.SIGTERM) == 143
        finally:
            supervisor.kill()
    assert (tmp_path / "server.json").exists()


def test_a_clients_name_forges_no_line_of_a_report(made: Any, tmp_path: Path) -> None:
    name = "\x1b[2Jrobot\r\nreleases 9 = ticks 9 + skipped 0\u202e"
    stop = {"name": "stop", "parameters": {"properties": {"now": {"enum": ["\x1b[31m", "b\nc"]}}, "required": ["now"]}}
    peer = made.peer()
    program = {"name": name, "version": "1", "language": "python"}
    peer.enter(client=program, tools=[stop], instruction="stop", pacing="client")
    assert peer.ask().status == "fresh"
    peer.send(Bye(session=peer.token))
    peer.expect(Bye)
    (session,) = made.out.glob("session-*")
    until(lambda: (session / "report.json").exists())
    for form in ("terminal", "html", "junit"):
        said = cli("report", str(session), "--format", form, "--out", "-", "--gate", "ticks>=0").stdout
        assert "robot" in said and not [c for c in "\x1b\r\u202e" if c in said], form
        assert not any(line.startswith("releases 9") for line in said.splitlines())


def test_refusals_are_said_within_a_rate(made: Any) -> None:
    for _ in range(12):
        peer = made.peer()
        for _ in range(10):
            assert peer.denied(agent="nobody").code == "agent"
    said = [line for line in made.said if "refused" in line]
    assert 20 <= len(said) <= 60
    assert made.admission.health()["refused"]["agent"] == 120
