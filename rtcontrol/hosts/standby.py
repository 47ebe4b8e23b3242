"""Hosts and pools of one or two decoders in Ray: alone, with a warm standby (`--standby`), or as two deciders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rtcontrol.hosts.decoder_link import RayHost
from rtcontrol.hosts.layered import LayeredHost
from rtcontrol.hosts.pool import started
from rtcontrol.hosts.protocol import LIMIT, DeciderSource, Host
from rtcontrol.hosts.ray_pool import RayPool
from rtcontrol.hosts.ray_start import RaySession
from rtcontrol.hosts.standby_core import PAIR, StandbyCore


def single_host(source: DeciderSource, lanes: int = 1, gpus: float | None = None) -> RayHost:
    """Return a run's host: the one session of a pool of its own."""
    return RayHost(RayPool(1, gpus, lanes), source, "the run", own=True)


def two_hosts(first: DeciderSource, second: DeciderSource, lanes: int = 1) -> tuple[RayHost, RayHost]:
    """Return two deciders, each in a process of its own, of one Ray. The first one takes a GPU where there is one."""
    ray = RaySession()
    pool, spare = RayPool(1, None, lanes, ray), RayPool(1, 0, lanes, ray)
    return RayHost(pool, first, "the run", own=True), RayHost(spare, second, "the run's backup", own=True)


def standby_host(source: DeciderSource, lanes: int = 1, gpus: float | None = None) -> LayeredHost:
    """Return a run's host, with two decoders."""
    return _standby(StandbyPool(1, gpus, lanes).pools, source, "the run", own=True)


class StandbyPool:
    """Two `RayPool`s in one Ray; each session has a host in both."""

    name = "ray"

    def __init__(self, limit: int = LIMIT, gpus: float | None = None, lanes: int = 1) -> None:
        ray = RaySession()
        self.pools = [RayPool(limit, gpus, lanes, ray, gentle=True) for _ in PAIR]

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
        return started(_standby(self.pools, source, session))

    def alive(self) -> bool:
        return any(pool.alive() for pool in self.pools)

    def close(self) -> None:
        for pool in self.pools:
            pool.close()


def _standby(pools: Sequence[RayPool], source: DeciderSource, session: str, own: bool = False) -> LayeredHost:
    """Return a session's host: one in each of the two processes; `StandbyCore` says which decides."""
    hosts = [RayHost(pool, source, session, own) for pool in pools]
    return LayeredHost(StandbyCore(), dict(zip(PAIR, hosts, strict=True)))
