"""A decoder pool in a Ray actor: who has a decider there, and how all come back when its process is lost."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from rtcontrol.hosts.decoder_link import DecoderLink, RayHost, WakeFile
from rtcontrol.hosts.pool import Pool
from rtcontrol.hosts.pool_core import Session
from rtcontrol.hosts.protocol import LIMIT, DeciderSource, DecoderUnavailable, Host
from rtcontrol.hosts.ray_process import PING_EVERY_S, START_TIMEOUT_S, DecoderProcess, Heart
from rtcontrol.hosts.ray_start import POLL_S, REMEDY, RaySession, Stopped
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.host")

READY_MS = 2_000
BUILT_EVERY_S = 0.02  # so often a build under way is looked at
MEMORY = "It may need more memory than there is (see `rtcontrol doctor`); choose a smaller model."


class RayPool(Pool):
    """The client of one `DecoderActor`: starts it, watches it, ends it and all that was started for it.

    A thread watches the process, and has the deciders built of all sessions that have none. When the process is lost
    (its socket closes within a millisecond; one that was stopped or hangs answers no more), all sessions' hosts say
    so, and another process takes its place: each host says when its own decider is back. `gave_up` says why there will
    be no more decisions: a Ray that was started here lost its raylet or its GCS, say, which is noticed as soon.
    """

    name = "ray"

    def __init__(
        self,
        limit: int = LIMIT,
        gpus: float | None = None,
        lanes: int = 1,
        ray: RaySession | None = None,
        gentle: bool = False,
    ) -> None:
        """`gpus` None: one if Ray has any; 0: no model is to be loaded. `ray` may be shared with other pools: the
        builds of a `gentle` one yield the processor to them."""
        super().__init__(limit)
        self.process = DecoderProcess(ray or RaySession(), gpus, (lanes, gpus != 0, gentle))
        self.hosts: dict[Session, RayHost] = {}
        self._pending: dict[Session, Any] = {}  # builds under way
        self._unneeded: list[bytes] = []  # deciders of sessions that ended
        self._woken = WakeFile()
        self._watcher: threading.Thread | None = None

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        try:
            life = self.process.start(stopped)
        except Stopped:
            return {}
        self.core.restored(life)
        self._watcher = threading.Thread(target=self._watch, args=(life,), name="ray-watcher", daemon=True)
        self._watcher.start()
        return {"pid": life["pid"], "endpoint": life["endpoint"]}

    def host(self, session: str, source: DeciderSource) -> Host:
        return RayHost(self, source, session)

    def admit(self, host: RayHost, stopped: Callable[[], bool]) -> None:
        """Wait until the host's decider is built; return early where `stopped` says so."""
        session, give_up = host.session, time.monotonic() + START_TIMEOUT_S
        with self.changed:
            self.core.open(session)
            self.hosts[session] = host
            self._woken.set()
            while not (session.up or session.error or stopped()):
                if self.core.closed or self.gave_up is not None or time.monotonic() > give_up:
                    why = self.gave_up or f"The decider was not built within {START_TIMEOUT_S:g} s."
                    raise DecoderUnavailable("The decoder is closed." if self.core.closed else why, REMEDY)
                self.changed.wait(POLL_S)
        if session.error is not None:
            raise session.error

    def release(self, host: RayHost) -> None:
        """Have the decider freed of a host that is being closed."""
        with self.changed:
            self.hosts.pop(host.session, None)
            if self.core.released(host.session):
                self._unneeded.append(host.session.key)
        self._woken.set()

    def close(self) -> None:
        with self.changed:
            self.core.end()
            self.changed.notify_all()
        self._woken.set()
        if self._watcher is not None:
            self._watcher.join()
        self.process.end()

    # -- on the watcher's thread ---------------------------------------------------------------------------------------

    def _watch(self, life: dict[str, Any] | None) -> None:
        try:
            while life is not None and not self._over(life):
                life = self._replaced(time.monotonic_ns(), life["pid"])
        except DecoderUnavailable as error:
            self._give_up(error.what)
        except Exception as error:
            log.exception("the decoder is not watched any more")
            self._give_up(f"The decoder is not watched any more ({type(error).__name__}: {error}).")

    def _over(self, life: dict[str, Any]) -> bool:
        """Watch and use this life of the process until the pool is closed (True), or it is lost (False)."""
        import ray

        with closing(Heart(life, self.process.ray.vital, self._woken)) as heart:
            while not self.core.closed:
                if heart.lost(BUILT_EVERY_S if self._pending else PING_EVERY_S):
                    return False
                try:
                    self._serve(life)
                except ray.exceptions.RayError:
                    return False
        return True

    def _serve(self, life: dict[str, Any]) -> None:
        """Begin to build what is missing, take what was built, and have freed what no session needs."""
        with self.changed:
            missing = [self.hosts[s] for s in self.core.missing(time.monotonic_ns()) if s not in self._pending]
            unneeded, self._unneeded = self._unneeded, []
        for host in missing:
            try:
                self._pending[host.session] = self.process.build(host.session.key, host.source, host.last)
            except UserError as error:
                self._failed(host.session, error)
        for key in unneeded:
            self.process.free(key)
        for session, pending in list(self._pending.items()):
            try:
                info = self.process.result(pending)
                if info is not None:
                    del self._pending[session]
                    self._link(session, life, info)
            except UserError as error:
                self._pending.pop(session, None)
                self._failed(session, error)

    def _link(self, session: Session, life: dict[str, Any], info: dict[str, Any]) -> None:
        """Give a session's host its link to the process that has its decider. Raises DecoderUnavailable."""
        host = self.hosts.get(session)
        if host is None:
            return
        link = DecoderLink(life, session.key, host.woken)
        if not link.ready(READY_MS):
            link.close()
            raise DecoderUnavailable("The decoder's socket does not answer.", REMEDY)
        with self.changed:
            host.info = {**info, "pid": life["pid"], "endpoint": life["endpoint"]}
            host.offer(link)
            self.core.built(session, life, time.monotonic_ns())
            self.changed.notify_all()

    def _failed(self, session: Session, error: UserError) -> None:
        log.debug("the decider of %s cannot be made: %s", session.name, error)
        with self.changed:
            self.core.failed(session, error, time.monotonic_ns())
            self._tell_all()

    def _replaced(self, lost_ns: int, pid: int) -> dict[str, Any] | None:
        """Return the life of the process that takes the place of a lost one; None when the pool is closed."""
        log.warning("decoder lost (pid %d); another is started", pid)
        with self.changed:
            self.core.lost(lost_ns)
            self._unneeded.clear()
        for session in self._pending:
            self._failed(session, DecoderUnavailable(f"The decoder was lost while it made {session.name}.", MEMORY))
        self._pending.clear()
        life = self.process.replace(lambda: self.core.closed)
        if life is not None:
            log.warning("decoder's process is back after %.2f s", (time.monotonic_ns() - lost_ns) / 1e9)
            with self.changed:
                self.core.restored(life)
        return life

    def _give_up(self, why: str) -> None:
        with self.changed:
            if not self.hosts:  # whose loops would report it
                log.error("no more decisions: %s", why)
            self.core.end(why)
            self._tell_all()

    def _tell_all(self) -> None:
        """Wake who waits for a decider, or for a decision that will never come."""
        self.changed.notify_all()
        for session, host in self.hosts.items():
            if session.gave_up is not None:
                host.woken.set()
