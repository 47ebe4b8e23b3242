"""A warm second decoder (`--standby`), and two deciders in two processes of one Ray."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rtcontrol.hosts.layered import LayeredHost
from rtcontrol.hosts.protocol import LIMIT, Decider, DeciderSource, Host
from rtcontrol.hosts.ray_actor import yield_processor
from rtcontrol.hosts.ray_host import RayHost
from rtcontrol.hosts.ray_pool import RayPool
from rtcontrol.hosts.standby_core import PAIR, StandbyCore


def standby_host(source: DeciderSource, lanes: int = 1, gpus: float | None = None) -> LayeredHost:
    """Return a run's host: the one session of a pool of its own, with two decoders."""
    return _standby(StandbyPool(1, gpus, lanes, preload=False), source, "the run", own=True)


def two_hosts(first: DeciderSource, second: DeciderSource, lanes: int = 1) -> tuple[RayHost, RayHost]:
    """Return two deciders, each in a process of its own, of one Ray. The first one, which takes a GPU where there is
    one, is closed last: the pool is its own."""
    pool = StandbyPool(1, None, lanes, preload=False, spare_gpus=0)
    return RayHost(pool, first, "the run", own=True), RayHost(pool.spare, second, "the run's backup")


@dataclass(frozen=True)
class GentleSource:
    """Builds next to the decisions of the other decoder, where there are not enough processors for both."""

    source: DeciderSource

    def build(self) -> Decider:
        yield_processor()
        return self.source.build()


class StandbyPool(RayPool):
    """A `RayPool` that keeps a second one, its `spare`, in the Ray that it started."""

    def __init__(
        self,
        limit: int = LIMIT,
        gpus: float | None = None,
        lanes: int = 1,
        preload: bool = True,
        spare_gpus: float | None = None,
    ) -> None:
        """`spare_gpus` None: as many as `gpus`."""
        super().__init__(limit, gpus, lanes, preload)
        self.spare = RayPool(limit, gpus if spare_gpus is None else spare_gpus, lanes, preload, self.ray)

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        info = super().start(stopped)
        if info and not stopped():
            self.spare.start(stopped)
        return info

    def host(self, session: str, source: DeciderSource) -> Host:
        return _standby(self, source, session)

    def alive(self) -> bool:
        return super().alive() or self.spare.alive()

    def close(self) -> None:
        self.spare.close()
        super().close()


def _standby(pool: StandbyPool, source: DeciderSource, session: str, own: bool = False) -> LayeredHost:
    """Return a session's host: one in each of the two processes; `StandbyCore` says which decides."""
    gentle = GentleSource(source)
    hosts = RayHost(pool, gentle, session, own), RayHost(pool.spare, gentle, session)
    return LayeredHost(StandbyCore(), dict(zip(PAIR, hosts, strict=True)))
