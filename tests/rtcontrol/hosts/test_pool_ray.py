"""A Ray pool over time: sessions that come and go; a process, or Ray itself, that is killed; one that hangs."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from cart import CartWorld, Flight, cart_agent
from pooled import asked, assert_equal, called, flown, folder_of, kept_pid, naming, reply_of, request, running

from rtcontrol.hosts import ray_pool as pools
from rtcontrol.hosts.deciders import STSource
from rtcontrol.hosts.protocol import DecoderUnavailable, Host
from rtcontrol.hosts.ray_pool import RayPool, single_host
from rtcontrol.models.errors import UserError
from tests.helpers.processes import until

pytestmark = pytest.mark.serial


def test_a_pool_that_is_never_started_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As `rtcontrol serve --model random` does: it needs no process to decide in.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    RayPool()
    assert list(tmp_path.iterdir()) == []


def test_sessions_that_come_and_go_leave_nothing_behind(ray_pool: RayPool, sources: list[STSource]) -> None:
    client, decoder = psutil.Process(), psutil.Process(kept_pid(ray_pool))

    def come_and_go(times: int) -> tuple[int, int, int]:
        for i in range(times):
            host = RayPool.open(ray_pool, "a", sources[i % 2])  # past the fixture, which keeps what it opens
            flown(host, 3)
            host.close()
        return client.num_fds(), client.memory_info().rss, decoder.memory_info().rss

    came_and_went = come_and_go(10)
    again = come_and_go(40)
    assert again[0] <= came_and_went[0] + 2
    assert again[1] < came_and_went[1] + 15e6
    assert again[2] < came_and_went[2] + 15e6
    # The actor tells how many deciders it keeps.
    assert ray.get(ray_pool.actor.close.remote(b"none")) == 0


def test_collections_of_garbage_pass_over_the_modules_of_the_decoders_process(ray_pool: RayPool) -> None:
    assert ray_pool.open("a", naming("go")).info["frozen"] > 50_000


def test_all_sessions_return_after_the_process_was_killed(ray_pool: RayPool, sources: list[STSource]) -> None:
    hosts = [ray_pool.open(f"s{i}", source) for i, source in enumerate(sources)]
    idle = ray_pool.open("idle", naming("idle"))
    before = [flown(host, 5) for host in hosts]
    os.kill(kept_pid(ray_pool), signal.SIGKILL)
    until(lambda: not any(host.alive() for host in [*hosts, idle]), seconds=2.0)
    hosts[0].submit(asked(1))
    assert hosts[0].wait(10_000_000) is None
    idle.close()
    late = ray_pool.open("late", naming("late"))
    until(lambda: all(host.alive() for host in hosts), seconds=20.0)
    for host, own in zip(hosts, before, strict=True):
        assert_equal(flown(host, 5), own)
    assert called(late, 1) == 'late(at="x 1")'
    for host in hosts:
        assert [e.event for e in host.events] == ["lost", "restarted"]
        assert host.events[1].seconds > 0 and host.incarnation == 1
        host.close()
    assert late.events == [] and late.incarnation == 0
    late.close()
    until(lambda: ray.get(ray_pool.actor.close.remote(b"none")) == 0, seconds=5.0)


def test_a_session_being_opened_survives_the_loss_of_the_process(ray_pool: RayPool) -> None:
    opened: list[Host] = []
    opener = threading.Thread(target=lambda: opened.append(ray_pool.open("a", naming("slow", "1.0"))))
    opener.start()
    time.sleep(0.4)
    os.kill(kept_pid(ray_pool), signal.SIGKILL)
    opener.join()
    assert called(opened[0], 1) == 'slow(at="x 1")'


def test_a_build_that_ends_the_process_is_given_up_and_the_others_return(ray_pool: RayPool) -> None:
    class Deadly:
        def build(self) -> Any:
            import os

            os._exit(1)

    host = ray_pool.open("a", naming("left"))
    with pytest.raises(UserError, match="lost 3 times"):
        ray_pool.open("b", Deadly())
    until(host.alive, seconds=20.0)
    assert called(host, 1) == 'left(at="x 1")'


def test_a_hung_process_is_noticed_and_goes_on(ray_pool: RayPool) -> None:
    host = ray_pool.open("a", naming("left"))
    pid = kept_pid(ray_pool)
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: not host.alive(), seconds=15.0)
    finally:
        os.kill(pid, signal.SIGCONT)
    until(host.alive, seconds=10.0)
    assert called(host, 1) == 'left(at="x 1")'


def test_a_process_that_answers_late_but_works_is_not_lost(ray_pool: RayPool) -> None:
    """As on a starved machine: it is stopped for most of the time, but never for as long as to be taken for stopped."""
    host = ray_pool.open("a", naming("left"))
    pid, events = kept_pid(ray_pool), len(host.events)
    try:
        for tick in range(4):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.9)
            os.kill(pid, signal.SIGCONT)
            called(host, tick)
            time.sleep(0.2)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert len(host.events) == events and host.alive()


def test_a_lane_outlives_what_it_cannot_read_or_pack(ray_pool: RayPool) -> None:
    host = ray_pool.open("a", naming("left"))
    assert host._link is not None or host.wait(0) is None
    assert host._link is not None
    host._link._lanes[0].send(b"\xc1")
    assert reply_of(host).tick == -1
    host.submit(request(7, "odd"))
    reply = reply_of(host)
    assert (reply.tick, reply.decision) == (7, None) and "cannot be sent" in (reply.error or "")
    assert called(host, 8) == 'left(at="x 8")'


def test_tcp_under_curve_for_another_machine(ray_pool: RayPool, monkeypatch: pytest.MonkeyPatch) -> None:
    # A client that says it stands on another machine is given tcp.
    monkeypatch.setattr("rtcontrol.hosts.ray_pool.socket.gethostname", lambda: "another-machine")
    host = single_host(naming("far"))
    try:
        assert host.start()["endpoint"].startswith("tcp://")
        assert called(host, 1) == 'far(at="x 1")'
    finally:
        host.close()
    assert ray_pool.alive()  # its Ray was joined, and is left as it was


def test_sockets_of_high_numbers_are_waited_for(ray_pool: RayPool) -> None:
    """As beside a thousand idle connections: select() knows no descriptor above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    held: list[int] = []
    try:
        while not held or held[-1] < 1100:
            held.append(os.dup(0))
        host = ray_pool.open("a", naming("left"))
        assert called(host, 1) == 'left(at="x 1")'
        assert host.woken.fd > 1023
        host.close()
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def fly(tmp_path: Path, host: Host, fault: Callable[[], None], seconds: float = 200.0) -> Flight:
    """A run in which something happens to the decoder; it ends 10 ticks after the decoder is back."""
    agent = replace(cart_agent(), observe=lambda data: "x 1")
    flight = Flight(tmp_path, agent=agent, host=host, world=CartWorld(), hz=20, duration_s=300.0, late="drop")

    def when_flying() -> None:
        try:
            until(lambda: flight.loop.account.ticks > 10, seconds=30.0)
            fault()
            until(lambda: len(host.events) == 2 or flight.loop.ended_by is not None, seconds=seconds)
            back = flight.loop.account.ticks
            until(lambda: flight.loop.account.ticks > back + 10 or flight.loop.ended_by is not None, seconds=10.0)
        finally:
            flight.loop.stop("SIGTERM")

    killer = threading.Thread(target=when_flying)
    killer.start()
    flight.run()
    killer.join()
    return flight


@pytest.mark.parametrize("part", ["decoder", "raylet", "gcs_server"])
def test_killed_in_flight_the_safe_call_acts_and_the_decoder_returns(
    tmp_path: Path, ray_pool: RayPool, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    host = ray_pool.open("a", pushing())
    old, decoder = folder_of(ray_pool), kept_pid(ray_pool)
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, decoder) == ours, "Ray's workers make way for all"

    def kill() -> None:
        os.kill(decoder if part == "decoder" else running(old)[part], signal.SIGKILL)
        if part == "raylet":
            os.kill(decoder, signal.SIGKILL)

    flight = fly(tmp_path, host, kill)
    assert [e.event for e in host.events] == ["lost", "restarted"]
    assert host.events[1].seconds > 0 and host.incarnation == 1
    assert flight.causes["host"] >= 5, flight.causes
    # Fallback: the last call is held, then the safe call acts.
    assert flight.loop.account.safe_calls >= 1
    assert any(t["kind"] == "call" for t in flight.ticks[-5:]), flight.dump()
    assert [line["host_event"]["event"] for line in flight.lines if "host_event" in line] == ["lost", "restarted"]
    if part == "decoder":
        assert folder_of(ray_pool) == old
    else:
        assert f"Ray's {part} has ended: Ray is started again" in caplog.text
        # Of the Ray that was lost nothing is left.
        assert running(old) == {} and not Path(old).exists()


def sigterm() -> int:
    """What the kernel calls, whatever Python thinks of it."""
    told = ctypes.create_string_buffer(512)
    assert ctypes.CDLL(None).sigaction(int(signal.SIGTERM), None, told) == 0
    return int.from_bytes(told.raw[: ctypes.sizeof(ctypes.c_void_p)], sys.byteorder)


def test_a_ray_that_is_lost_too_often_ends_the_run_with_the_safe_call_and_sigterm_is_the_runs_own(
    tmp_path: Path, ray_pool: RayPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    ours = sigterm()
    monkeypatch.setattr(pools, "RAY_TRIES", 0)
    monkeypatch.setattr(pools, "STEADY_S", -1.0)
    host, folder = ray_pool.open("a", pushing()), folder_of(ray_pool)
    flight = fly(tmp_path, host, lambda: os.kill(running(folder)["raylet"], signal.SIGKILL), 30.0)
    assert flight.loop.ended_by == "host" and flight.lines[-1]["end"] == "host"
    assert any("no more decisions: Ray was lost" in line for line in flight.said)
    assert flight.world.executed[-1][1] == flight.agent.fallback.safe_call
    with pytest.raises(DecoderUnavailable, match="Ray was lost"):
        ray_pool.open("b", naming("left"))
    ray_pool.close()
    assert running(folder) == {} and not Path(folder).exists()
    assert sigterm() == ours != 0
    signal.signal(signal.SIGTERM, before)


def pushing() -> Any:
    """A source for the cart, made of local classes, which Ray carries by value."""

    from rtcontrol.models.call import Call, Decision

    class Pushing:
        def build(self) -> Pushing:
            return self

        def decide(self, request: Any) -> Decision:
            return Decision(Call("push", {"force": 1}))

    return Pushing()
