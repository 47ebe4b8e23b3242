"""A run's two decoders: one is lost, the other decides; both come back, also from the loss of Ray itself."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pooled import called, folder_of, naming, reply_of, request, running

from rtcontrol.hosts.standby import StandbyHost, StandbyPool
from tests.helpers.processes import until

pytestmark = pytest.mark.serial


@pytest.fixture(scope="module")
def pool() -> Iterator[StandbyPool]:
    made = StandbyPool(4, 0)
    made.start()
    yield made
    made.close()


@pytest.fixture
def host(pool: StandbyPool) -> Iterator[StandbyHost]:
    opened = pool.open("a", naming("left"))
    yield opened
    opened.close()


def both_up(host: StandbyHost) -> bool:
    return host.alive() and host._standby.up


def test_the_standby_answers_the_next_request_when_the_decoder_was_killed(host: StandbyHost) -> None:
    for tick in range(20):
        assert called(host, tick) == f'left(at="x {tick}")'
    lost, other = int(host.info["pid"]), int(host.info["standby"])
    os.kill(lost, signal.SIGKILL)
    began = time.monotonic()
    until(lambda: host.alive() and host.incarnation == 1, seconds=5.0, every=0.001)
    assert int(host.info["pid"]) == other
    assert called(host, 21) == 'left(at="x 21")'
    assert time.monotonic() - began < 0.5
    assert [event.event for event in host.events] == ["lost", "restarted"] and host.events[1].seconds < 0.5
    # The lost one becomes the standby, and takes over in its turn.
    until(lambda: both_up(host), seconds=30.0)
    assert int(host.info["pid"]) == other and int(host.info["standby"]) not in (lost, other)
    os.kill(other, signal.SIGKILL)
    until(lambda: host.alive() and host.incarnation == 2, seconds=5.0, every=0.001)
    assert called(host, 22) == 'left(at="x 22")'
    until(lambda: both_up(host), seconds=30.0)


def test_no_reply_that_the_standby_owes_reaches_the_loop(host: StandbyHost) -> None:
    for tick in range(12):  # the first of them are mirrored
        host.submit(request(tick))
        assert reply_of(host).tick == tick
        assert host.wait(20_000_000) is None
    host._mirrored = 0
    host.submit(request(12))  # to both; the standby's answer lies there when it takes over
    assert reply_of(host).tick == 12
    os.kill(int(host.info["pid"]), signal.SIGKILL)
    until(lambda: host.alive() and host.incarnation == 1, seconds=5.0, every=0.001)
    host.submit(request(13))
    assert reply_of(host).tick == 13
    until(lambda: both_up(host), seconds=30.0)


@pytest.mark.slow
def test_both_decoders_come_back_when_ray_itself_was_lost(pool: StandbyPool, host: StandbyHost) -> None:
    assert called(host, 1) == 'left(at="x 1")'
    os.kill(running(folder_of(pool))["raylet"], signal.SIGKILL)
    until(lambda: not host.alive(), seconds=5.0)
    until(host.alive, seconds=60.0)
    assert called(host, 2) == 'left(at="x 2")'
    until(lambda: both_up(host), "the standby is not back", seconds=60.0)
    assert pool.spare.gave_up is None
    lives = host.incarnation
    os.kill(int(host.info["pid"]), signal.SIGKILL)
    until(lambda: host.alive() and host.incarnation > lives, seconds=5.0)
    assert called(host, 3) == 'left(at="x 3")'


def test_nothing_is_left_of_two_decoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    StandbyPool(1, 0).close()
    assert list(tmp_path.iterdir()) == []
