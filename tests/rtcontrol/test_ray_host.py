"""The Ray host with real actors: round trips, a killed process, a hung one, an error in its making, no leftovers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cart import CartWorld, Flight

from rtcontrol.hosts.base import DecisionReply, DecisionRequest
from rtcontrol.hosts.ray_pool import RayHost
from rtcontrol.hosts.reaper import Reaper, descendants
from rtcontrol.models.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ["run", "--env", "lander", "--model", "expert", "--no-live"]


def source(fault: str = "") -> Any:
    """A decider source made of local classes, which Ray carries by value."""

    from rtcontrol.models.call import Call, Decision
    from rtcontrol.models.errors import UserError

    class Steering:
        def build(self) -> Steering:
            if fault == "user":
                raise UserError("No such checkpoint.", "Give another.")
            if fault == "bug":
                raise ZeroDivisionError("oops")
            return self

        def decide(self, request: DecisionRequest) -> Decision:
            import time

            if request.instruction == "fail":
                raise ValueError("cannot")
            if request.instruction.startswith("sleep"):
                time.sleep(float(request.instruction.split()[1]))
            x = int(request.observation.split()[1])
            return Decision(Call("push", {"force": -1 if x > 0 else 1}), {"function": 0.5}, 0.0, 1, 9, 3)

        def info(self) -> dict[str, Any]:
            return {"engine": "script", "model": "steering"}

    return Steering()


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    # One Ray for all: each host finds it running and leaves it running.
    from rtcontrol.hosts.ray_start import RaySession

    session = RaySession()
    session.start()
    yield
    session.end()


def request(tick: int, instruction: str = "go") -> DecisionRequest:
    return DecisionRequest(tick, 1, "x 5 v 0", instruction, ("push(force=1)",))


def reply_of(host: RayHost, seconds: float = 5.0) -> DecisionReply:
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        if (reply := host.wait(50_000_000)) is not None:
            return reply
    raise AssertionError("no reply")


@pytest.fixture(scope="module")
def shared(_ray: None) -> Iterator[RayHost]:
    host = RayHost(source())
    info = host.start()
    assert info["model"] == "steering" and info["pid"] != os.getpid()
    yield host
    host.close()


def test_round_trip_carries_the_decision_whole(shared: RayHost) -> None:
    shared.submit(request(3))
    reply = reply_of(shared)
    assert (reply.tick, reply.error) == (3, None)
    assert reply.decision is not None and reply.decision.call is not None
    assert reply.decision.call.text() == "push(force=-1)"
    assert (reply.decision.forward_passes, reply.decision.tokens, reply.decision.reused_tokens) == (1, 9, 3)
    assert reply.decide_ns > 0


def test_an_error_comes_back_in_one_line_and_the_process_lives_on(shared: RayHost) -> None:
    shared.submit(request(4, "fail"))
    assert reply_of(shared).error == "ValueError: cannot"
    shared.submit(request(5))
    assert reply_of(shared).error is None


@pytest.mark.realtime
def test_wait_keeps_to_its_timeout(shared: RayHost) -> None:
    began = time.monotonic()
    assert shared.wait(0) is None
    assert time.monotonic() - began < 0.005
    began = time.monotonic()
    assert shared.wait(3_300_000) is None
    assert 0.003 < time.monotonic() - began < 0.03


def test_the_newest_request_wins(shared: RayHost) -> None:
    shared.submit(request(10, "sleep 0.3"))
    time.sleep(0.1)
    for tick in range(11, 16):
        shared.submit(request(tick))
    assert reply_of(shared).tick == 10
    assert reply_of(shared).tick == 15
    assert shared.wait(100_000_000) is None


def test_a_slow_decision_does_not_look_like_a_dead_process(shared: RayHost) -> None:
    shared.submit(request(20, "sleep 1.2"))
    give_up = time.monotonic() + 1.0
    while time.monotonic() < give_up:
        assert shared.alive()
        time.sleep(0.02)
    assert reply_of(shared).tick == 20


def test_a_hung_process_is_noticed_and_returns(shared: RayHost) -> None:
    shared.submit(request(30))
    pid = reply_and_pid(shared)
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: not shared.alive(), 15.0)
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(shared.alive, 10.0)
    shared.submit(request(31))
    assert reply_of(shared).tick == 31


def reply_and_pid(host: RayHost) -> int:
    reply_of(host)
    assert host._link is not None
    pid: int = host._link.answer["pid"]
    return pid


def wait_until(true: Any, seconds: float) -> None:
    give_up = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.005)


@pytest.mark.realtime
def test_two_lanes_decide_at_once() -> None:
    host = RayHost(source(), lanes=2)
    host.start()
    try:
        began = time.monotonic()
        host.submit(request(1, "sleep 0.4"))
        host.submit(request(2, "sleep 0.4"))
        assert {reply_of(host).tick, reply_of(host).tick} == {1, 2}
        assert time.monotonic() - began < 0.7
    finally:
        host.close()


@pytest.mark.realtime
def test_killed_in_flight_misses_are_host_and_the_loop_returns_on_time(tmp_path: Path) -> None:
    host = RayHost(source())
    flight = Flight(tmp_path, host=host, world=CartWorld(), hz=20, duration_s=60.0, late="drop")

    def kill() -> None:
        assert host._link is not None
        os.kill(host._link.answer["pid"], signal.SIGKILL)

    def when_flying() -> None:
        wait_until(lambda: flight.loop.ledger.ticks > 10, 30.0)
        kill()
        wait_until(lambda: len(host.events) == 2, 50.0)
        back = flight.loop.ledger.ticks
        wait_until(lambda: flight.loop.ledger.ticks > back + 10, 10.0)
        flight.loop.stop("SIGTERM")

    killer = threading.Thread(target=when_flying)
    killer.start()
    flight.run()
    killer.join()
    assert [e.event for e in host.events] == ["lost", "restarted"]
    assert host.events[1].seconds > 0
    assert flight.causes["host"] >= 5, flight.causes
    # Fallback: the last call is held, then the safe call acts, once.
    assert flight.loop.ledger.safe_calls == 1
    assert all(t["kind"] == "call" for t in flight.ticks[-5:]), flight.dump()
    events = [line["host_event"]["event"] for line in flight.lines if "host_event" in line]
    assert events == ["lost", "restarted"]


@pytest.mark.parametrize(("fault", "says"), [("user", "No such checkpoint"), ("bug", "oops")])
def test_a_decider_that_cannot_be_made_is_a_users_error(fault: str, says: str) -> None:
    host = RayHost(source(fault))
    try:
        with pytest.raises(UserError, match=says):
            host.start()
    finally:
        host.close()


def test_tcp_under_curve_for_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    # A client that says it stands on another machine is given tcp.
    monkeypatch.setattr("rtcontrol.hosts.ray_process.socket.gethostname", lambda: "another-machine")
    host = RayHost(source())
    try:
        info = host.start()
        assert info["endpoint"].startswith("tcp://")
        host.submit(request(1))
        assert reply_of(host).tick == 1
    finally:
        host.close()


def test_ray_that_cannot_start_names_the_remedy(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "rtcontrol", *COMMAND, "--out", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": "127.0.0.1:1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.returncode == 2, answer.stderr
    assert "--host inprocess" in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_behind(tmp_path: Path, number: int) -> None:
    said = tmp_path / "stderr"
    run = subprocess.Popen(
        [sys.executable, "-m", "rtcontrol", *COMMAND, "--duration", "60", "--out", str(tmp_path / "run")],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=said.open("wb"),
    )
    record = tmp_path / "run" / "record.jsonl"
    wait_until(lambda: record.exists() and record.read_bytes().count(b'"kind"') > 5, 60.0)
    below = descendants(run.pid)
    assert len(below) >= 3
    run.send_signal(number)
    assert run.wait(30) == (143 if number == signal.SIGTERM else -signal.SIGKILL)
    if number == signal.SIGTERM:
        assert json.loads((tmp_path / "run" / "report.json").read_text())["ended_by"] == "SIGTERM"
        # Ray's own handler prints a stack, and aborts the run when it needs more than 3 s to end.
        assert "SIGTERM received" not in said.read_text()
    wait_until(lambda: not any(_runs(pid) for pid in below), 10.0)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_reaper_spares_what_it_is_dismissed_from(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "60"])
    reaper = Reaper([child.pid], str(tmp_path / "nothing"))
    reaper.dismiss()
    time.sleep(0.2)
    assert child.poll() is None
    child.kill()
    child.wait()
