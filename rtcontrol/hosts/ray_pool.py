"""A decoder pool in one Ray actor: who has a decider there, and how all come back when its process is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rtcontrol.hosts.protocol import LIMIT, DeciderSource
from rtcontrol.hosts.ray_host import RayHost
from rtcontrol.hosts.ray_process import DecoderProcess
from rtcontrol.hosts.ray_sessions import RaySessions
from rtcontrol.hosts.ray_start import RaySession, Stopped
from rtcontrol.hosts.ray_watch import watch


def single_host(source: DeciderSource, lanes: int = 1, gpus: float | None = None) -> RayHost:
    """Return a run's host: the one session of a pool of its own."""
    return RayHost(RayPool(1, gpus, lanes, preload=False), source, "the run", own=True)


class RayPool(RaySessions):
    """The client of one `DecoderActor`: starts it, watches it, ends it and all that was started for it.

    When its process is lost (its socket closes within a millisecond; one that was stopped or hangs answers no more),
    all sessions' hosts say so; Ray starts it again, and every session's decider is built there again from its source,
    one after the other: each host says when its own is back. `gave_up` says why there will be no more decisions: a Ray
    that was started here lost its raylet or its GCS, say, which is noticed as soon.
    """

    name = "ray"

    def __init__(
        self,
        limit: int = LIMIT,
        gpus: float | None = None,
        lanes: int = 1,
        preload: bool = True,
        joined: RaySession | None = None,
    ) -> None:
        """`gpus` None: one if Ray has any. `joined`: the Ray of another pool, which ends it."""
        super().__init__(DecoderProcess(gpus, (lanes, preload), joined), limit)
        self._watcher: threading.Thread | None = None

    @property
    def gave_up(self) -> str | None:
        return self.core.gave_up

    @property
    def ray(self) -> RaySession:
        return self.process.ray

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        try:
            answer = self.process.start(stopped)
        except Stopped:
            return {}
        self.core.restored(answer)
        self._watcher = threading.Thread(target=watch, args=(self, answer), name="ray-watcher", daemon=True)
        self._watcher.start()
        return {"pid": answer["pid"], "endpoint": answer["lanes"][0]}

    def open(self, session: str, source: DeciderSource) -> RayHost:
        host = RayHost(self, source, session)
        host.start()
        return host

    def alive(self) -> bool:
        return self.core.life is not None

    def close(self) -> None:
        with self.changed:
            self.closed.set()
            self.core.end()
            self.changed.notify_all()
        if self._watcher is not None:
            self._watcher.join()
        self.wait_unused()
        self.process.end()
