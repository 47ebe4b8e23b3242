"""Servers that share a fleet's decoders: what each counts of the other's sessions, and what becomes of these when a
server, the book or a decoder is lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import ray
import zmq
from fleet_asked import Asking, modelled
from pooled import called, request
from shared_servers import TERMS, actors, kept, pids, shared
from zmq.utils.monitor import parse_monitor_message

from rtcontrol.hosts import fleet_door
from rtcontrol.hosts.fleet_book import BOOK, namespace_of
from rtcontrol.hosts.fleet_door import FleetDoor
from rtcontrol.hosts.shared_fleet import SharedFleet
from rtcontrol.models.errors import UserError
from tests.helpers.processes import until

pytestmark = pytest.mark.serial


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
