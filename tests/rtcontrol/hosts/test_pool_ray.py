"""A Ray pool over time: sessions that come and go, a process that is killed, hangs or is ended by a build."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from pooled import asked, assert_equal, called, flown, kept_pid, naming, wait_until

from rtcontrol.hosts.base import Host
from rtcontrol.hosts.deciders import STSource
from rtcontrol.hosts.pool_ray import RayPool
from rtcontrol.models.errors import UserError

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
            host = ray_pool.open("a", sources[i % 2])
            flown(host, 3)
            host.close()
        return client.num_fds(), client.memory_info().rss, decoder.memory_info().rss

    came_and_went = come_and_go(10)
    again = come_and_go(40)
    assert again[0] <= came_and_went[0] + 2
    assert again[1] < came_and_went[1] + 15e6
    assert again[2] < came_and_went[2] + 15e6
    # The actor tells how many deciders it keeps.
    assert ray.get(ray_pool._process.actor.close.remote(b"none")) == 0


def test_all_sessions_return_after_the_process_was_killed(ray_pool: RayPool, sources: list[STSource]) -> None:
    hosts = [ray_pool.open(f"s{i}", source) for i, source in enumerate(sources)]
    idle = ray_pool.open("idle", naming("idle"))
    before = [flown(host, 5) for host in hosts]
    os.kill(kept_pid(ray_pool), signal.SIGKILL)
    wait_until(lambda: not any(host.alive() for host in [*hosts, idle]), 2.0)
    hosts[0].submit(asked(1))
    assert hosts[0].wait(10_000_000) is None
    idle.close()
    late = ray_pool.open("late", naming("late"))
    wait_until(lambda: all(host.alive() for host in hosts), 20.0)
    for host, own in zip(hosts, before, strict=True):
        assert_equal(flown(host, 5), own)
    assert called(late, 1) == 'late(at="x 1")'
    for host in hosts:
        assert [e.event for e in host.events] == ["lost", "restarted"]
        assert host.events[1].seconds > 0 and host.incarnation == 1
        host.close()
    assert late.events == [] and late.incarnation == 0
    late.close()
    wait_until(lambda: ray.get(ray_pool._process.actor.close.remote(b"none")) == 0, 5.0)


def test_a_session_being_opened_survives_the_loss_of_the_process(ray_pool: RayPool) -> None:
    opened: list[Host] = []
    opener = threading.Thread(target=lambda: opened.append(ray_pool.open("a", naming("slow", "1.0"))))
    opener.start()
    time.sleep(0.4)
    os.kill(kept_pid(ray_pool), signal.SIGKILL)
    opener.join()
    assert called(opened[0], 1) == 'slow(at="x 1")'
    opened[0].close()


def test_a_build_that_ends_the_process_is_given_up_and_the_others_return(ray_pool: RayPool) -> None:
    class Deadly:
        def build(self) -> Any:
            import os

            os._exit(1)

    host = ray_pool.open("a", naming("left"))
    with pytest.raises(UserError, match="lost 3 times"):
        ray_pool.open("b", Deadly())
    wait_until(host.alive, 20.0)
    assert called(host, 1) == 'left(at="x 1")'
    host.close()


def test_a_hung_process_is_noticed_and_goes_on(ray_pool: RayPool) -> None:
    host = ray_pool.open("a", naming("left"))
    pid = kept_pid(ray_pool)
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: not host.alive(), 15.0)
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(host.alive, 10.0)
    assert called(host, 1) == 'left(at="x 1")'
    host.close()


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
    host.close()
