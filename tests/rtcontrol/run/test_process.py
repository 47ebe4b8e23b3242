"""Tests of a run as a process: signals, a closed terminal, run folders, full disks, exit statuses."""

from __future__ import annotations

import fcntl
import itertools
import os
import pty
import resource
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from commands import call, report_in, wait_for_ticks

from rtcontrol.envs.lander.world import Lander
from rtcontrol.loop import loop
from rtcontrol.loop.core import LoopCore
from rtcontrol.models.errors import UserError
from rtcontrol.run import run as run_module
from rtcontrol.run.live import LiveView
from rtcontrol.run.options import RunOptions
from rtcontrol.run.run import run
from rtcontrol.telemetry.record_reader import read_record
from rtcontrol.telemetry.recorder import Recorder
from rtcontrol.telemetry.run_folder import RunFolder
from rtcontrol_client import shutdown
from rtcontrol_client.shutdown import Interrupted, Shutdown
from tests.helpers.processes import environment, until

# A world whose only call is the safe call, which is slow and logs its start and end.
WORLD = """
import time
from pathlib import Path
from rtcontrol import Call

tools = [{"name": "go", "parameters": {"properties": {"way": {"enum": [0, 1]}}, "required": ["way"]}}]
fallback, instruction = Call("go", {"way": 0}), "go"

class World:
    step_s = 0.02
    def go(self, way):
        log = Path(__file__).with_name("log")
        log.write_text("started")
        time.sleep(SLOW)
        log.write_text("done")
    def reset(self, seed): pass
    def step(self): pass
    def observe(self): return {}
    def outcome(self): return None
    def instruct(self, text): pass
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restore the signal handlers after a test, because `Shutdown` keeps its last ones."""
    before = {number: signal.getsignal(number) for number in shutdown.SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start runs of a world whose safe call takes `slow` seconds, and wait for the third tick; kill them at the end."""
    running: list[subprocess.Popen[str]] = []

    def spawn(*options: str, slow: float = 0.0, head: str = "", **how: Any) -> subprocess.Popen[str]:
        file = tmp_path / "world.py"
        file.write_text(head + WORLD.replace("SLOW", str(slow)))
        command = [sys.executable, "-m", "rtcontrol", "run", "--env", str(file), "--agent", str(file), "--out", "out"]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how}
        command += ["--model", "noop", "--host", "inprocess", *options]
        running.append(subprocess.Popen(command, cwd=tmp_path, env=environment(), text=True, **pipes))
        if not options:
            wait_for_ticks(tmp_path / "out", 2)
        return running[-1]

    yield spawn
    for process in running:
        process.kill()
        process.communicate()


def log_of(folder: Path) -> str:
    path = folder / "log"
    return path.read_text() if path.exists() else ""


def lander(out: Path) -> int:
    """Return the exit status of a short run in this process."""
    options = RunOptions(env="lander", model="noop", host="inprocess", duration_s=0.2, out=out)
    with Shutdown() as ending:
        try:
            return run(options, ending)
        except Interrupted as interrupted:
            return interrupted.status


def test_second_signal_does_not_abort_a_slow_safe_call(start: Start, tmp_path: Path) -> None:
    process = start(slow=1000)
    process.send_signal(signal.SIGTERM)
    until(lambda: log_of(tmp_path) == "started", "no safe call")
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "the safe call is being executed; a third signal leaves at once" not in (line := process.stderr.readline()):
        assert line, "not shielded"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode in (143, run_module.UNSAFE), err
    assert "did not execute it within" not in out + err, "waited on"
    assert (report_in(tmp_path / "out")["ended_by"], log_of(tmp_path)) == ("SIGTERM", "started")


def test_closed_terminal_ends_the_run_with_safe_call(start: Start, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    ends = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    control = lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # noqa: E731
    process = start(start_new_session=True, preexec_fn=control, **ends)
    os.close(theirs)
    os.close(ours)
    assert process.wait(30) == 129
    assert log_of(tmp_path) == "done"
    assert report_in(tmp_path / "out")["ended_by"] == "SIGHUP"


TAKEN = """import signal
signal.signal(signal.SIGTERM, signal.SIG_DFL)
"""


@pytest.mark.parametrize(("number", "head"), [(signal.SIGQUIT, ""), (signal.SIGXCPU, ""), (signal.SIGTERM, TAKEN)])
def test_every_ending_signal_triggers_the_safe_call(
    start: Start, tmp_path: Path, number: signal.Signals, head: str
) -> None:
    process = start(head=head)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, log_of(tmp_path)) == (128 + number, "done"), err
    assert report_in(tmp_path / "out")["ended_by"] == number.name


def test_ctrl_z_stops_the_process_after_the_safe_call(start: Start, tmp_path: Path) -> None:
    # A group with a parent outside it: the kernel stops no process of an orphaned group.
    process = start(process_group=0)
    process.send_signal(signal.SIGTSTP)
    state = lambda: Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]  # noqa: E731
    until(lambda: state() == "T", "not stopped")
    assert log_of(tmp_path) == "done"
    process.send_signal(signal.SIGCONT)
    until(lambda: state() != "T", "not continued")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    words = [line["people"] for line in read_record(tmp_path / "out" / "record.mcap") if "people" in line]
    assert words[:2] == ["pause", "resume"]


def read_all(terminal: int) -> None:
    """Read a terminal until it is closed, so that writes to it do not block."""
    with suppress(OSError):
        while os.read(terminal, 4096):
            pass


@pytest.mark.integration
def test_background_job_continues_and_reads_again_in_foreground(tmp_path: Path) -> None:
    (tmp_path / "world.py").write_text(WORLD.replace("SLOW", "0"))
    shell, terminal = pty.fork()
    if shell == 0:
        os.chdir(tmp_path)
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment())
    Thread(target=read_all, args=(terminal,), daemon=True).start()

    def type_line(line: str) -> None:
        os.write(terminal, line.encode() + b"\n")

    def has_command(word: str) -> bool:
        with suppress(UserError):
            return any(line.get("people") == word for line in read_record(tmp_path / "out" / "record.mcap"))
        return False

    try:
        run = "run --env world.py --agent world.py --model noop --host inprocess --out out"
        type_line(f"stty tostop; {sys.executable} -m rtcontrol {run} & echo $! >pid")
        wait_for_ticks(tmp_path / "out", 2)
        pid = int((tmp_path / "pid").read_text())
        state = lambda: Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]  # noqa: E731
        assert state() != "T"
        type_line("fg")
        type_line("/pause")
        until(lambda: has_command("pause"), "not paused")
        type_line("/resume")
        until(lambda: has_command("resume"), "not resumed")
        os.write(terminal, b"\x1a")
        until(lambda: state() == "T", "not stopped")
        type_line("bg")
        until(lambda: state() != "T", "not continued")
        events = lambda: len(list(read_record(tmp_path / "out" / "record.mcap")))  # noqa: E731
        before = events()
        until(lambda: events() > before, "no ticks in the background")
        assert state() != "T"
    finally:
        type_line("kill %1; exit")
        os.waitpid(shell, 0)
        os.close(terminal)


def test_signals_are_counted_not_lost() -> None:
    names: list[str] = []

    def status(number: signal.Signals) -> int | None:
        """Return the exit status with which the signal interrupts, or None."""
        try:
            signal.raise_signal(number)
        except Interrupted as interrupted:
            return interrupted.status
        return None

    with Shutdown() as ending:
        assert status(signal.SIGHUP) == 129
        ending.of(names.append)
        assert names == ["SIGHUP"] and status(signal.SIGINT) is None
        assert status(signal.SIGTERM) is None  # it came along with the one before
        ending._next_interrupt_s = 0.0
        assert status(signal.SIGTERM) == 129  # the first one's
        ending.shielded = True
        assert status(signal.SIGTERM) is None
        assert (ending.status, names) == (129, ["SIGHUP"])


def has_events(record: Path) -> bool:
    """Return whether a record has events on the disk, while it is being written."""
    with suppress(UserError):
        return any(read_record(record))
    return False


@pytest.mark.integration
@pytest.mark.parametrize(
    ("where", "name", "full", "code"),
    [
        (Recorder, "write", False, 130),
        (LiveView, "close", False, 0),
        (Recorder, "write", True, run_module.INCOMPLETE),
    ],
)
def test_signals_during_final_writes_lose_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: type[Any], name: str, full: bool, code: int
) -> None:
    original, sent = getattr(where, name), []

    def thrice(self: Any, *arguments: Any) -> None:
        if not sent and (not arguments or (arguments[0] and "end" in arguments[0])):
            if full:
                until(lambda: has_events(self.file.path))
                with Path("/dev/full").open("wb") as disk:
                    os.dup2(disk.fileno(), self.file.fd)
            for _ in range(3):
                sent.append(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
        original(self, *arguments)

    monkeypatch.setattr(where, name, thrice)
    assert lander(tmp_path) == code and len(sent) == 3
    *_, last = read_record(tmp_path / "record.mcap")
    report = report_in(tmp_path)
    if full:
        assert report["record"]["lost_lines"] >= 1
    else:
        assert (last["end"], last["safe_in_force"], report["ended_by"]) == ("duration", True, "duration")


def test_full_disk_is_reported_counted_and_in_the_status(start: Start, tmp_path: Path) -> None:
    full = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))  # noqa: E731
    process = start("--duration", "6", "--hz", "20", "--no-live", preexec_fn=full)
    assert process.stderr is not None
    for line in process.stderr:
        if "cannot be written" in line:
            assert process.poll() is None and "Free some disk space" in line
            break
    out, err = process.communicate(timeout=60)
    assert process.returncode == run_module.INCOMPLETE, err
    assert "lines of the record lost" in err and "events that the record lacks" in out
    live = report_in(tmp_path / "out")
    assert live["ended_by"] == "duration" and live["record"]["lost_lines"] > 10
    assert live["releases"] == live["ticks"] + live["skipped_releases"]
    # The record alone says less: it replaces nothing.
    assert call("report", str(tmp_path / "out")) == 0
    assert report_in(tmp_path / "out") == live


def test_exit_status_is_the_gravest_that_applies() -> None:
    for case in itertools.product(("duration", "host", "SIGTERM", "miss"), *[(True, False)] * 5):
        ended, safe, complete, missed, sound, erred = case
        expected = 4 if not safe else 5 if ended == "host" else 6 if not complete else 143 if ended == "SIGTERM" else 3
        if expected == 3 and not missed:
            expected = 1 if not sound else 8 if erred else 0
        assert run_module.exit_status(*case) == expected, case
    assert [run_module.mostly_errors(n, 100) for n in (0, 9, 10)] == [False, False, True]


@pytest.mark.integration
@pytest.mark.parametrize("broken", [None, RuntimeError("of our own")])
def test_safe_call_that_is_not_active_has_its_own_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, broken: Exception | None
) -> None:
    def stuck(self: Lander, main: float, side: float) -> None:
        raise OSError("the valve is stuck")

    def breaks(self: LoopCore) -> None:
        raise broken or AssertionError

    monkeypatch.setattr(Lander, "engines", stuck)
    monkeypatch.setattr(loop, "EXIT_WAIT_S", 0.3)
    if broken is not None:
        monkeypatch.setattr(LoopCore, "_time_out", breaks)
    assert lander(tmp_path) == run_module.UNSAFE
    err = capsys.readouterr().err
    assert "could not be made active" in err and "the valve is stuck" in err
    assert ("The run failed: RuntimeError" in err) is (broken is not None)
    assert report_in(tmp_path)["ended_by"] == ("duration" if broken is None else "error")


def test_folder_belongs_to_one_run_at_a_time(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "mine", tmp_path):
        (tmp_path / "mine" / "record.mcap").write_text("one")
        with pytest.raises(UserError, match="mine is in use by another run"), RunFolder(tmp_path / "mine", tmp_path):
            pass
    with pytest.raises(UserError, match="already has the record"), RunFolder(tmp_path / "mine", tmp_path):
        pass


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_links_and_pipes_in_run_folder_are_replaced(tmp_path: Path, kind: str) -> None:
    (run := tmp_path / "run").mkdir()
    (precious := tmp_path / "precious").write_text("precious")
    for name in ("record.mcap", "record.mcap.part", "report.json", "report.json.part", "report.html.part"):
        (run / name).symlink_to(precious) if kind == "link" else os.mkfifo(run / name)
    short = ("--env", "lander", "--host", "inprocess", "--no-live", "--duration", "0.3", "--clock", "lockstep")
    assert call("run", *short, "--out", str(run), "--set", "record.overwrite=true") == 0
    assert call("report", str(run), "--format", "html") == 0
    assert precious.read_text() == "precious"
    for name in ("record.mcap", "report.json", "report.html"):
        assert not (run / name).is_symlink() and (run / name).stat().st_size > 1000
