"""Sessions that cannot leave a decoder at once, outside of Ray."""

from __future__ import annotations

import threading

import pytest
from fleet_asked import modelled
from pooled import naming

from rtcontrol.hosts.fleet import FleetPool
from rtcontrol.hosts.fleet_host import ELSEWHERE, OVER, TRIED, FleetHost, Part
from rtcontrol.hosts.fleet_leaving import Leaving
from rtcontrol.hosts.fleet_member import FleetMember
from rtcontrol.hosts.ray_host import RayHost
from rtcontrol.models.errors import UserError


@pytest.fixture
def fleet() -> FleetPool:
    fleet = FleetPool()
    fleet.members = [fleet._member(name, 0) for name in ("decoder-1", "decoder-2")]
    return fleet


def part_at(member: FleetMember) -> Part:
    made = RayHost(member, naming("a"), "a")
    made.up = True
    return Part(member, made, naming("a"), 0)


@pytest.fixture
def host(fleet: FleetPool) -> FleetHost:
    host = FleetHost(fleet, modelled("old"), "a", "p", 5.0)
    host._part = part_at(fleet.members[0])
    fleet.hosts.add(host)
    return host


def test_session_says_why_it_does_not_take_a_part(fleet: FleetPool, host: FleetHost) -> None:
    host._before = part_at(fleet.members[1])
    assert host.offer(part_at(fleet.members[1])) == TRIED
    host._before.host.up = False  # there is no way back
    assert host.offer(part_at(fleet.members[1])) == ""
    assert host.offer(part_at(fleet.members[1])) == ELSEWHERE
    host.closed = True
    assert host.offer(part_at(fleet.members[1])) == OVER


@pytest.mark.parametrize("bound", [True, False])
def test_session_that_was_on_trial_is_sent_on_its_way_afterwards(
    fleet: FleetPool, host: FleetHost, monkeypatch: pytest.MonkeyPatch, bound: bool
) -> None:
    first, other = fleet.members
    monkeypatch.setattr(fleet, "_build", lambda host, member, stopped: part_at(member))
    leaving = Leaving(fleet, first, other)
    entered, go_on = threading.Event(), threading.Event()
    other.builder.submit(lambda: (entered.set(), go_on.wait(20)))
    entered.wait(20)
    host._before = part_at(other) if bound else None
    assert not leaving.look()
    host._before = part_at(other)  # by now it is on trial, in any case
    go_on.set()
    other.builder.submit(int).result(20)
    assert not leaving.look() and host._offer is None
    host._before = None
    assert not leaving.look()
    other.builder.submit(int).result(20)
    assert host._offer is not None and host.going == other.decoder


def test_session_stays_where_the_decoder_ends_that_it_was_to_go_to(fleet: FleetPool, host: FleetHost) -> None:
    # pipecat-ai/pipecat#2383: what was cancelled was taken for a fault of the program.
    first, other = fleet.members
    entered, go_on = threading.Event(), threading.Event()
    other.builder.submit(lambda: (entered.set(), go_on.wait(20)))
    entered.wait(20)
    leaving = Leaving(fleet, first, other)
    assert not leaving.look() and host.going == other.decoder
    other.builder.shutdown(wait=False, cancel_futures=True)
    go_on.set()
    assert host.going is None
    with pytest.raises(UserError, match="cannot leave decoder-1: where it was to go was lost"):
        leaving.look()
