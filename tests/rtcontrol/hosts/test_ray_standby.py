"""A run's two decoders: one is lost, the other decides; both come back, also from the loss of Ray itself."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pooled import called, folder_of, naming, reply_of, request, running

from rtcontrol.hosts.ray_pool import StandbyHost, StandbyPool
from tests.helpers.processes import until

pytestmark = pytest.mark.serial


@pytest.fixture(scope="module")
def pool(no_ray: None) -> Iterator[StandbyPool]:
    made = StandbyPool(4, 0)
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    made.start()
    yield made
    made.close()
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def opened(pool: StandbyPool) -> Iterator[StandbyHost]:
    """One for all: to start a process again takes seconds, and each test loses one."""
    host = pool.open("a", naming("left"))
    yield host
    host.close()


@pytest.fixture
def host(opened: StandbyHost) -> StandbyHost:
    until(lambda: both_up(opened), "a decoder is not back", seconds=60.0)
    opened._mirrored = 0  # as at its start
    return opened


def both_up(host: StandbyHost) -> bool:
    return host.alive() and host._standby.up


def kill(host: StandbyHost) -> None:
    """Kill the one that decides, and wait until the loop is told."""
    lives = host.incarnation
    os.kill(int(host.info["pid"]), signal.SIGKILL)
    until(lambda: host.alive() and host.incarnation == lives + 1, seconds=5.0, every=0.001)


def test_the_standby_answers_the_next_request_when_the_decoder_was_killed(host: StandbyHost) -> None:
    for tick in range(20, 40):
        assert called(host, tick) == f'left(at="x {tick}")'
    lost, other, told = int(host.info["pid"]), int(host.info["standby"]), len(host.events)
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in (lost, other)} == {ours}, "Ray's workers make way for all"
    kill(host)
    assert called(host, 41) == 'left(at="x 41")'
    assert int(host.info["pid"]) == other
    events = host.events[told:]
    assert [event.event for event in events] == ["lost", "restarted"]
    # The lost one becomes the standby.
    until(lambda: both_up(host), seconds=60.0)
    assert int(host.info["pid"]) == other and int(host.info["standby"]) not in (lost, other)


def test_no_reply_that_the_standby_owes_reaches_the_loop(host: StandbyHost) -> None:
    for tick in range(12):  # the first of them are mirrored
        host.submit(request(tick))
        assert reply_of(host).tick == tick
        assert host.wait(20_000_000) is None
    host._mirrored = 0
    host.submit(request(12))  # to both; the standby's answer lies there when it takes over
    assert reply_of(host).tick == 12
    kill(host)
    host.submit(request(13))
    assert reply_of(host).tick == 13


def test_nothing_is_left_of_two_decoders_and_sigterm_is_the_runs_own_after_ray(pool: StandbyPool) -> None:
    def handler() -> int:
        """What the kernel calls, whatever Python thinks of it."""
        told = ctypes.create_string_buffer(512)
        assert ctypes.CDLL(None).sigaction(int(signal.SIGTERM), None, told) == 0
        return int.from_bytes(told.raw[: ctypes.sizeof(ctypes.c_void_p)], sys.byteorder)

    before, folder = handler(), folder_of(pool)
    assert before and {"raylet", "gcs_server"} <= set(running(folder))
    pool.close()
    assert handler() == before
    assert not Path(folder).exists() and not running(folder)
