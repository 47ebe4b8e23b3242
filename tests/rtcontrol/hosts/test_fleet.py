"""Several decoders of one Ray: where sessions go, and that they go on whatever becomes of their decoder."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import ray
from fleet_asked import Asking, modelled
from pooled import called, request, running

from rtcontrol.hosts import fleet_care, load
from rtcontrol.hosts.fleet import FleetPool
from rtcontrol.hosts.fleet_care import ManagedFleet
from rtcontrol.hosts.fleet_host import FleetHost
from rtcontrol.hosts.protocol import DecoderUnavailable
from rtcontrol.models.errors import UserError
from tests.helpers.processes import until

pytestmark = pytest.mark.serial


@pytest.fixture(scope="module")
def made(no_ray: None) -> Iterator[ManagedFleet]:
    fleet = ManagedFleet(8, 2)
    fleet.start()
    yield fleet
    fleet.close()


@pytest.fixture
def fleet(made: ManagedFleet) -> Iterator[ManagedFleet]:
    while len(made.members) < 2:
        made.add()
    until(lambda: all(member.alive() for member in made.members), "a decoder is not back", seconds=60.0)
    assert not made.hosts, "a session of the test before"
    yield made
    for host in list(made.hosts):
        host.close()


@pytest.fixture
def host(fleet: ManagedFleet) -> FleetHost:
    return fleet.open("a", modelled("old"), 16.0)


def pid_of(host: FleetHost) -> int:
    return int(host.info["pid"])


def test_a_session_goes_on_at_another_decoder_when_its_own_was_killed(fleet: ManagedFleet, host: FleetHost) -> None:
    with Asking(host) as asking:
        asking.go_on()
        first, stays = host.place, pid_of(host)
        os.kill(stays, signal.SIGKILL)
        until(lambda: host.incarnation == 1, "it did not go over")
        asking.go_on()
        # vllm-project/production-stack#420: requests that still go to a node that is dead.
        assert host.place != first and pid_of(host) != stays
        until(lambda: all(member.alive() for member in fleet.members), "the decoder is not back")
        asking.go_on()
        assert host.place != first, "it stays where it is: nothing is won by going back"
    assert [event.event for event in host.events] == ["lost", "restarted"]
    assert not asking.stray and len([r.tick for r in asking.answers if r]) == len({r.tick for r in asking.answers if r})


def test_sessions_of_a_model_and_tools_are_together_until_their_decoder_is_full(fleet: ManagedFleet) -> None:
    hosts = [fleet.open("first", modelled("left"), 10.0)]
    with Asking(hosts[0], "sleep 0.03"):
        until(lambda: len(hosts[0].shares) > 8)
        hosts.append(fleet.open("second", modelled("left"), 10.0))  # 0.3 and 0.3
        assert hosts[1].place == hosts[0].place
        hosts.append(fleet.open("third", modelled("left"), 10.0))  # would be 0.9
        assert hosts[2].place != hosts[0].place
        hosts.append(fleet.open("other", modelled("right"), 0.0))
        assert hosts[3].place == hosts[2].place, "the least loaded"
    assert {d["decoder"]: d["sessions"] for d in fleet.decoders()} == {hosts[0].place: 2, hosts[2].place: 2}


def test_who_finds_its_decoder_full_goes_to_one_with_room_before_its_first_tick(fleet: ManagedFleet) -> None:
    hosts = [fleet.open(name, modelled("left"), 10.0) for name in ("first", "second")]
    assert hosts[0].place == hosts[1].place, "neither is measured yet"
    for host in hosts:
        for tick in range(3):
            called(host, tick, "sleep 0.05")
    assert hosts[1].relocate() and hosts[0].place != hosts[1].place
    assert called(hosts[1], 9) == 'left(at="x 9")'
    assert [event.event for event in hosts[1].events] == ["moved"]
    hosts.append(fleet.open("third", modelled("left"), 10.0))
    for tick in range(3):
        called(hosts[2], tick, "sleep 0.05")
    assert not hosts[2].relocate(), "no other has room"


def test_a_tick_under_way_is_answered_before_its_session_goes(fleet: ManagedFleet, host: FleetHost) -> None:
    called(host, 0)
    first = host.place
    moving = fleet.move(host, without=first)
    host.submit(request(1, "sleep 15"))  # only now: the next decider is warmed up with the last one
    assert moving is not None and moving.result() == ""
    reply = host.wait(0)
    assert reply is None, "it was answered before there was somewhere to go"
    while reply is None:
        reply = host.wait(20_000_000)
        assert host.alive()  # as the loop asks meanwhile
        assert reply is not None or (host.part is not None and host.part.member.decoder == first)
    assert reply.tick == 1
    assert called(host, 2) == 'old(at="x 2")' and host.place != first
    assert host.incarnation == 0, "nothing was lost"


def test_what_the_old_decoder_says_after_the_move_is_not_read(fleet: ManagedFleet, host: FleetHost) -> None:
    called(host, 0)
    first = host.place
    host.submit(request(1, "sleep 0.5"))
    moving = fleet.move(host, without=first)
    assert moving is not None and moving.result() == ""
    host.cancel(1)  # its deadline is over
    assert called(host, 2) == 'old(at="x 2")' and host.place != first
    end_s = time.monotonic() + 0.8
    while time.monotonic() < end_s:
        assert host.wait(50_000_000) is None, "the old decoder was heard"
    fleet.move(host, to=first)
    for tick in range(3, 12):  # an answer that never comes holds it up for a few requests only
        host.submit(request(tick, "sleep 3"))
        time.sleep(0.05)
        if host.place == first and host.going is None:
            break
    assert host.place == first


def test_a_decoder_is_drained_while_it_decides_and_no_tick_is_lost(fleet: ManagedFleet) -> None:
    hosts = [fleet.open(f"s{i}", modelled("old"), 5.0) for i in range(3)]
    with ExitStack() as stack:
        asking = [stack.enter_context(Asking(host)) for host in hosts]
        for one in asking:
            one.go_on()
        first = hosts[0].place
        fleet.operations.drain(first)
        # ray-project/ray#43030: the next one was started only when the one that drains had ended.
        names = [member.decoder for member in fleet.members]
        assert len(names) == 2 and first not in names and hosts[0].place in names, "two, as they were asked for"
        for one in asking:
            one.go_on()
        with pytest.raises(UserError, match=f"There is no decoder '{first}'"):
            fleet.operations.drain(first)
        for one in asking:
            one.go_on()
            assert None not in one.called() and not one.stray
            assert [reply.tick for reply in one.answers if reply] == list(range(len(one.answers)))


def test_a_session_that_asks_nothing_holds_up_no_drain(fleet: ManagedFleet, host: FleetHost) -> None:
    called(host, 0)
    first = host.place
    fleet.operations.drain(first)
    assert called(host, 1) == 'old(at="x 1")' and host.place != first
    assert host.incarnation == 0


def test_another_model_is_served_between_two_ticks(fleet: ManagedFleet, host: FleetHost) -> None:
    with Asking(host) as asking:
        asking.go_on()
        before = {member.decoder for member in fleet.members}
        fleet.operations.change("old", "new")
        assert before.isdisjoint(member.decoder for member in fleet.members)
        mark = len(asking.answers)
        asking.go_on()
        assert set(asking.called(mark)) == {"new"}
        names = asking.called()
        assert names == sorted(names, key=lambda name: name == "new"), "once over, it stays with the new one"
        assert None not in names and not asking.stray
        assert called(fleet.open("later", modelled("old")), 0) == 'new(at="x 0")'
        fleet.operations.change("new", "old")
        asking.go_on()
        assert asking.called()[-1] == "old" and None not in asking.called()


@pytest.mark.parametrize("model", ["broken", "bad"])
def test_a_model_that_does_not_serve_leaves_all_with_the_one_before(
    fleet: ManagedFleet, host: FleetHost, model: str
) -> None:
    # kserve/kserve#1474: a revision that cannot run became the newest ready one. ray-project/ray#66252: replicas that
    # were well were not routed to any more, as the update of others had failed.
    with Asking(host) as asking:
        asking.go_on()
        with pytest.raises(UserError, match="All sessions stay with the model before"):
            fleet.operations.change("old", model)
        mark = len(asking.answers)
        asking.go_on()
        assert set(asking.called(mark)) == {"old"}
        assert asking.called().count(None) <= 1, "a decision failed, and the next was by the old model"
        assert len([member for member in fleet.members if member.takes]) == 2
        assert called(fleet.open("later", modelled("old")), 0) == 'old(at="x 0")'


def test_a_decoder_that_hangs_holds_up_nobody_elsewhere(fleet: ManagedFleet, host: FleetHost) -> None:
    # vllm-project/production-stack#749: a backend hangs, and no request to any of them is answered any more.
    called(host, 0)
    other = next(member for member in fleet.members if member.decoder != host.place)
    stopped = int(other.process["pid"])
    os.kill(stopped, signal.SIGSTOP)
    try:
        opened: list[FleetHost] = []
        opening = threading.Thread(target=lambda: opened.append(fleet.open("b", modelled("left"), 1.0)))
        with Asking(host) as asking:
            opening.start()  # it is the least loaded, until it is noticed
            asking.go_on(50)
            until(lambda: bool(opened), "the session was not opened")
            assert None not in asking.called()
        assert opened[0].place == host.place
        assert called(opened[0], 1) == 'left(at="x 1")'
    finally:
        os.kill(stopped, signal.SIGCONT)
        os.kill(stopped, signal.SIGKILL)


def test_a_decoder_that_was_ended_for_good_is_replaced(fleet: ManagedFleet, host: FleetHost) -> None:
    # ray-project/ray#53491: an actor that may restart for ever is dead all the same when somebody kills it by hand.
    called(host, 0)
    member = host.part.member  # type: ignore[union-attr]
    ray.kill(member.actor)
    with Asking(host) as asking:
        until(lambda: host.incarnation == 1, "it did not go over")
        asking.go_on()
    until(member.alive, "no other actor was started in its place")


def test_a_session_for_which_nobody_has_room_waits_for_its_own_decoder(fleet: ManagedFleet) -> None:
    hosts = [fleet.open(f"s{i}", modelled(f"n{i}"), 10.0) for i in range(2)]
    with ExitStack() as stack:
        asking = [stack.enter_context(Asking(host, "sleep 0.06")) for host in hosts]
        for one in asking:
            one.go_on()
        assert hosts[0].place != hosts[1].place  # 0.6 each: together they are more than all
        first = hosts[0].place
        os.kill(pid_of(hosts[0]), signal.SIGKILL)
        until(lambda: not hosts[0].up, "not noticed")
        asking[1].go_on()
        until(lambda: hosts[0].up, "it is not back")
        asking[0].go_on()
        assert hosts[0].place == first and hosts[1].events == []


def test_an_overloaded_decoder_is_relieved_once(fleet: ManagedFleet) -> None:
    hosts = [fleet.open(f"s{i}", modelled("left"), 12.0) for i in range(2)]
    assert hosts[0].place == hosts[1].place
    with ExitStack() as stack:
        asking = [stack.enter_context(Asking(host, "sleep 0.05")) for host in hosts]  # 0.6 each
        until(lambda: hosts[0].place != hosts[1].place, "nobody was moved")
        for one in asking:
            one.go_on()
        places = [host.place for host in hosts]
        end_s = time.monotonic() + 4 * fleet_care.OVERLOADED * fleet_care.LOOK_S
        while time.monotonic() < end_s:
            assert [host.place for host in hosts] == places, "to and fro"
            time.sleep(0.05)
        assert sorted(len(host.events) for host in hosts) == [0, 1]
        assert all(None not in one.called() for one in asking)


def test_no_more_is_opened_of_a_fleet_that_is_closed(made: ManagedFleet) -> None:
    """The last one of them: the fleet of the module ends here."""
    folder = made.ray.ray.folder
    host = made.open("a", modelled("left"))
    assert running(folder)
    made.close()
    assert not host.alive()
    with pytest.raises(DecoderUnavailable, match="closed"):
        made.open("b", modelled("left"))
    host.close()
    assert not running(folder), "something is left"


@pytest.fixture
def grown(no_ray: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[ManagedFleet]:
    monkeypatch.setattr(load, "DOWN_S", 1.0)
    fleet = ManagedFleet(8, 1, 2)
    fleet.start()
    yield fleet
    fleet.close()


def test_decoders_come_and_go_with_what_is_in_use(grown: ManagedFleet) -> None:
    host = grown.open("a", modelled("left"), 12.0)
    with Asking(host, "sleep 0.06") as asking:
        until(lambda: len([m for m in grown.members if m.takes]) == 2, "no second decoder was started", 120.0)
        asking.go_on()
    host.close()
    until(lambda: len(grown.members) == 1, "the second decoder was not ended")
    assert grown.alive()


@pytest.mark.slow
def test_all_decoders_come_back_when_ray_itself_was_lost(no_ray: None) -> None:
    fleet = FleetPool(4, 2)
    fleet.start()
    try:
        host = fleet.open("a", modelled("left"))
        with Asking(host) as asking:
            asking.go_on()
            os.kill(running(fleet.ray.ray.folder)["raylet"], signal.SIGKILL)
            until(lambda: not fleet.alive(), "not noticed")
            until(lambda: all(member.alive() for member in fleet.members), "not back", 120.0)
            asking.go_on()
        assert fleet.gave_up is None
    finally:
        fleet.close()
