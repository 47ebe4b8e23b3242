"""A decoder pool in one Ray actor: who has a decider there, and how all come back when its process is lost."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from rtcontrol.hosts.decoder_link import DecoderLink
from rtcontrol.hosts.pool import Pool
from rtcontrol.hosts.pool_core import ATTEMPTS, Session
from rtcontrol.hosts.protocol import LIMIT, DeciderSource, DecoderUnavailable, Host
from rtcontrol.hosts.ray_host import RayHost
from rtcontrol.hosts.ray_process import DecoderProcess
from rtcontrol.hosts.ray_start import POLL_S, REMEDY, START_TIMEOUT_S, RaySession, Stopped
from rtcontrol.hosts.ray_watch import RayWatch

log = logging.getLogger("rtcontrol.host")

READY_MS = 10_000
NOTICE_S = 2.0  # within which the watcher has noticed a lost process


def single_host(source: DeciderSource, lanes: int = 1, gpus: float | None = None) -> RayHost:
    """Return a run's host: the one session of a pool of its own."""
    return RayHost(RayPool(1, gpus, lanes, preload=False), source, "the run", own=True)


class RayPool(Pool):
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
        super().__init__(limit)
        self.process = DecoderProcess(gpus, (lanes, preload), joined)
        self.closed = threading.Event()
        self.hosts: dict[Session, RayHost] = {}
        self._busy = 0  # threads that use Ray
        self._watcher: threading.Thread | None = None

    @property
    def ray(self) -> RaySession:
        return self.process.ray

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        try:
            answer = self.process.start(stopped)
        except Stopped:
            return {}
        self.core.restored(answer)
        watch = RayWatch(self, self.process, self.closed, self.hosts, self.bring)
        self._watcher = threading.Thread(target=watch.run, args=(answer,), name="ray-watcher", daemon=True)
        self._watcher.start()
        return {"pid": answer["pid"], "endpoint": answer["lanes"][0]}

    def host(self, session: str, source: DeciderSource) -> Host:
        return RayHost(self, source, session)

    def close(self) -> None:
        with self.changed:
            self.closed.set()
            self.core.end()
            self.changed.notify_all()
        if self._watcher is not None:
            self._watcher.join()
        with self.changed:  # Ray is not shut down while a thread uses it
            self.changed.wait_for(lambda: self._busy == 0, POLL_S + READY_MS / 1e3)
        self.process.end()

    def admit(self, host: RayHost, stopped: Callable[[], bool]) -> None:
        """Build the host's decider, and give it its link; neither where `stopped` says so before."""
        import ray

        with self.changed:
            self.core.open()
        try:
            for _ in range(ATTEMPTS):
                answer = self._until_up()
                with contextlib.suppress(ray.exceptions.RayError, Stopped):
                    if self.bring(host, answer, stopped):
                        return
                if stopped():
                    break
                log.warning("the decoder was lost while it made the decider of %s", host.session.name)
                with self.changed:
                    self.changed.wait_for(partial(self._gone, answer), NOTICE_S)
            else:
                raise DecoderUnavailable(
                    f"The decoder's process was lost {ATTEMPTS} times while it made the decider of "
                    f"{host.session.name}.",
                    "It may need more memory than there is (see `rtcontrol doctor`); choose a smaller model.",
                )
        finally:
            with self.changed:
                self.process.free(self.core.opened(host.session))
            if host.session not in self.hosts:
                host.renew()

    def release(self, host: RayHost) -> None:
        """Free the decider of a host that is being closed, on that host's thread."""
        with self.changed:
            self.hosts.pop(host.session, None)
            self.process.free(self.core.released(host.session))

    def bring(self, host: RayHost, answer: dict[str, Any], stopped: Callable[[], bool] = lambda: False) -> bool:
        """Build the host's decider in the process that gave `answer`, and give the host its link to it; False when that
        process is not up any more. Raises UserError from the build, RayError and Stopped."""
        session = host.session
        with self._using_ray(answer):
            gone = partial(self._gone, answer)
            built = self.process.build(session.key, host.source, host.last, lambda: stopped() or gone())
        if built["pid"] != answer["pid"]:
            return False
        link = DecoderLink(answer, session.key, host.woken)
        ready = link.ready(READY_MS)
        with self.changed:
            if ready and self.core.built(session, answer, time.monotonic_ns()):
                host.info = {**built["info"], "pid": built["pid"], "endpoint": answer["lanes"][0]}
                host.offer(link)
                self.hosts[session] = host
                return True
        link.close()
        return False

    def _until_up(self) -> dict[str, Any]:
        core = self.core
        with self.changed:
            self.changed.wait_for(lambda: core.life or core.closed or core.gave_up, START_TIMEOUT_S)
            if core.closed:
                raise DecoderUnavailable("The decoder is closed.", "Start it again.")
            if core.life is None:
                why = core.gave_up or f"The decoder's process did not come back within {START_TIMEOUT_S:g} s."
                raise DecoderUnavailable(why, REMEDY)
            answer: dict[str, Any] = core.life
            return answer

    @contextlib.contextmanager
    def _using_ray(self, answer: dict[str, Any]) -> Iterator[None]:
        """Ray is not shut down meanwhile. Raises Stopped where the process that gave the answer is gone: a call to Ray
        after it was shut down would start it again."""
        with self.changed:
            if self._gone(answer):
                raise Stopped
            self._busy += 1
        try:
            yield
        finally:
            with self.changed:
                self._busy -= 1
                self.changed.notify_all()

    def _gone(self, answer: dict[str, Any]) -> bool:
        return self.core.life is not answer
