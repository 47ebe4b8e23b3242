"""Create hosts with decoders in Ray: one decoder, a decoder with a warm standby (`host.standby`), or two deciders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rtcontrol.hosts.decoder_link import RayHost
from rtcontrol.hosts.layered import StandbyHost
from rtcontrol.hosts.layered_core import PAIR
from rtcontrol.hosts.pool import start_host
from rtcontrol.hosts.protocol import MAX_SESSIONS, DeciderSource, Host
from rtcontrol.hosts.ray_pool import RayPool
from rtcontrol.hosts.ray_start import RaySession


def single_host(source: DeciderSource, workers: int = 1, gpus: float | None = None) -> RayHost:
    """Return a host in a new pool. The host is the pool's only session."""
    return RayHost(RayPool(1, gpus, workers), source, "the run", owns_pool=True)


def two_hosts(first: DeciderSource, second: DeciderSource, workers: int = 1) -> tuple[RayHost, RayHost]:
    """Return the hosts of two deciders, in two processes of one Ray. Only the first decider may use a GPU."""
    ray = RaySession()
    pool, spare = RayPool(1, None, workers, ray), RayPool(1, 0, workers, ray)
    return RayHost(pool, first, "the run", owns_pool=True), RayHost(spare, second, "the run's backup", owns_pool=True)


def standby_host(source: DeciderSource, workers: int = 1, gpus: float | None = None) -> StandbyHost:
    """Return a host with a decoder and its warm standby, in a new pool."""
    pools = StandbyPool(1, gpus, workers).pools
    return StandbyHost([RayHost(pool, source, "the run", owns_pool=True) for pool in pools])


class StandbyPool:
    """A pool whose sessions have a decoder and a warm standby, in two `RayPool`s of one Ray."""

    name = "ray"

    def __init__(self, limit: int = MAX_SESSIONS, gpus: float | None = None, workers: int = 1) -> None:
        ray = RaySession()
        self.pools = [RayPool(limit, gpus, workers, ray) for _ in PAIR]

    @property
    def gave_up(self) -> str | None:
        reasons = [pool.gave_up for pool in self.pools]
        return reasons[0] if all(reasons) else None

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        for pool in self.pools:
            if not stopped():
                pool.start(stopped)
        return {}

    def open(self, session: str, source: DeciderSource) -> Host:
        return start_host(StandbyHost([RayHost(pool, source, session) for pool in self.pools]))

    def alive(self) -> bool:
        return any(pool.alive() for pool in self.pools)

    def close(self) -> None:
        for pool in self.pools:
            pool.close()
