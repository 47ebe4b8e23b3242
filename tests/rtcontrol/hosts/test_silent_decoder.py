"""A decoder that nobody hears and nobody saw die, as of a machine without power: who is on it goes elsewhere
before it counts as lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
from fleet_asked import modelled
from pooled import request

from rtcontrol.hosts import ray_host
from rtcontrol.hosts.fleet_host import FleetHost
from rtcontrol.hosts.ray_start import RaySession
from rtcontrol.hosts.shared_fleet import SharedFleet
from tests.helpers.processes import until

pytestmark = pytest.mark.serial


@pytest.fixture
def fleet(no_ray: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedFleet]:
    """Its decoders are reached by tcp, as those of other machines; none of them counts as lost meanwhile."""
    monkeypatch.setattr(ray_host, "DEAD_AFTER_S", 600.0)
    session = RaySession(8)
    session.start()
    made = SharedFleet("lab", {"rtcontrol": "1.0"}, 8, 2, 0.8, 1)
    try:
        made.start()
        yield made
    finally:
        made.close()
        session.end()


class Ticking:
    """A session whose ticks have a deadline: what has no answer by then is given up. `decided` has the others."""

    def __init__(self, host: FleetHost) -> None:
        self._host, self._over = host, threading.Event()
        self.decided: list[int] = []
        self._thread = threading.Thread(target=self._tick)

    def __enter__(self) -> Ticking:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _tick(self) -> None:
        tick = 0
        while not self._over.is_set():
            self._host.submit(request(tick))
            for _ in range(10):
                reply = self._host.wait(20_000_000)
                if reply is not None:
                    self.decided.append(reply.tick)
                    if reply.tick == tick:
                        break
            else:
                self._host.cancel(tick)
            tick += 1
            self._over.wait(0.02)

    def go_on(self, count: int = 10) -> None:
        mark = len(self.decided)
        until(lambda: len(self.decided) >= mark + count, "no more answers", 60.0)


def test_session_of_a_decoder_that_says_nothing_goes_elsewhere_and_no_tick_is_decided_twice(fleet: SharedFleet) -> None:
    # grpc/grpc-go#3206, istio/istio#33466: packets to a machine that was gone were lost without a word, and requests
    # went there until the kernel gave up, for a quarter of an hour.
    host = fleet.open("a", modelled("left"), 5.0)
    with Ticking(host) as ticking:
        ticking.go_on()
        before, pid = host.place, int(host.info["pid"])
        os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: host.part is not None and host.part.member.decoder != before, "nobody left it", 120.0)
            ticking.go_on()
            late = fleet.open("b", modelled("left"), 5.0)
            assert late.place != before, "one more came to the silent one"
            assert fleet.named(before).alive(), "it was not lost: it may come back"
        finally:
            os.kill(pid, signal.SIGCONT)
        until(lambda: fleet.named(before).takes, "it is doubted for ever")
        ticking.go_on()
    assert [event.event for event in host.events] == ["moved"], "it was not told as lost"
    assert len(ticking.decided) == len(set(ticking.decided)), "a tick was decided twice"


def test_who_hears_no_decoder_at_all_gives_none_up(fleet: SharedFleet) -> None:
    # kubernetes/kubernetes#28832, kubernetes/kubernetes#77864: who was cut off took all others for dead.
    host = fleet.open("a", modelled("left"), 5.0)
    pids = [int(member.process["pid"]) for member in fleet.members]
    with Ticking(host) as ticking:
        ticking.go_on()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: all(member.silent for member in fleet.members), "nobody is doubted")
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        until(lambda: all(member.takes for member in fleet.members), "they are doubted for ever")
        ticking.go_on()
    assert [int(member.process["pid"]) for member in fleet.members] == pids
    assert all(member.alive() for member in fleet.members)
