"""Servers that share a fleet's decoders: what each counts of the other's sessions, and what becomes of these when a
server, the book or a decoder is lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import ray
import zmq
from fleet_asked import Asking, modelled
from pooled import called, naming, request
from zmq.utils.monitor import parse_monitor_message

from rtcontrol.hosts import fleet_door, load
from rtcontrol.hosts.fleet_book import BOOK, namespace_of
from rtcontrol.hosts.fleet_door import FleetDoor
from rtcontrol.hosts.fleet_host import FleetHost
from rtcontrol.hosts.fleet_member import FleetMember
from rtcontrol.hosts.ray_actor import BUILDERS
from rtcontrol.hosts.ray_start import RaySession
from rtcontrol.hosts.shared_fleet import SharedFleet
from rtcontrol.models.errors import UserError
from tests.helpers.processes import until

pytestmark = pytest.mark.serial

LEASE_S = 4.0
TERMS = {"rtcontrol": "1.0", "--model": "lander"}


@pytest.fixture(scope="module")
def cluster(no_ray: None) -> Iterator[None]:
    """A Ray that no fleet here has started, as a cluster's."""
    session = RaySession(8)
    session.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet_door, "LEASE_S", LEASE_S)
        yield
    session.end()


def shared(name: str = "lab", decoders: int = 2, most: int | None = None, **terms: Any) -> SharedFleet:
    return SharedFleet(name, {**TERMS, **terms}, 8, decoders, 0.8, 1, most)


def pids(fleet: SharedFleet) -> list[int]:
    return sorted(int(member.process.get("pid", 0)) for member in fleet.members)


def actors(name: str) -> list[str]:
    listed = ray.util.list_named_actors(all_namespaces=True)
    return sorted(one["name"] for one in listed if one["namespace"] == namespace_of(name))


def kept(of: SharedFleet, by: SharedFleet) -> list[bytes]:
    """The deciders that the decoders keep of a server, as another one finds them."""
    found = [member.actor.__ray_call__.remote(lambda actor: list(actor._deciders)) for member in by.members]
    return [key for keys in ray.get(found) for key in keys if key.startswith(of.door.id.encode())]


@pytest.fixture(scope="module")
def made(cluster: None) -> Iterator[tuple[SharedFleet, SharedFleet]]:
    both = shared(), shared()
    for fleet in both:
        fleet.start()
    yield both
    for fleet in both:
        fleet.close()


@pytest.fixture
def both(made: tuple[SharedFleet, SharedFleet]) -> Iterator[tuple[SharedFleet, SharedFleet]]:
    """Two servers of one fleet."""
    for fleet in made:
        until(lambda fleet=fleet: all(member.alive() for member in fleet.members), "a decoder is not back")
    yield made
    for fleet in made:
        for host in list(fleet.hosts):
            host.close()
    until(lambda: not any(seats for fleet in made for seats in fleet.door._others.values()), "a seat is left")


def test_servers_of_a_fleet_have_the_same_decoders_and_do_not_take_each_others_sessions_for_their_own(
    both: tuple[SharedFleet, SharedFleet],
) -> None:
    first, second = both
    assert pids(first) == pids(second) and len(set(pids(first))) == 2
    hosts = first.open("s", modelled("left"), 5.0), second.open("s", modelled("right"), 5.0)
    for tick in range(5):
        assert called(hosts[0], tick) == f'left(at="x {tick}")'
        assert called(hosts[1], tick) == f'right(at="x {tick}")'


def test_what_the_sessions_of_one_server_need_counts_at_the_other(both: tuple[SharedFleet, SharedFleet]) -> None:
    first, second = both
    host = first.open("a", modelled("left"), 10.0)
    with Asking(host, "sleep 0.06"):  # 0.6 of its decoder
        until(lambda: len(host.shares) > 8)
        until(lambda: bool(second.needs_elsewhere()), "the other server does not know of it")
        (need,) = second.needs_elsewhere()
        assert need.place == host.place and need.busy >= 0.6
        shown = {one["decoder"]: one["busy"] for one in second.decoders()}
        assert shown[host.place] >= 0.6
        late = second.open("b", modelled("left"), 10.0)
        assert late.place != host.place, "with it the decoder would be full"


def test_an_overloaded_decoder_is_relieved_by_the_server_whose_session_it_is(
    both: tuple[SharedFleet, SharedFleet],
) -> None:
    first, second = both
    hosts = first.open("a", modelled("left"), 12.0), second.open("b", modelled("left"), 12.0)
    assert hosts[0].place == hosts[1].place, "neither is measured yet"
    with Asking(hosts[0], "sleep 0.05") as one, Asking(hosts[1], "sleep 0.05") as other:  # 0.6 each
        one.go_on()
        other.go_on()
        until(lambda: hosts[0].place != hosts[1].place, "nobody was moved")
        assert None not in [*one.called(), *other.called()]


def test_a_killed_decoder_is_left_and_comes_back_for_all_servers(both: tuple[SharedFleet, SharedFleet]) -> None:
    # ray-project/ray#40864: a detached actor was lost with what it had to do with a process that was killed.
    first, second = both
    hosts = first.open("a", modelled("left"), 5.0), second.open("b", modelled("left"), 5.0)
    with Asking(hosts[0]) as one, Asking(hosts[1]) as other:
        one.go_on()
        other.go_on()
        for host in hosts:
            os.kill(int(host.info["pid"]), signal.SIGKILL)
            until(lambda: all(h.up and h.part.host.lost_ns is None for h in hosts), "not back")
        one.go_on()
        other.go_on()
        assert not one.stray and not other.stray
    until(lambda: all(m.alive() for fleet in both for m in fleet.members), "a decoder is not back")
    assert pids(first) == pids(second), "each of them started another one in its place"


def test_book_that_is_killed_is_written_anew_and_nobody_is_lost(both: tuple[SharedFleet, SharedFleet]) -> None:
    first, second = both
    host = first.open("a", modelled("left"), 5.0)
    with Asking(host) as asking:
        asking.go_on()
        book = ray.get_actor(BOOK, namespace=namespace_of("lab"))
        ray.kill(book, no_restart=False)
        second.door._others.clear()
        until(lambda: bool(second.door.others(host.place)), "the book does not know of the session any more")
        asking.go_on()
        assert host.incarnation == 0 and None not in asking.called(), "nobody decides by the book"


def test_server_that_stands_still_for_longer_than_its_lease_gets_its_sessions_back(
    both: tuple[SharedFleet, SharedFleet],
) -> None:
    first, second = both
    host = first.open("a", modelled("left"), 5.0)
    with Asking(host) as asking:
        asking.go_on()
        with first.lock:  # its beats need that
            until(lambda: not second.door.others(host.place), "who is silent counts for ever")
            until(lambda: not kept(first, second), "what a server left is kept for ever")
        until(lambda: host.incarnation > 0, "nobody noticed")
        asking.go_on()
        until(lambda: len(kept(first, second)) == 1, "it has more deciders than one")


def asking_at(stack: ExitStack, *fleets: SharedFleet, model: str = "old") -> list[Asking]:
    """A session at each, all on one decoder."""
    made = [stack.enter_context(Asking(fleet.open("s", modelled(model), 5.0))) for fleet in fleets]
    place = made[0].host.place
    for fleet, one in zip(fleets, made, strict=True):
        if one.host.place != place:
            fleet.move(one.host, place)
        until(lambda one=one: one.host.place == place and one.host.going is None)
        one.go_on()
    return made


def tidied(*fleets: SharedFleet, count: int = 2) -> None:
    """Until all have so many decoders again, and the same."""

    def even() -> bool:
        there = [sorted(m.decoder for m in fleet.members if m.takes) for fleet in fleets]
        return all(len(one) == count and one == there[0] for one in there) and all(f.door.roster.tidy for f in fleets)

    until(even, "the decoders are not in order", 60.0)


def test_decoder_is_drained_at_any_server_and_all_move_their_sessions(both: tuple[SharedFleet, SharedFleet]) -> None:
    # vllm-project/production-stack#166: what one router knows of its own requests alone is not the load.
    first, second = both
    with ExitStack() as stack:
        asking = asking_at(stack, *both)
        gone = asking[0].host.place
        pid = asking[0].host.info["pid"]
        with ThreadPoolExecutor(2) as pool:
            draining = pool.submit(second.operations.drain, gone)
            until(lambda: first.operations.busy, "the other server does not hear of it")
            with pytest.raises(UserError, match=f"another server drains {gone}"):
                first.operations.drain(gone)
            draining.result(60)
        for fleet in both:
            assert gone not in [member.decoder for member in fleet.members] and len(fleet.members) == 2
        assert pids(first) == pids(second), "the number is fixed: another one was started in its place"
        until(lambda: not Path(f"/proc/{pid}").exists(), "its process is left")
        for one in asking:
            one.go_on()
            assert None not in one.called() and not one.stray and one.host.place != gone
        with pytest.raises(UserError, match=f"There is no decoder '{gone}'"):
            first.operations.drain(gone)


def test_model_is_changed_at_one_server_for_all_and_for_those_that_come_later(
    both: tuple[SharedFleet, SharedFleet],
) -> None:
    # triton-inference-server/server#2076: the old model was unloaded before the new one was there.
    first, second = both
    with ExitStack() as stack:
        asking = asking_at(stack, *both)
        before = {member.decoder for member in first.members}
        second.operations.change("old", "new")
        assert all(before.isdisjoint(member.decoder for member in fleet.members) for fleet in both)
        for one in asking:
            mark = len(one.answers)
            one.go_on()
            assert set(one.called(mark)) == {"new"} and None not in one.called() and not one.stray
        late = shared()
        late.start()
        stack.callback(late.close)
        assert pids(late) == pids(first)
        assert called(late.open("late", modelled("old")), 0) == 'new(at="x 0")'
        first.operations.change("new", "old")
        assert called(late.open("later", modelled("old")), 0) == 'old(at="x 0")'
        for one in asking:
            one.go_on()
            assert one.called()[-1] == "old" and None not in one.called()


@pytest.mark.parametrize("model", [pytest.param("broken", marks=pytest.mark.slow), "bad"])
def test_model_that_does_not_serve_at_one_server_leaves_all_with_the_one_before(
    both: tuple[SharedFleet, SharedFleet], model: str
) -> None:
    # ray-project/ray#66252: replicas that were well were not routed to any more, as the update of others had failed.
    first, second = both
    with ExitStack() as stack:
        (asking,) = asking_at(stack, second)  # the one that is asked has no session that could fail
        with pytest.raises(UserError, match="All sessions stay with the model before"):
            first.operations.change("old", model)
        tidied(*both)
        mark = len(asking.answers)
        asking.go_on()
        assert set(asking.called(mark)) == {"old"} and asking.called().count(None) <= 1
        for fleet in both:
            assert called(fleet.open("later", modelled("old")), 0) == 'old(at="x 0")'


def elsewhere(fleet: SharedFleet, host: FleetHost) -> FleetMember:
    return next(member for member in fleet.members if member.decoder != host.place)


def test_session_that_ends_while_it_moves_leaves_no_decider_behind(both: tuple[SharedFleet, SharedFleet]) -> None:
    first, second = both
    host = first.open("a", modelled("left"), 5.0)
    called(host, 0)
    other = elsewhere(first, host)
    # Another one is being built there, so that its own is not begun when it ends.
    asked = other.actor.open.options(concurrency_group=BUILDERS).remote(b"slow", naming("slow", "1"), None)
    moving = first.move(host, to=other.decoder)
    assert moving is not None
    host.close()
    assert moving.result(30) != "" and ray.get(asked)
    last = first.open("b", modelled("right"), 5.0)  # what came before is done
    first.move(last, to=other.decoder)
    until(lambda: called(last, 1) and last.place == other.decoder)
    until(lambda: len(kept(first, second)) == 1, "it has a decider more than it has sessions")
    ray.get(other.actor.close.remote(b"slow"))


def test_session_that_left_a_decoder_that_was_only_silent_has_no_decider_there(
    both: tuple[SharedFleet, SharedFleet],
) -> None:
    first, second = both
    with Asking(first.open("a", modelled("left"), 5.0)) as asking:
        asking.go_on()
        member = first.named(asking.host.place)
        answer = member._answer
        assert answer is not None
        member._lose(time.monotonic_ns())  # as where the network was away for a while
        until(lambda: asking.host.place != member.decoder, "it did not go over")
        asking.go_on()
        time.sleep(0.2)  # by now what it left is freed, or not
        member._back(answer)
        until(lambda: len(kept(first, second)) == 1, "it has a decider more than it has sessions")


def silenced(fleet: SharedFleet) -> None:
    """It says nothing any more, as one that hangs."""
    fleet.door._closed.set()
    fleet.door._soon.set()
    fleet.door._thread.join()


@pytest.mark.slow
def test_server_that_hangs_holds_up_nobody_else(both: tuple[SharedFleet, SharedFleet]) -> None:
    # ray-project/ray#60754: what was drained waited for ever for what was stuck there.
    third = shared()
    third.start()
    with ExitStack() as stack:
        stack.callback(third.close)
        asking = asking_at(stack, *both, third)
        gone = asking[0].host.place
        third.closed.set()  # nothing of it goes on but its session
        silenced(third)
        both[1].operations.drain(gone)
        for one in asking[:2]:
            one.go_on()
            assert one.host.place != gone and None not in one.called()


@pytest.mark.slow
def test_server_that_dies_while_it_changes_the_model_gives_that_up_and_another_puts_all_in_order(
    both: tuple[SharedFleet, SharedFleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    third, held = shared(), threading.Event()
    third.start()
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        stack.callback(third.close)
        stack.callback(held.set)
        asking = asking_at(stack, *both)
        monkeypatch.setattr(third.operations, "_leave", lambda *arguments: held.wait(60) and None)
        changing = pool.submit(third.operations.change, "old", "new")
        until(lambda: changing.done() or all("new" in one.called() for one in asking), "nobody went over", 60.0)
        assert not changing.done(), changing.exception()
        silenced(third)
        until(lambda: all(fleet.door.roster.change is None for fleet in both), "it holds the decoders for ever", 60.0)
        tidied(*both)
        held.set()  # it comes to itself
        with pytest.raises(UserError, match="does not hear this server|was silent for too long"):
            changing.result(60)
        for one in asking:
            one.go_on()
            assert one.called()[-1] == "old" and one.called().count(None) == 0 and not one.stray
        assert pids(both[0]) == pids(both[1])


@pytest.mark.slow
def test_book_that_is_killed_keeps_the_model_and_the_decoders(both: tuple[SharedFleet, SharedFleet]) -> None:
    first, second = both
    with ExitStack() as stack:
        asking = asking_at(stack, *both)
        first.operations.drain(asking[0].host.place)
        before = sorted(first.door.roster.decoders)
        ray.kill(ray.get_actor(BOOK, namespace=namespace_of("lab")), no_restart=False)
        until(lambda: not first.door.heard or not second.door.heard or first.door._book is None, "it was not missed")
        until(lambda: first.door.heard and second.door.heard, "it is not back", 60.0)
        assert sorted(first.door.roster.decoders) == sorted(second.door.roster.decoders) == before
        for one in asking:
            one.go_on()
            assert None not in one.called()


def test_decoders_come_and_go_with_the_load_of_all_servers_and_one_decides(
    cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # knative/serving#2111: each of several autoscalers acted by itself.
    monkeypatch.setattr(load, "DOWN_S", 1.0)
    several = [shared("grown", 1, most=2) for _ in range(2)]
    try:
        for fleet in several:
            fleet.start()
        hosts = [fleet.open("s", modelled("left"), 6.0) for fleet in several]
        most = 0
        with Asking(hosts[0], "sleep 0.06") as one, Asking(hosts[1], "sleep 0.06") as other:  # 0.36 each

            def grown() -> bool:
                nonlocal most
                most = max(most, len([name for name in actors("grown") if name != BOOK]))
                return all(len([m for m in fleet.members if m.takes]) == 2 for fleet in several)

            until(grown, "no second decoder was started", 120.0)
            one.go_on()
            other.go_on()
            end_s = time.monotonic() + 2 * load.UP_S
            until(lambda: grown() and time.monotonic() > end_s)
            assert most == 2, "each server started one"
            operating = [fleet for fleet in several if fleet.door.operates]
            assert len(operating) == 1
        for host in hosts:
            host.close()
        until(lambda: all(len(fleet.members) == 1 for fleet in several), "the second one was not ended", 60.0)
        until(lambda: len(actors("grown")) == 2, "more than one was ended, or less")
        silenced(operating[0])
        left = next(fleet for fleet in several if fleet is not operating[0])
        until(lambda: left.door.operates, "nobody decides any more")
    finally:
        for fleet in several:
            fleet.close()


def test_port_of_a_decoder_decides_for_nobody_who_has_not_its_key(both: tuple[SharedFleet, SharedFleet]) -> None:
    answer = both[0].members[0]._answer
    assert answer is not None and answer["lanes"][0].startswith("tcp://"), "it is reached from other machines"
    context: zmq.Context[Any] = zmq.Context()
    try:
        for key in (None, zmq.curve_keypair()[0]):
            stranger = context.socket(zmq.DEALER)
            stranger.linger = 0
            if key is not None:
                stranger.curve_serverkey = key
                stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
            heard = stranger.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
            stranger.connect(answer["lanes"][0])
            stranger.send(b"")
            assert heard.poll(20_000), "nothing became of the connection"
            event = parse_monitor_message(heard.recv_multipart())["event"]
            assert event == zmq.EVENT_DISCONNECTED, "a stranger was let in"
            assert not stranger.poll(0)
            stranger.disable_monitor()
            stranger.close(0)
    finally:
        context.destroy(0)


@pytest.mark.parametrize(
    ("terms", "says", "remedy"),
    [
        ({"rtcontrol": "2.0"}, "has rtcontrol 1.0, and this server 2.0", "Install rtcontrol 1.0 here"),
        ({"--model": "paddle"}, "has --model lander, and this server paddle", "Give --model lander"),
        ({"--agent": "lander"}, "has --agent of no value", "Leave --agent out"),
    ],
)
def test_server_of_other_terms_is_not_let_in_and_disturbs_nobody(
    both: tuple[SharedFleet, SharedFleet], terms: dict[str, str], says: str, remedy: str
) -> None:
    host = both[0].open("a", modelled("left"), 5.0)
    stranger = shared(**terms)
    with Asking(host) as asking:
        asking.go_on()
        with pytest.raises(UserError) as told:
            stranger.start()
        assert says in told.value.what and remedy in told.value.remedy
        asking.go_on()
        assert None not in asking.called()
    assert both[0].door.servers == 2


def test_two_fleets_of_one_cluster_do_not_mix(both: tuple[SharedFleet, SharedFleet]) -> None:
    # OpenRLHF/OpenRLHF#783, ray-project/ray#16380: what is named is found, or not, by the namespace of who asks.
    other = shared("other", 1, **{"--model": "paddle"})
    other.start()
    try:
        assert not set(pids(other)) & set(pids(both[0]))
        host = other.open("a", modelled("left"), 5.0)
        until(lambda: other.door.servers == 1)
        time.sleep(2 * fleet_door.BEAT_S)
        assert not both[0].needs_elsewhere() and sum(d["sessions"] for d in both[0].decoders()) == 0
        host.close()
    finally:
        other.close()
    until(lambda: not actors("other"), "its decoders are left")
    assert all(member.alive() for fleet in both for member in fleet.members)


def test_servers_that_begin_at_once_make_one_fleet_and_its_name_is_free_after_its_end(cluster: None) -> None:
    # ray-project/ray#19896: of two who made the same named actor at once one was refused. ray-project/ray#44083,
    # ray-project/ray#20611: a name led to an actor that had ended, or was not free after it.
    for _ in range(3):
        several = [shared("quick", 1) for _ in range(3)]
        with ThreadPoolExecutor(3) as pool:
            for begun in [pool.submit(fleet.start) for fleet in several]:
                assert begun.result()["decoders"]
        assert len({*map(tuple, map(pids, several))}) == 1
        for fleet in several:
            fleet.close()
    until(lambda: not actors("quick"), "something is left")


def test_last_server_that_was_killed_leaves_nothing_behind(cluster: None) -> None:
    # ray-project/ray#16951, ray-project/ray#8759: what is detached outlives whoever made it, and nobody ends it.
    fleet = shared("orphan", 1)
    fleet.start()
    (pid,) = pids(fleet)
    assert actors("orphan") == [BOOK, "decoder-1"]
    fleet.door._closed.set()  # it says nothing any more, and does not leave
    fleet.door._thread.join()
    until(lambda: not actors("orphan"), "something is left")
    until(lambda: not Path(f"/proc/{pid}").exists(), "its process is left")
    fleet.close()


def test_book_that_was_started_again_ends_a_fleet_whose_servers_are_gone(cluster: None) -> None:
    fleet = shared("forgotten", 1)
    fleet.start()
    fleet.door._closed.set()
    fleet.door._thread.join()
    ray.kill(ray.get_actor(BOOK, namespace=namespace_of("forgotten")), no_restart=False)
    until(lambda: not actors("forgotten"), "something is left")
    fleet.close()


def test_waiting_for_a_fleet_ends_when_the_server_is_stopped(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    door, stop = FleetDoor("nowhere", TERMS), threading.Event()
    monkeypatch.setattr(door, "_beat", lambda: False)  # as of a fleet that is being ended for ever
    stopping: Callable[[], bool] = stop.is_set
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(door.join, stopping)
        stop.set()
        with pytest.raises(fleet_door.Stopped):
            joining.result(30)
    assert request(0).tick == 0
