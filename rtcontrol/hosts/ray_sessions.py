"""The sessions of a decoder's process: each is admitted, built, given its link and released, on its own thread."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from rtcontrol.hosts.decoder_link import DecoderLink
from rtcontrol.hosts.inprocess import Places
from rtcontrol.hosts.pool_core import ATTEMPTS, PoolCore, Session
from rtcontrol.hosts.protocol import LIMIT, DecoderUnavailable
from rtcontrol.hosts.ray_host import RayHost
from rtcontrol.hosts.ray_process import DecoderProcess
from rtcontrol.hosts.ray_start import POLL_S, REMEDY, START_TIMEOUT_S, Stopped

log = logging.getLogger("rtcontrol.host")

READY_MS = 10_000
NOTICE_S = 2.0  # within which the watcher has noticed a lost process


class RaySessions:
    """At most `limit` sessions of one process. `core` says which of them have a decider there."""

    def __init__(self, process: DecoderProcess, limit: int) -> None:
        self.process = process
        self.closed = threading.Event()
        self._places = Places(limit)
        # Guards all below, and tells of its changes.
        self.changed = threading.Condition()
        self.core = PoolCore(max(limit, LIMIT))
        self.hosts: dict[Session, RayHost] = {}
        self._busy = 0  # threads that use Ray

    def admit(self, host: RayHost, stopped: Callable[[], bool]) -> None:
        """Build the host's decider, and give it its link; neither where `stopped` says so before."""
        import ray

        self._places.take()
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
            if host.session not in self.hosts:
                with self.changed:  # it may be there, or still be built
                    self.process.free(self.core.freed(host.session.key))
                host.renew()
                self._places.free()

    def release(self, host: RayHost) -> None:
        """Free the decider of a host that is being closed, on that host's thread."""
        with self.changed:
            host.session.up = False
            if self.hosts.pop(host.session, None) is None:
                return
            self.process.free(self.core.released(host.session))
        self._places.free()

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

    def wait_unused(self) -> None:
        """Wait until no thread uses Ray."""
        with self.changed:
            self.changed.wait_for(lambda: self._busy == 0, POLL_S + READY_MS / 1e3)
