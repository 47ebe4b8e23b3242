"""A warm second decoder (`--standby`): two processes of one Ray, each watched and restarted on its own; whichever is up
decides."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rtcontrol.hosts.protocol import (
    Decider,
    DeciderSource,
    DecisionReply,
    DecisionRequest,
    DecoderUnavailable,
    HostEvent,
)
from rtcontrol.hosts.ray_actor import yield_processor
from rtcontrol.hosts.ray_host import RayHost
from rtcontrol.hosts.ray_pool import AGAIN_S, READY_MS, RayPool
from rtcontrol.hosts.ray_start import POLL_S, RaySession, Stopped
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.host")

# The standby decides the first requests too, and one in so many seconds: its first decisions would be slow.
WARM_REQUESTS, WARM_EVERY_NS = 8, 5_000_000_000


def standby_host(source: DeciderSource, lanes: int = 1, gpus: float | None = None) -> StandbyHost:
    """A run's host: the one session of a pool of its own, with two decoders."""
    return StandbyHost(StandbyPool(1, gpus, lanes, preload=False), source, "the run", own=True)


def two_hosts(first: DeciderSource, second: DeciderSource, lanes: int = 1) -> tuple[RayHost, RayHost]:
    """Two deciders, each in a process of its own, of one Ray. The first one, which takes a GPU where there is one, is
    closed last: the pool is its own."""
    pool = StandbyPool(1, None, lanes, preload=False)
    pool.spare = SparePool(pool, 1, 0, lanes, preload=False)
    return RayHost(pool, first, "the run", own=True), RayHost(pool.spare, second, "the run's backup")


@dataclass(frozen=True)
class GentleSource:
    """Builds behind the decisions of the other decoder, where there are not enough processors for both."""

    source: DeciderSource

    def build(self) -> Decider:
        yield_processor()
        return self.source.build()


class StandbyPool(RayPool):
    """A `RayPool` that keeps a second one, its `spare`, in the Ray that it started."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.spare = SparePool(self, *arguments, **options)

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        info = super().start(stopped)
        if info and not stopped():
            self.spare.start(stopped)
        return info

    def open(self, session: str, source: DeciderSource) -> StandbyHost:  # type: ignore[override]
        host = StandbyHost(self, source, session)
        host.start()
        return host

    def alive(self) -> bool:
        return super().alive() or self.spare.alive()

    def close(self) -> None:
        self.spare.close()
        super().close()

    @property
    def ray(self) -> RaySession:
        """The Ray that is there now."""
        return self._ray

    @property
    def up(self) -> bool:
        """Whether its own decoder is, in a Ray that has not died."""
        return self._answer is not None and JoinedRay(self).died() is None

    def _end_ray(self) -> None:
        # It must not be shut down under a thread that uses it.
        self.spare.leave_ray()
        super()._end_ray()


class SparePool(RayPool):
    """The pool of a further decoder. It lives in another's Ray: where that dies it waits until it is back."""

    def __init__(self, first: StandbyPool, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._first = first
        self._refused = ""  # why it was not started again
        self._ray = JoinedRay(first)  # type: ignore[assignment]

    def leave_ray(self) -> None:
        """Return when no thread of this pool uses Ray; none begins to, until the first decoder is up again."""
        with self._changed:
            self._answer = None
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._busy == 0, READY_MS / 1e3)

    def _until_back(self) -> dict[str, Any] | None:
        with self._using_ray():
            try:
                return super()._until_back() if self._first.up else None
            except DecoderUnavailable:
                return None  # as where Ray was lost: it is tried again once the first decoder is up

    def _ray_again(self) -> dict[str, Any] | None:
        while not self._first.up:
            if self._first.gave_up is not None:
                raise DecoderUnavailable(self._first.gave_up, "Start again.")
            if self._closed.wait(POLL_S):
                return None
        import ray

        wait_s = POLL_S
        try:
            with self._using_ray(), contextlib.suppress(Stopped, DecoderUnavailable):
                with contextlib.suppress(Exception):
                    ray.kill(self.actor)  # Ray would start it again beside its successor
                return self._start(lambda: self._closed.is_set() or not self._first.up)
        except UserError as error:  # no GPU is free, say, and one may be later: the other decoder decides meanwhile
            (log.debug if str(error) == self._refused else log.warning)("the further decoder waits: %s", error)
            self._refused, wait_s = str(error), AGAIN_S
        self._closed.wait(wait_s)
        return None


class JoinedRay:
    """What a pool needs of the Ray that another one started."""

    def __init__(self, first: StandbyPool) -> None:
        self._first = first

    def start(self, stopped: Callable[[], bool]) -> None:
        """It is there."""

    def end(self) -> None:
        """It is the other one's."""

    @property
    def folder(self) -> str:
        return self._first.ray.folder

    @property
    def files(self) -> list[int]:
        return self._first.ray.files

    def died(self) -> str | None:
        try:
            return self._first.ray.died()
        except (KeyError, RuntimeError):  # it is just being shut down
            return "raylet"


class StandbyHost:
    """One session's part of a `StandbyPool`: a host in each of the two processes. Where the one that decides is lost,
    the other is asked from the next request on; it stays with that one, and the lost one comes back as the standby."""

    name = "ray"

    def __init__(self, pool: StandbyPool, source: DeciderSource, session: str, own: bool = False) -> None:
        self.incarnation = 0
        self.events: list[HostEvent] = []
        self.gave_up: str | None = None
        self._pool, self._own = pool, own
        gentle = GentleSource(source)
        self._active, self._standby = RayHost(pool, gentle, session), RayHost(pool.spare, gentle, session)
        # Whoever wakes the loop need not know which of them it waits for.
        self._standby.woken = self._active.woken
        self._seen = 0  # the active one's incarnation
        self._lost_ns: int | None = None
        self._mirrored = self._mirrored_ns = 0
        # Ticks that the standby has to answer for nothing; and those that it still had to when it took over.
        self._owed: set[int] = set()
        self._stale: set[int] = set()

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        if self._own and not self.info:
            self._pool.start(stopped)
        for host in (self._active, self._standby):
            if not stopped():
                host.start(stopped)
        return self.info

    @property
    def info(self) -> dict[str, Any]:
        """What the one that decides says of itself, and the standby's process."""
        info = self._active.info
        return info and {**info, "standby": self._standby.info.get("pid")}

    @property
    def shares(self) -> deque[float]:
        """Of the one that decides."""
        return self._active.shares

    @property
    def threads(self) -> Sequence[tuple[int, int]]:
        """Those that decide."""
        return self._active.threads  # type: ignore[no-any-return, attr-defined, unused-ignore]

    def submit(self, request: DecisionRequest) -> None:
        self._look()
        active, standby = self._active, self._standby
        active.submit(request)
        standby.last = request  # a restarted one warms up with it
        while self._owed and (reply := standby.wait(0)) is not None:
            self._owed.discard(reply.tick)
        if standby.up and self._is_due():
            standby.submit(request)
            self._owed.add(request.tick)

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        reply = self._active.wait(timeout_ns)
        if reply is not None and reply.tick in self._stale:
            self._stale.discard(reply.tick)
            return None
        return reply

    def wake(self) -> None:
        self._active.wake()

    def alive(self) -> bool:
        self._look()
        return self._active.up

    def cancel(self, tick: int) -> None:
        self._active.cancel(tick)

    def close(self) -> None:
        for host in (self._standby, self._active):
            host.close()
        if self._own:
            self._pool.close()

    def _is_due(self) -> bool:
        """Whether the standby is to decide this request, too."""
        now_ns = time.monotonic_ns()
        if self._mirrored >= WARM_REQUESTS and now_ns - self._mirrored_ns < WARM_EVERY_NS:
            return False
        self._mirrored, self._mirrored_ns = self._mirrored + 1, now_ns
        return True

    def _look(self) -> None:
        """Ask the one that is up, and say what was lost and when it was back; on the loop's thread."""
        active, standby = self._active, self._standby
        if active.up and active.incarnation == self._seen and self._lost_ns is None:
            return
        now_ns = time.monotonic_ns()
        if self._lost_ns is None:
            self._lost_ns = active.lost_ns or (active.events[-1].t_ns if active.events else now_ns)
            self.events.append(HostEvent(self._lost_ns, "lost", 0.0))
        if not active.up and standby.up:
            self._active, self._standby = standby, active
            self._stale, self._owed = self._owed, set()
            log.warning("the standby decides")
        if self._active.up:
            self._seen = self._active.incarnation
            self.incarnation += 1
            self.events.append(HostEvent(now_ns, "restarted", (now_ns - self._lost_ns) / 1e9))
            self._lost_ns = None
        else:
            self.gave_up = self._standby.gave_up and self._active.gave_up
