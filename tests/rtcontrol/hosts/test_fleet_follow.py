"""A server's decoders follow the fleet's list, outside of Ray."""

from __future__ import annotations

import threading

import pytest
from fleet_asked import modelled
from pooled import naming

from rtcontrol.hosts.fleet_host import FleetHost, Part
from rtcontrol.hosts.ray_host import RayHost
from rtcontrol.hosts.shared_fleet import SharedFleet


@pytest.fixture
def fleet() -> SharedFleet:
    return SharedFleet("lab", {}, 8, 1, 0.8, 1)


class Ending(FleetHost):
    """A session that is closed as soon as its part was looked at."""

    @property
    def part(self) -> Part | None:
        part, self._part = self._part, None
        return part


def test_decoder_that_left_the_list_before_it_was_joined_is_not_joined(fleet: SharedFleet) -> None:
    del fleet.door.roster.decoders["decoder-1"]
    fleet._join_first("decoder-1", lambda: False)
    assert not fleet.members


def test_nothing_is_kept_of_decoders_that_left_the_list(fleet: SharedFleet) -> None:
    follower, roster = fleet._follower, fleet.door.roster
    follower._again = {"decoder-1": float("inf"), "decoder-0": 0.0}
    follower._joining = {"decoder-1": threading.Thread(), "decoder-0": threading.Thread()}
    follower.look(roster, 1.0)
    assert list(follower._again) == list(follower._joining) == ["decoder-1"]


def test_session_that_ends_while_the_models_change_holds_nobody_up(fleet: SharedFleet) -> None:
    member = fleet._member("decoder-1", 0)
    host = Ending(fleet, modelled("old"), "a", "p", 5.0)
    part = Part(member, RayHost(member, naming("a", "1"), "a"), naming("a", "1"), 0)
    for look in (lambda: fleet.follow_models({0: {}, 1: {"old": "new"}}, 1), lambda: fleet._care._look(0.0)):
        host._part, host._before = part, part
        fleet.hosts = {host}
        look()
        assert host._part is None, "it was not looked at"
