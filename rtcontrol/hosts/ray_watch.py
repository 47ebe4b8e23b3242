"""The watch over a pool's process: it notices a loss, and brings all sessions back."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from rtcontrol.hosts.pool import Pool
from rtcontrol.hosts.pool_core import Rebuild, Session
from rtcontrol.hosts.protocol import DecoderUnavailable
from rtcontrol.hosts.ray_host import RayHost
from rtcontrol.hosts.ray_process import DecoderProcess
from rtcontrol.hosts.ray_start import Stopped
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.host")

AGAIN_S = 1.0  # from one round of builds to the next


class RayWatch:
    """Watches the `process` of a pool on a thread. `bring` builds a host's decider in this life of the process, False
    where that is over."""

    def __init__(
        self,
        pool: Pool,
        process: DecoderProcess,
        closed: threading.Event,
        hosts: Mapping[Session, RayHost],
        bring: Callable[[RayHost, dict[str, Any]], bool],
    ) -> None:
        self._core, self._changed = pool.core, pool.changed
        self._process, self._closed = process, closed
        self._hosts, self._bring = hosts, bring

    def run(self, answer: dict[str, Any]) -> None:
        """Watch the process, which gave this answer, until the pool is closed or gives up."""
        try:
            while (lost_ns := self._process.until_lost(answer, self._closed)) is not None:
                with self._changed:
                    self._core.lost(lost_ns)
                    self._changed.notify_all()
                log.warning("decoder lost (pid %d); waiting for Ray to restart it", answer["pid"])
                found = self._process.until_back(self._closed)
                if found is None:
                    return
                answer = found
                seconds = (time.monotonic_ns() - lost_ns) / 1e9
                log.warning("decoder's process is back after %.2f s (pid %d)", seconds, answer["pid"])
                self._restore(answer)
        except DecoderUnavailable as error:
            self._give_up(error.what)
        except Exception as error:
            log.exception("the decoder is not watched any more")
            self._give_up(f"The decoder is not watched any more ({type(error).__name__}: {error}).")

    def _restore(self, answer: dict[str, Any]) -> None:
        with self._changed:
            self._process.free(self._core.restored(answer))
            self._changed.notify_all()
            rebuild = Rebuild(self._core)
        threading.Thread(target=self._reopen, args=(rebuild,), name="pool-reopen", daemon=True).start()

    def _reopen(self, rebuild: Rebuild) -> None:
        """Build the deciders of all sessions in the restarted process; the watch continues meanwhile."""
        import ray

        with contextlib.suppress(Stopped, ray.exceptions.RayError):
            while not rebuild.over:
                failed, why = [], None
                for session in rebuild.waiting:
                    host = self._hosts.get(session)
                    try:
                        if host is None or not self._bring(host, rebuild.life):
                            failed.append(session)
                    except UserError as error:
                        log.error("a session's decider cannot be made again: %s", error)
                        why = str(error)
                        failed.append(session)
                with self._changed:
                    self._changed.wait_for(lambda: self._core.life is not rebuild.life, AGAIN_S if failed else 0)
                    self._process.free(rebuild.round(failed, why))
                    self._wake_lost()

    def _give_up(self, why: str) -> None:
        with self._changed:
            if not self._hosts:  # whose loops would report it
                log.error("no more decisions: %s", why)
            self._core.end(why)
            self._wake_lost()
            self._changed.notify_all()

    def _wake_lost(self) -> None:
        for session, host in self._hosts.items():
            if session.gave_up is not None:
                host.woken.set()
