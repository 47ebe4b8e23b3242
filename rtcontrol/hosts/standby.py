"""Decoders in Ray: one, two of one model of which the second is a warm standby (`host.standby`), or two deciders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rtcontrol.hosts.decoder_link import RayHost
from rtcontrol.hosts.layered import LayeredHost, Notify, Status
from rtcontrol.hosts.pool import started
from rtcontrol.hosts.protocol import LIMIT, DeciderSource, DecisionReply, DecisionRequest, Host
from rtcontrol.hosts.ray_pool import RayPool
from rtcontrol.hosts.ray_start import RaySession

PAIR = ("a", "b")
WARM_REQUESTS, WARM_EVERY_NS = 8, 5_000_000_000
MOST_OWED = 64  # answers of the standby that are awaited
TOOK_OVER = "the standby decides"


class StandbyHost(LayeredHost):
    """Two warm decoders of one session, PAIR; `main` decides. Where it is lost, the other takes over.

    The session stays with that one, and the lost one comes back as the standby. The standby decides the first requests
    too, and one in so many seconds: its first decisions after a takeover would be slow.
    """

    def __init__(self, hosts: Sequence[Host]) -> None:
        super().__init__("ray", dict(zip(PAIR, hosts, strict=True)), PAIR[0])
        self.standby = PAIR[1]
        self._incarnation = 0  # of the main one
        self._mirrored = self._mirrored_ns = 0
        self._owed: dict[str, set[int]] = {name: set() for name in PAIR}  # ticks whose answer is dropped

    def info(self, infos: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        return {**infos[self.main], "standby": infos[self.standby].get("pid")}

    def requested(self, request: DecisionRequest, now_ns: int) -> None:
        mirrored = self.status[self.standby].alive and self._is_due(now_ns)
        if mirrored:
            owed = self._owed[self.standby]
            owed.add(request.tick)
            if len(owed) > MOST_OWED:
                owed.remove(min(owed))  # newer requests took its place
        self.ask(self.main, request, now_ns)
        if mirrored:
            self.ask(self.standby, request, now_ns)

    def _is_due(self, now_ns: int) -> bool:
        """Return whether the standby is to decide this request, too."""
        if self._mirrored >= WARM_REQUESTS and now_ns - self._mirrored_ns < WARM_EVERY_NS:
            return False
        self._mirrored, self._mirrored_ns = self._mirrored + 1, now_ns
        return True

    def replied(self, name: str, reply: DecisionReply, now_ns: int) -> None:
        if name == self.main and reply.tick not in self._owed[name]:
            self.replies.append(reply)
        self._owed[name].discard(reply.tick)

    def cancelled(self, tick: int) -> None:
        self.inner[self.main].cancel(tick)

    def changed(self, before: Mapping[str, Status], now_ns: int) -> None:
        """Take over where the main one is lost; note the loss, and when a decoder is back."""
        for name, status in self.status.items():
            if not status.alive or status.incarnation != before[name].incarnation:
                self._owed[name].clear()  # what a lost one had to answer it will not
        main, standby = self.status[self.main], self.status[self.standby]
        if main.alive and main.incarnation == self._incarnation and self.lost_ns is None:
            return
        if self.lost_ns is None:
            events = reversed(self.inner[self.main].events)
            self.lost(next((event.t_ns for event in events if event.event == "lost"), now_ns))
        if not main.alive and standby.alive:
            self.main, self.standby = self.standby, self.main
            main, standby = standby, main
            self.reports.append(Notify(TOOK_OVER))
        if main.alive:
            self._incarnation = main.incarnation
            self.ready(now_ns)
        else:
            self.gave_up = standby.gave_up and main.gave_up


def single_host(source: DeciderSource, workers: int = 1, gpus: float | None = None) -> RayHost:
    """Return a run's host: the one session of a pool of its own."""
    return RayHost(RayPool(1, gpus, workers), source, "the run", owns_pool=True)


def two_hosts(first: DeciderSource, second: DeciderSource, workers: int = 1) -> tuple[RayHost, RayHost]:
    """Return two deciders, each in a process of its own, of one Ray. The first one takes a GPU where there is one."""
    ray = RaySession()
    pool, spare = RayPool(1, None, workers, ray), RayPool(1, 0, workers, ray)
    return RayHost(pool, first, "the run", owns_pool=True), RayHost(spare, second, "the run's backup", owns_pool=True)


def standby_host(source: DeciderSource, workers: int = 1, gpus: float | None = None) -> StandbyHost:
    """Return a run's host, with two decoders."""
    pools = StandbyPool(1, gpus, workers).pools
    return StandbyHost([RayHost(pool, source, "the run", owns_pool=True) for pool in pools])


class StandbyPool:
    """Two `RayPool`s in one Ray; each session has a host in both."""

    name = "ray"

    def __init__(self, limit: int = LIMIT, gpus: float | None = None, workers: int = 1) -> None:
        ray = RaySession()
        self.pools = [RayPool(limit, gpus, workers, ray) for _ in PAIR]

    @property
    def gave_up(self) -> str | None:
        reasons = [pool.gave_up for pool in self.pools]
        return reasons[0] if all(reasons) else None

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        info: dict[str, Any] = {}
        for pool in self.pools:
            if not stopped():
                info = pool.start(stopped)
        return info

    def open(self, session: str, source: DeciderSource) -> Host:
        return started(StandbyHost([pool.host(session, source) for pool in self.pools]))

    def alive(self) -> bool:
        return any(pool.alive() for pool in self.pools)

    def close(self) -> None:
        for pool in self.pools:
            pool.close()
