"""Decoder pools with real threads and Ray: sessions, processes that are killed or hang, another user, the end."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import zmq
from cart import Flight, cart_agent
from commands import report_in
from pooled import (
    assert_equal,
    called,
    folder_of,
    kept_pid,
    naming,
    reply_of,
    request,
    run_ticks,
    running,
    st_request,
    tools,
)

from rtcontrol.hosts.deciders import ExpertSource, STSource, answer_batch
from rtcontrol.hosts.decoder_link import DecoderLink
from rtcontrol.hosts.inprocess import InProcessHost
from rtcontrol.hosts.protocol import DecoderPool, DecoderUnavailable, Host
from rtcontrol.hosts.ray_actor import BUILD, DecoderActor
from rtcontrol.hosts.ray_pool import RayPool
from rtcontrol.hosts.sockets import WakeFile
from rtcontrol.hosts.standby import StandbyPool, single_host
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.errors import UserError
from rtcontrol.records import SPANS
from rtcontrol.telemetry.record_reader import read_record
from tests.helpers.processes import Program, environment, until

pytestmark = pytest.mark.serial


def test_each_session_has_its_own_decider(pool: DecoderPool) -> None:
    left, right = pool.open("a", naming("left")), pool.open("b", naming("right"))
    assert (left.start()["model"], right.start()["model"]) == ("left", "right")
    left.submit(request(7))
    right.submit(request(7))
    for host, name in ((right, "right"), (left, "left")):
        decision = reply_of(host).decision
        assert decision == Decision(Call(name, {"at": "x 7"}), {"function": 0.5}, 1, 9, 3)


def test_cancelled_decision_ends_between_its_steps(pool: DecoderPool) -> None:
    host = pool.open("a", naming("long"))
    host.submit(request(1, "steps 800"))  # 40 s
    time.sleep(0.2)
    host.cancel(1)
    assert called(host, 2) == 'long(at="x 2")'


@pytest.mark.parametrize(("fault", "says"), [("user", "No such checkpoint"), ("bug", "oops")])
def test_failed_build_leaves_other_sessions_alone(pool: DecoderPool, fault: str, says: str) -> None:
    host = pool.open("a", naming("left"))
    with pytest.raises(UserError, match=says):
        pool.open("b", naming("right", fault))
    assert called(host, 1) == 'left(at="x 1")'


@pytest.mark.parametrize("kind", [InProcessHost, single_host])
def test_host_decides_on_all_workers_at_once(kind: Any, ray_pool: RayPool) -> None:
    host = kind(naming("left"), workers=2)
    try:
        assert host.start()["model"] == "left"
        host.submit(request(1, "sleep 0.8"))
        host.submit(request(2, "sleep 0.8"))
        first, second = reply_of(host), reply_of(host)
        assert {first.tick, second.tick} == {1, 2}
        assert second.started_ns < first.started_ns + first.decide_ns, "both are made at once"
    finally:
        host.close()
    assert not host.alive()


def test_batch_decides_like_single_requests(pool: DecoderPool, sources: list[STSource]) -> None:
    busy, hosts = pool.open("busy", naming("busy")), [pool.open(f"s{i}", sources[i % 2]) for i in range(4)]
    busy.submit(request(1, "sleep 0.4"))
    time.sleep(0.1)
    for host in hosts:
        host.submit(st_request(7))
    replies = [reply_of(host) for host in hosts]
    assert [reply.batch_size for reply in replies] == [4] * 4
    expected = [source.build().decide(st_request(7)) for source in sources]
    assert_equal([reply.decision for reply in replies], expected * 2)  # type: ignore[misc]
    hosts[0].submit(st_request(8))
    assert reply_of(hosts[0]).batch_size == 1


def test_cancelled_decision_leaves_rest_of_batch(
    sources: list[STSource],
) -> None:
    late = tools(
        {"go": {"to": {"enum": [*(f"alpha beta go {w}" for w in ("red", "green", "blue")), "alpha beta stop"]}}}
    )
    source = STSource(replace(sources[0].spec, tools=late, budget_per_head=1))
    deciders: list[Any] = [source.build() for _ in range(3)]
    expected = deciders[0].decide(st_request(3))
    assert expected.forward_passes > 1
    wrong = replace(st_request(3), observation="go " * 3000)
    asks = [(deciders[0], st_request(1)), (deciders[1], st_request(3)), (deciders[2], wrong)]
    steps, count = answer_batch(asks, lambda i: i == 0), 0
    with pytest.raises(StopIteration) as done:
        while True:
            next(steps)
            count += 1
    assert count == expected.forward_passes
    given_up, sound, failed = done.value.value
    assert given_up is None
    assert sound.decision.call == expected.call and sound.batch_size == 3
    assert failed.decision is None and "context" in failed.user_error[0]
    assert deciders[0].decide(st_request(3)).call == expected.call


def test_wake_ends_a_wait_and_loses_no_reply(pool: DecoderPool) -> None:
    host = pool.open("a", naming("left"))
    threading.Timer(0.05, host.wake).start()
    assert host.wait(60_000_000_000) is None
    host.wake()  # before the wait: it ends that one
    assert host.wait(60_000_000_000) is None
    for tick in range(20):
        host.submit(request(tick))
        host.wake()
        assert reply_of(host).tick == tick


# -- losses ------------------------------------------------------------------------------------------------------------


def test_killed_process_comes_back_with_all_sessions(ray_pool: RayPool, sources: list[STSource]) -> None:
    hosts = [ray_pool.open(f"s{i}", source) for i, source in enumerate(sources)]
    idle = ray_pool.open("idle", naming("idle"))
    before = [run_ticks(host, 5) for host in hosts]
    opened: list[Host] = []
    opener = threading.Thread(target=lambda: opened.append(ray_pool.open("slow", naming("slow", "1.0"))))
    opener.start()
    time.sleep(0.4)
    os.kill(kept_pid(ray_pool), signal.SIGKILL)
    until(lambda: not any(host.alive() for host in [*hosts, idle]), seconds=10.0)
    hosts[0].submit(st_request(1))
    assert hosts[0].wait(10_000_000) is None
    idle.close()
    until(lambda: all(host.alive() for host in hosts), seconds=60.0)
    for host, decisions in zip(hosts, before, strict=True):
        assert_equal(run_ticks(host, 5), decisions)
        assert [e.event for e in host.events] == ["lost", "restarted"] and host.incarnation == 1
        host.close()
    opener.join()
    assert called(opened[0], 1) == 'slow(at="x 1")'
    opened[0].close()
    free = ray_pool.process.actor.free.options(concurrency_group=BUILD)
    until(lambda: ray.get(free.remote(b"none")) == 0, seconds=20.0)


def test_process_that_hangs_is_replaced(ray_pool: RayPool, caplog: pytest.LogCaptureFixture) -> None:
    host = ray_pool.open("a", naming("left"))
    os.kill(kept_pid(ray_pool), signal.SIGSTOP)
    until(lambda: host.incarnation == 1, seconds=30.0)
    assert called(host, 1) == 'left(at="x 1")'
    assert "did not answer for 10 s (it hangs), and is killed" in caplog.text


def test_build_that_kills_process_is_given_up(ray_pool: RayPool) -> None:
    class Deadly:
        def build(self) -> Any:
            import os

            os._exit(1)

    host = ray_pool.open("a", naming("left"))
    with pytest.raises(UserError, match="lost while loading the model for b"):
        ray_pool.open("b", Deadly())
    until(host.alive, seconds=20.0)
    assert called(host, 1) == 'left(at="x 1")'


def fly(tmp_path: Path, host: Host, fault: Callable[[], None]) -> Flight:
    """Do a run in which `fault` hits the decoder; the run ends 10 ticks after the decoder is back."""
    agent = replace(cart_agent(), observe=lambda data: "x 1")
    flight = Flight(tmp_path, agent=agent, host=host, hz=20, duration_s=300.0)
    over = lambda: flight.loop.ended_by is not None  # noqa: E731

    def hit() -> None:
        fault()
        until(lambda: len(host.events) == 2 or over(), seconds=30.0)
        back = flight.ticked
        until(lambda: flight.ticked > back + 10 or over(), seconds=10.0)

    return flight.run_beside(hit, ticks=10)


def test_killed_decoder_causes_safe_call_and_restarts(tmp_path: Path, ray_pool: RayPool) -> None:
    host = ray_pool.open("a", ExpertSource(lambda request: Call("push", {"force": 1})))
    old, decoder = folder_of(ray_pool), kept_pid(ray_pool)
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, decoder) == ours, "Ray's workers make way for all"
    flight = fly(tmp_path, host, lambda: os.kill(decoder, signal.SIGKILL))
    on_time = [tick for tick in flight.ticks if tick["kind"] == "call" and "cause" not in tick]
    assert len(on_time) >= 10
    for tick in on_time:
        spans = tick["spans_ms"]
        # A request may have been received before the loop's thread was back from sending it.
        order = [spans[name] for name in SPANS[1:] if name != "submitted"]
        assert tuple(spans) == SPANS and order == sorted(order)
        assert spans["captured"] < spans["submitted"] < spans["replied"]
        assert spans["executed"] == tick["latency_ms"] and spans["woke"] == tick["wake_ms"]
        assert spans["decided"] - spans["begun"] == pytest.approx(tick["decide_ms"], abs=1e-3)
    assert [e.event for e in host.events] == ["lost", "restarted"]
    assert host.events[1].seconds > 0 and host.incarnation == 1
    assert flight.causes["host"] >= 5, flight.causes
    # Fallback: the last call is held, then the safe call acts.
    assert flight.loop.account.counts["safe_calls"] >= 1
    assert any(t["kind"] == "call" for t in flight.ticks[-5:]), flight.ticks
    assert [line["host_event"]["event"] for line in flight.lines if "host_event" in line] == ["lost", "restarted"]
    assert folder_of(ray_pool) == old


NOBODY = 65534
# As the decoder's run starts it, and loaded before it is somebody else: of what it imports nothing need be readable.
INTRUDER = f"""
import json, os, socket, sys
from ray._raylet import GcsClient

told = json.loads(sys.argv[1])
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})

def tried(what, *arguments):
    try:
        return repr(what(*arguments))
    except Exception as error:
        return type(error).__name__

def bound(path):
    os.rename(path, path + ".theirs")
    zmq.Context.instance().socket(zmq.ROUTER).bind("ipc://" + path)
    return "bound"

def connected(path):
    with socket.socket(socket.AF_UNIX) as unix:
        unix.connect(path)
    return "connected"

def read(path):
    return open(path, "rb").read()

print(json.dumps({{
    "list": [tried(os.listdir, told["folder"])],
    "rename": [tried(os.rename, told["folder"], told["folder"] + "x")],
    "bind": [tried(bound, path) for path in told["sockets"]],
    "connect": [tried(connected, path) for path in told["sockets"]],
    "environ": [tried(read, f"/proc/{{pid}}/environ") for pid in told["pids"]],
    "gcs": [tried(lambda: GcsClient(address=told["gcs"]).internal_kv_keys(b"", b"session", timeout=5))],
}}))
"""


def test_other_user_reaches_neither_decoder_nor_ray(ray_pool: RayPool) -> None:
    if os.geteuid():
        pytest.skip("only root can be another user")
    import ray

    folder, answer = ray_pool.process.ray.folder, ray_pool.process_info
    assert answer is not None and stat.S_IMODE(Path(folder).stat().st_mode) == 0o700
    pids = {os.getpid(), *running().values()}
    listening = [c.laddr for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.pid in pids]
    # Also of the dashboard's: there is none.
    assert len(listening) >= 5 and {str(at.ip).removeprefix("::ffff:") for at in listening} == {"127.0.0.1"}
    sockets = [answer["endpoint"].removeprefix("ipc://")]
    sockets += [str(path) for path in Path(folder).rglob("*") if path.is_socket() and "/sockets/" in str(path)]
    assert len(sockets) >= 3 and all(len(path) <= 107 for path in sockets)
    paths: dict[str, Any] = {"folder": folder, "sockets": sockets, "pids": [*pids]}
    paths["gcs"] = ray.get_runtime_context().gcs_address
    env = {name: value for name, value in environment().items() if not name.startswith("RAY_")}
    command = [sys.executable, "-c", INTRUDER, json.dumps(paths)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    for what in ("list", "rename", "bind", "connect", "environ"):
        assert {*outcome[what]} == {"PermissionError"}, what
    assert outcome["gcs"] == ["AuthenticationError"]
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64, "it stands in no file"
    ready = DecoderLink(answer, b"x", WakeFile())
    assert ready.is_answering(5000), "who has the key is answered"
    ready.close()


def sigterm() -> int:
    """Return the address of the SIGTERM handler in the kernel, which Python may not know."""
    paths = ctypes.create_string_buffer(512)
    assert ctypes.CDLL(None).sigaction(int(signal.SIGTERM), None, paths) == 0
    return int.from_bytes(paths.raw[: ctypes.sizeof(ctypes.c_void_p)], sys.byteorder)


def test_lost_ray_ends_the_run_with_safe_call(tmp_path: Path, ray_pool: RayPool) -> None:
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    ours = sigterm()
    host, folder = ray_pool.open("a", ExpertSource(lambda request: Call("push", {"force": 1}))), folder_of(ray_pool)
    flight = fly(tmp_path, host, lambda: os.kill(running()["raylet"], signal.SIGKILL))
    assert flight.loop.ended_by == "host" and flight.lines[-1]["end"] == "host"
    assert any("no more decisions: Ray's raylet has ended" in line for line in flight.said)
    assert flight.cart.pushes[-1][1] == flight.agent.fallback.safe_call.arguments["force"]
    with pytest.raises(DecoderUnavailable, match="Ray's raylet has ended"):
        ray_pool.open("b", naming("left"))
    ray_pool.close()
    until(lambda: running() == {})
    assert not Path(folder).exists()
    assert sigterm() == ours != 0
    signal.signal(signal.SIGTERM, before)


def test_socket_with_wrong_key_receives_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    decoder = DecoderActor(1, False, ".").start()  # in this process: its threads end with the tests
    path = Path(decoder["endpoint"].removeprefix("ipc://"))
    link = DecoderLink(decoder, b"x", WakeFile())
    assert link.is_answering(5000)
    link.close()
    path.rename(path.with_suffix(".theirs"))
    context = zmq.Context()
    false = context.socket(zmq.ROUTER)
    false.linger = 0
    false.curve_server, false.curve_secretkey = True, zmq.curve_keypair()[1]
    false.bind(f"ipc://{path}")
    link = DecoderLink(decoder, b"x", WakeFile())
    assert not link.is_answering(1000)
    link.close()
    assert not false.poll(0), "it is told nothing"
    context.destroy()


COMMAND = ["-m", "rtcontrol", "run", "--env", "lander", "--model", "expert", "--no-live", "--duration", "60", "--out"]


@pytest.fixture
def base() -> Iterator[Path]:
    """Make the folder in which runs create theirs; the path is short, as Ray accepts no long one."""
    folder = Path(tempfile.mkdtemp(prefix="rt-", dir="/tmp"))
    (folder / "runs").mkdir()
    yield folder / "runs"
    shutil.rmtree(folder)


def stderr_of(base: Path) -> Path:
    return base.parent / "stderr"


def started(base: Path, *arguments: str) -> subprocess.Popen[str]:
    env = {"RAY_TMPDIR": str(base), "RAY_ADDRESS": ""}
    return Program(arguments, stderr_of(base), env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).popen


@pytest.mark.parametrize(
    ("number", "instant"),
    [
        (signal.SIGTERM, "flying"),
        pytest.param(signal.SIGKILL, "flying", marks=pytest.mark.slow),
        (signal.SIGKILL, "gcs_server"),
        pytest.param(signal.SIGINT, "gcs_server", marks=pytest.mark.slow),
    ],
)
def test_ended_run_leaves_no_process_or_file(base: Path, tmp_path: Path, number: int, instant: str) -> None:
    """A run that is ended leaves nothing, even if it is ended while Ray starts."""
    run = started(base, *COMMAND, str(tmp_path / "run"))
    record = tmp_path / "run" / "record.mcap"

    def flying() -> bool:
        return record.exists() and sum("kind" in e for e in read_record(record)) > 5

    until(flying if instant == "flying" else lambda: instant in running(run.pid), seconds=120.0)
    started_by_ray = [psutil.Process(pid) for pid in running(run.pid).values()]
    run.send_signal(number)
    assert run.wait(60) == (-signal.SIGKILL if number == signal.SIGKILL else 128 + number)
    if number != signal.SIGKILL:
        report = report_in(tmp_path / "run")
        assert report["ended_by"] == signal.Signals(number).name
        assert report["releases"] > 5 if instant == "flying" else report["releases"] == 0
        # Ray's own handler prints a stack, and aborts the run when it needs more than 3 s to end.
        assert not re.search("SIGTERM received|Traceback", stderr_of(base).read_text())
        assert not any(base.iterdir())
    until(lambda: not any(base.iterdir()) and not any(process.is_running() for process in started_by_ray))


def test_standby_answers_after_decoder_is_killed(no_ray: None) -> None:
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    ours, pool = sigterm(), StandbyPool(4, 0)
    pool.start()
    host = pool.open("a", naming("left"))
    assert called(host, 20) == 'left(at="x 20")'
    lost, other = int(host.start()["pid"]), int(host.start()["standby"])
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in (lost, other)} == {priority}
    os.kill(lost, signal.SIGKILL)
    until(lambda: host.alive() and host.incarnation == 1, seconds=5.0, every=0.001)
    assert called(host, 41) == 'left(at="x 41")' and int(host.start()["pid"]) == other
    assert [event.event for event in host.events] == ["lost", "restarted"]
    # The lost one becomes the standby.
    until(lambda: host.inner[host.core.standby].alive(), seconds=60.0)
    assert int(host.start()["pid"]) == other and int(host.start()["standby"]) not in (lost, other)
    host.close()
    folder = folder_of(pool.pools[0])
    assert {"raylet", "gcs_server"} <= set(running())
    pool.close()
    assert sigterm() == ours and not Path(folder).exists()
    until(lambda: not running())
    signal.signal(signal.SIGTERM, before)
