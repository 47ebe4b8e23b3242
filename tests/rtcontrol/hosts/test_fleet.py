"""Several decoders of one Ray: where sessions go, and that they go on where their decoder dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from pooled import called, naming

from rtcontrol.hosts.fleet import FleetPool
from rtcontrol.hosts.fleet_host import FleetHost
from tests.helpers.processes import until

pytestmark = pytest.mark.serial


@pytest.fixture(scope="module")
def fleet(no_ray: None) -> Iterator[FleetPool]:
    made = FleetPool(8, 2)
    made.start()
    yield made
    made.close()


@pytest.fixture
def host(fleet: FleetPool) -> Iterator[FleetHost]:
    until(lambda: all(member.alive() for member in fleet.members), "a decoder is not back", seconds=60.0)
    made = fleet.open("a", naming("left"), 16.0)
    yield made
    made.close()


def test_a_session_goes_on_at_another_decoder_when_its_own_was_killed(fleet: FleetPool, host: FleetHost) -> None:
    for tick in range(20):
        assert called(host, tick) == f'left(at="x {tick}")'
    first = host.place
    os.kill(int(host.info["pid"]), signal.SIGKILL)
    until(lambda: not host.alive() or host.incarnation == 1, seconds=5.0, every=0.001)
    until(host.alive, seconds=5.0, every=0.001)
    assert called(host, 41) == 'left(at="x 41")'
    assert host.place != first and host.info["decoder"] == host.place
    assert [event.event for event in host.events] == ["lost", "restarted"]
    print(host.events)
    until(lambda: all(member.alive() for member in fleet.members), "a decoder is not back", seconds=60.0)
    assert host.place != first, "it stays where it is"
