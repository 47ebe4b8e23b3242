"""The parent of the server, with real children; and servers and runs whose output nobody reads."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from commands import call, refused

from rtcontrol.serve.supervise import command_line, resident_mb, supervise
from rtcontrol_client.wire.messages import Bye
from tests.helpers.processes import Program, free_port, full_pipe, python, until
from tests.rtcontrol.serve.wire_peer import WirePeer

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Start]:
    running: list[Program] = []

    def begin(*command: str, **options: int) -> subprocess.Popen[str]:
        running.append(Program(command, tmp_path / f"log{len(running)}", cwd=tmp_path, **options))
        return running[-1].popen

    yield begin
    for one in running:
        one.kill()


@pytest.fixture
def start(program: Start, tmp_path: Path) -> Start:
    """Supervises a Python program, which finds its folder in sys.argv[1]."""
    return lambda code, *options: program(
        *("-m", "rtcontrol.serve.supervise", *options, "--", sys.executable, "-c", code, str(tmp_path)),
        stderr=subprocess.PIPE,
    )


@pytest.fixture
def serve(program: Start) -> Start:
    """Starts a server, which listens."""
    command = ("-m", "rtcontrol", "serve", "--model", "random", "--bind", "tcp://127.0.0.1:*")

    def begin(*options: str) -> subprocess.Popen[str]:
        server = program(*command, *options, stdout=subprocess.PIPE)
        listens(server)
        return server

    return begin


def listens(server: subprocess.Popen[str]) -> None:
    assert server.stdout is not None and server.stdout.readline().startswith("listening on ")


PIDS = "import os, sys, time; open(sys.argv[1] + '/pids', 'a').write(f'{os.getpid()}\\n'); "


def pids(folder: Path, count: int) -> list[int]:
    """The children so far, once there are so many."""
    path = folder / "pids"
    until(lambda: path.exists() and path.read_text().count("\n") >= count, f"no {count} children")
    return [int(pid) for pid in path.read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int) -> bool:
    until(lambda: not alive(pid), f"{pid} lives on")
    return True


def test_killed_server_is_started_again_and_that_is_said(start: Start, tmp_path: Path) -> None:
    supervisor = start(PIDS + "time.sleep(60)")
    (first,) = pids(tmp_path, 1)
    os.kill(first, signal.SIGKILL)
    second = pids(tmp_path, 2)[1]
    assert second != first
    supervisor.terminate()
    assert supervisor.wait(10) == 128 + signal.SIGTERM
    assert gone(second)
    assert supervisor.stderr is not None
    told = [re.sub(r"^\S+ supervise: |\d+\.\d+ s", "", line) for line in supervisor.stderr.read().splitlines()]
    assert told == [
        f"started the server (pid {first})",
        f"the server (pid {first}) was ended by SIGKILL after  with status 137: restart 1 in ; `rtcontrol report` "
        "makes the reports that it could not",
        f"started the server (pid {second}, restart 1)",
        f"the server (pid {second}) was ended by SIGTERM after  with status 143: not started again (SIGTERM asked for "
        "it), 1 restarts in all",
    ]


def test_memory_above_the_limit_ends_the_server_and_what_it_started(start: Start, tmp_path: Path) -> None:
    grow = (
        PIDS + "import subprocess; p = subprocess.Popen(['sleep', '60'], stderr=subprocess.DEVNULL); "
        "open(sys.argv[1] + f'/child-of-{os.getpid()}', 'w').write(str(p.pid)); b = []\n"
        "if len(open(sys.argv[1] + '/pids').readlines()) > 1: p.kill(); time.sleep(60)\n"
        "while True: b.append(bytearray(b'x' * 5_000_000)); time.sleep(0.002)"
    )
    supervisor = start(grow, "--memory-limit-mb", "120")
    first = pids(tmp_path, 1)[0]
    second = pids(tmp_path, 2)[1]
    assert gone(first)
    assert gone(int((tmp_path / f"child-of-{first}").read_text()))
    resident = resident_mb(second)
    assert resident is not None
    assert resident < 60
    supervisor.terminate()
    supervisor.wait(10)
    assert supervisor.stderr is not None
    assert "above the limit of 120 MB" in supervisor.stderr.read()


@pytest.mark.parametrize("status", [0, 2])
def test_end_that_is_meant_ends_the_supervisor_with_the_same_status(start: Start, tmp_path: Path, status: int) -> None:
    supervisor = start(PIDS + f"sys.exit({status})")
    assert supervisor.wait(20) == status
    assert len(pids(tmp_path, 1)) == 1 and supervisor.stderr is not None
    why = {0: "done", 2: "a mistake in what was given"}[status]
    assert f"with status {status}: not started again ({why}), 0 restarts in all" in supervisor.stderr.read()


def test_server_that_cannot_start_is_given_up(tmp_path: Path) -> None:
    said: list[str] = []
    # 0.05 + 0.1 + 0.2 + 0.4 s of pauses.
    command = [sys.executable, "-c", PIDS + "sys.exit(7)", str(tmp_path)]
    assert supervise(command, None, said.append, backoff_s=(0.05, 30.0)) == 7
    assert len(pids(tmp_path, 1)) == 5
    pauses = [line.partition("restart ")[2][5:10].rstrip(" s;") for line in said[1:-1:2]]
    assert pauses == ["0.05", "0.1", "0.2", "0.4"]
    assert "with status 7: not started again (it died 5 times within 10 s of its start;" in said[-1]


def test_signal_is_passed_on_and_the_servers_own_status_returned(start: Start, tmp_path: Path) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, lambda *a: sys.exit(143)); " + PIDS
    supervisor = start("import sys; " + code + "time.sleep(60)")
    (child,) = pids(tmp_path, 1)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(10) == 143
    assert gone(child)


def test_hangup_is_passed_on_but_stays_ignored_where_it_was(start: Start, tmp_path: Path) -> None:
    code = "import signal, sys; h = signal.getsignal(signal.SIGHUP)\n"
    code += "if h is not signal.SIG_IGN: signal.signal(signal.SIGHUP, lambda *a: sys.exit(129))\n"
    supervisor = start(code + PIDS + "time.sleep(60)")
    (child,) = pids(tmp_path, 1)
    supervisor.send_signal(signal.SIGHUP)
    assert supervisor.wait(10) == 129
    assert gone(child)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        deaf = start(code + PIDS + "time.sleep(60)")
    finally:
        signal.signal(signal.SIGHUP, before)
    child = pids(tmp_path, 2)[1]
    deaf.send_signal(signal.SIGHUP)
    deaf.send_signal(signal.SIGCONT)
    with pytest.raises(subprocess.TimeoutExpired):
        deaf.wait(0.5)
    assert alive(child)


def ends_whatever_comes_at_its_very_end(server: subprocess.Popen[str], number: signal.Signals, folder: Path) -> str:
    """What it says once it is sent this signal, and many others when it is nearly over."""
    server.send_signal(number)
    assert server.stdout is not None
    said = ""
    while not (line := server.stdout.readline()).startswith("records and reports: "):
        assert server.poll() is None
        said += line
    for further in (signal.SIGINT, signal.SIGTERM) * 1000:
        if server.poll() is not None:
            break
        server.send_signal(further)
        time.sleep(0.001)
    assert server.wait(10) == 128 + number
    assert "Traceback" not in (log := (folder / "log0").read_text()), log
    return said


def test_hangup_ends_the_server_in_order_in_the_folder_that_was_chosen_once_for_all_restarts(
    serve: Start, tmp_path: Path
) -> None:
    server = serve("--supervise")
    (child,) = psutil.Process(server.pid).children()
    line = child.cmdline()
    child.kill()
    # In another second than the first: a folder named after the time would be another one.
    listens(server)
    assert "SIGHUP: ending 0 sessions" in ends_whatever_comes_at_its_very_end(server, signal.SIGHUP, tmp_path)
    # The process that was killed wrote nothing: it is the time of the start that names the folder.
    (told,) = (tmp_path / "runs").glob("serve-*/server.json")
    assert tmp_path / line[line.index("--out") + 1] == told.parent


@pytest.mark.slow
def test_further_signals_at_the_very_end_of_a_server_alone_change_nothing(serve: Start, tmp_path: Path) -> None:
    ends_whatever_comes_at_its_very_end(serve(), signal.SIGINT, tmp_path)
    assert len([*(tmp_path / "runs").glob("serve-*/server.json")]) == 1


def test_server_ends_when_its_supervisor_is_killed(start: Start, tmp_path: Path) -> None:
    supervisor = start(PIDS + "time.sleep(60)")
    (child,) = pids(tmp_path, 1)
    supervisor.kill()
    assert gone(child)


def test_supervision_is_not_asked_for_again_in_the_child() -> None:
    arguments = ["serve", "--supervise", "--hz", "8", "--memory-limit-mb", "500", "--memory-limit-mb=7", "--seed", "1"]
    command = command_line(arguments, 500.0)
    assert command[:6] == [sys.executable, "-m", "rtcontrol.serve.supervise", "--memory-limit-mb", "500", "--"]
    assert command[6:] == [sys.executable, "-m", "rtcontrol", "serve", "--hz", "8", "--seed", "1", "--no-supervise"]


def test_supervisor_imports_nothing_heavy() -> None:
    code = (
        "import sys, rtcontrol.serve.supervise\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'numpy', 'zmq', 'ray', 'pydantic', 'typer'}))"
    )
    assert python("-c", code).stdout.strip() == "[]"


@pytest.mark.parametrize("option", ["--allow-origin", "--token-file", "--static"])
def test_option_of_the_gateway_without_http_is_a_mistake(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "serve", "--model", "random", option, str(tmp_path))
    assert option in said and "--http" in said


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


def test_a_supervised_server_that_nobody_reads_serves_on_and_ends_in_order(tmp_path: Path) -> None:
    port, endpoint = free_port(), f"ipc://{tmp_path}/s"
    arguments = ["serve", "--model", "random", "--host", "inprocess", "--bind", endpoint]
    arguments += ["--http", f"127.0.0.1:{port}", "--out", str(tmp_path / "out")]
    with full_pipe() as (_, writing):
        supervisor = Program(command_line(arguments, None)[1:], tmp_path / "log", stdout=writing, stderr=writing)
        try:
            with WirePeer(endpoint) as refused, WirePeer(endpoint) as peer:
                for _ in range(10):
                    refused.hello(agent="nobody")
                    assert refused.refused(60).code in ("agent", "rate")
                for _ in range(3):
                    peer.enter(pacing="client")
                    assert peer.ask().status == "fresh"
                    peer.send(Bye(session=peer.token))
                peer.enter(pacing="client")
                for _ in range(50):  # each is told
                    with socket.create_connection(("127.0.0.1", port), 5) as line:
                        line.settimeout(5)
                        line.sendall(NO_REQUEST)
                        assert line.recv(4096).startswith(b"HTTP/1.1 400")
                assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200
                assert peer.ask().status == "fresh"
            assert supervisor.end(signal.SIGTERM) == 143
        finally:
            supervisor.kill()
    assert len(list((tmp_path / "out").glob("session-*/report.json"))) == 4
    assert (tmp_path / "out" / "server.json").exists()


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
    assert call("report", str(out), "--format", "json", "--gate", "on_time>=30") == 0


def test_a_clients_name_forges_no_line_of_a_report(made: Any, capsys: pytest.CaptureFixture[str]) -> None:
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
        capsys.readouterr()
        assert call("report", str(session), "--format", form, "--out", "-", "--gate", "ticks>=0") == 0
        said = capsys.readouterr().out
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
