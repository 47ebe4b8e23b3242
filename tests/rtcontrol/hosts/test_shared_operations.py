"""What is done with the decoders of a shared fleet: by any of its servers, for all of them, whatever becomes of it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import ray
from fleet_asked import Asking, modelled
from pooled import called, naming
from shared_servers import actors, asking_at, kept, pids, shared, silenced, tidied

from rtcontrol.hosts import load
from rtcontrol.hosts.fleet import FleetPool
from rtcontrol.hosts.fleet_book import BOOK, FleetBook, namespace_of
from rtcontrol.hosts.fleet_door import FleetDoor
from rtcontrol.hosts.fleet_host import FleetHost
from rtcontrol.hosts.fleet_member import FleetMember
from rtcontrol.hosts.protocol import DecoderUnavailable
from rtcontrol.hosts.ray_actor import BUILDERS
from rtcontrol.hosts.shared_fleet import SharedFleet
from rtcontrol.hosts.shared_operations import SharedOperations
from rtcontrol.models.errors import UserError
from tests.helpers.processes import until

pytestmark = pytest.mark.serial


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
            draining.result(240)
        for fleet in both:
            assert gone not in [member.decoder for member in fleet.members] and len(fleet.members) == 2
        assert pids(first) == pids(second), "the number is fixed: another one was started in its place"
        until(lambda: not Path(f"/proc/{pid}").exists(), "its process is left")
        for one in asking:
            one.go_on()
            assert None not in one.called() and not one.stray and one.host.place != gone
        with pytest.raises(UserError, match=f"There is no decoder '{gone}'"):
            first.operations.drain(gone)


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


class Crowding:
    """Servers at which sessions come, go, move and lose their decoders, at random."""

    def __init__(self, fleets: list[SharedFleet], seed: int) -> None:
        self.fleets, self._draw = fleets, random.Random(seed)
        self.sessions: list[tuple[SharedFleet, Asking]] = []

    def step(self) -> None:
        what, fleet = self._draw.random(), self._draw.choice(self.fleets)
        if what < 0.35 and len(self.sessions) < 6:
            asking = Asking(fleet.open("s", modelled(self._draw.choice(["left", "right"])), 5.0))
            asking.__enter__()
            self.sessions.append((fleet, asking))
        elif what < 0.55 and self.sessions:
            self.end(self._draw.randrange(len(self.sessions)))
        elif what < 0.93 and self.sessions:
            fleet, asking = self._draw.choice(self.sessions)
            with contextlib.suppress(UserError):
                fleet.move(asking.host, self._draw.choice(fleet.members).decoder)
        elif what < 0.97:
            pid = int(self._draw.choice(fleet.members).process.get("pid", 0))
            if pid:
                os.kill(pid, signal.SIGKILL)
        else:
            with contextlib.suppress(UserError):
                fleet.operations.drain(self._draw.choice(fleet.members).decoder)
        time.sleep(self._draw.random() * 0.2)

    def end(self, number: int) -> None:
        _, asking = self.sessions.pop(number)
        asking.__exit__()
        asking.host.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_after_many_moves_and_deaths_each_server_has_as_many_deciders_as_sessions(
    both: tuple[SharedFleet, SharedFleet], seed: int
) -> None:
    # ray-project/ray#13900: what was asked of an actor while it was made was lost, or done for nobody.
    crowding = Crowding(list(both), seed)
    for _ in range(150):
        crowding.step()
    tidied(*both)
    for _, asking in crowding.sessions:
        asking.go_on()
        assert not asking.stray
    for fleet, other in (both, both[::-1]):
        count = sum(one is fleet for one, _ in crowding.sessions)
        until(lambda fleet=fleet, other=other, count=count: len(kept(fleet, other)) == count, "a decider is left")
    while crowding.sessions:
        crowding.end(0)
    for fleet, other in (both, both[::-1]):
        until(lambda fleet=fleet, other=other: not kept(fleet, other), "a decider is left")


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
            changing.result(240)
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


def test_model_is_changed_at_one_server_for_all_and_for_those_that_come_later(
    both: tuple[SharedFleet, SharedFleet],
) -> None:
    """The last one of these servers: they serve another model from now on."""
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


class LateDoor(FleetDoor):
    """Its book is in this process. The answers to some steps come too late, after the step was done."""

    def __init__(self, book: FleetBook, late: list[str]) -> None:
        super().__init__("lab", {})
        self._here, self._late = book, late

    def beat(self) -> None:
        self._here.beat(self.id, {}, [], {}, {"change": self.change, "version": self.roster.version})

    def _ask(self, what: str, *arguments: Any, **options: Any) -> dict[str, Any]:
        answer = getattr(self._here, what)(*arguments, **options)
        if what == "operate" and arguments[1] in self._late:
            self._late.remove(arguments[1])
            raise DecoderUnavailable("The book does not answer.", "Try again.")
        if "roster" in answer:
            self._take(answer["roster"])
        return dict(answer)


@pytest.mark.parametrize("late", ["end", "give_up"])
def test_end_of_a_change_whose_answer_is_late_is_asked_again(monkeypatch: pytest.MonkeyPatch, late: str) -> None:
    # micro-fan/aiozk#34: who gave up at a timeout left its lock behind.
    monkeypatch.setattr(FleetBook, "_watch", lambda self: None)
    book, pool = FleetBook("lab", 30.0), FleetPool()
    door = LateDoor(book, [late])
    door.beat()
    operations = SharedOperations(pool, door)
    if late == "end":
        operations.tidy()
    else:
        with pytest.raises(UserError, match="There is no decoder"):
            operations.drain("decoder-9")
    assert book._roster.change is None and door.change is None and not operations.busy


def test_decoders_are_put_in_order_by_one_thread_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FleetBook, "_watch", lambda self: None)
    door = LateDoor(FleetBook("lab", 30.0), [])
    door.beat()
    operations = SharedOperations(FleetPool(), door)
    with operations._alone("drains decoder-1"), pytest.raises(UserError, match="being changed just now"):
        operations.tidy()
