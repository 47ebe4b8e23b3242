"""A decoder pool in a Ray actor. If the actor's process is lost, the pool restarts it and rebuilds all deciders."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

from rtcontrol.hosts.decoder_link import RayHost
from rtcontrol.hosts.pool import Pool, start_host
from rtcontrol.hosts.protocol import MAX_SESSIONS, DeciderSource, DecoderUnavailable, Host
from rtcontrol.hosts.ray_process import DecoderProcess
from rtcontrol.hosts.ray_start import HINT, POLL_S, RaySession, StartCancelled
from rtcontrol.hosts.sockets import PING_EVERY_S, ProcessWatch, WakeFile
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.host")

MEMORY = "The model may need more memory than is available (see `rtcontrol doctor`). Choose a smaller model."


class RayPool(Pool):
    """A pool in a `DecoderActor`. The pool starts and ends the actor's process; a background thread watches it.

    The background thread also builds the deciders of all sessions. If the process ends or does not answer pings, or if
    a part of Ray ends, all hosts report the loss, and the thread starts a new process (`gave_up`: why it cannot)."""

    def __init__(
        self, limit: int = MAX_SESSIONS, gpus: float | None = None, workers: int = 1, shared: RaySession | None = None
    ) -> None:
        """Create a pool without starting it. `gpus`: the number of GPUs (None: one GPU if Ray has any; 0: for deciders
        without a model). `shared`: a Ray that several pools use."""
        super().__init__("ray", limit)
        self.changed = threading.Condition()  # guards the sessions
        self.process = DecoderProcess(shared or RaySession(), gpus, (workers, gpus != 0))
        self._wake_file = WakeFile()
        self._watcher: threading.Thread | None = None

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        with suppress(StartCancelled):
            process_info = self.process.start(stopped)
            self.mark_running(process_info)
            self._watcher = threading.Thread(
                target=self._watch_process, args=(process_info,), name="ray-watcher", daemon=True
            )
            self._watcher.start()
        return {}

    def open(self, session: str, source: DeciderSource) -> Host:
        return start_host(RayHost(self, source, session))

    def admit(self, host: RayHost, stopped: Callable[[], bool]) -> None:
        """Add a session, and wait until its decider is built. Return early if `stopped()` is true."""
        with self.changed:
            self.add(host)
            self._wake_file.set()
            while not (host.up or host.error or stopped()):
                if self.closed or self.gave_up is not None:
                    raise DecoderUnavailable(self.gave_up or "The decoder is closed.", HINT)
                self.changed.wait(POLL_S)
        if host.error is not None:
            raise host.error

    def release(self, host: RayHost) -> None:
        """Free the decider of a host that is being closed."""
        with self.changed:
            if self.remove(host):
                self.process.free(host.key)

    def close(self) -> None:
        with self.changed:
            self.end()
            self.changed.notify_all()
        self._wake_file.set()
        if self._watcher is not None:
            self._watcher.join()
        self.process.end()

    def _notify_waiters(self) -> None:
        """Wake all threads that wait for a decider, or for a reply of a host that gave up."""
        self.changed.notify_all()
        for host in self.sessions:
            if host.gave_up is not None:
                host.wake()

    # -- on the background thread --------------------------------------------------------------------------------------

    def _watch_process(self, process_info: dict[str, Any] | None) -> None:
        try:
            while process_info is not None:
                loss = self._serve_sessions(process_info)
                process_info = None if self.closed else self._replace_process(process_info["pid"], loss)
        except Exception as error:
            why = error.what if isinstance(error, DecoderUnavailable) else f"{type(error).__name__}: {error}"
            log.error("the decoder cannot be restarted: %s", why)
            with self.changed:
                self.end(why)
                self._notify_waiters()

    def _serve_sessions(self, process_info: dict[str, Any]) -> str:
        """Build the deciders of sessions in the process, until the process is lost or the pool is closed. Return how
        the process was lost."""
        import ray

        lost = ray.exceptions.RayError, ProcessLookupError
        with suppress(*lost), closing(ProcessWatch(self.process, process_info["pid"], self._wake_file)) as watch:
            while not self.closed and self.process_info is process_info:
                with self.changed:
                    missing = self.hosts_to_build(time.monotonic_ns())
                if loss := watch.loss(0 if missing else PING_EVERY_S):
                    return loss
                for host in missing[:1]:
                    self._build_decider(host, process_info, watch)
        return "has ended"

    def _build_decider(self, host: RayHost, process_info: dict[str, Any], watch: ProcessWatch) -> None:
        """Build a host's decider in the process, and connect the host to the process."""
        import ray

        failure: UserError | None = None
        try:
            call = self.process.build(host.key, host.source, host.last_request)
            while (info := self.process.result(call)) is None:
                if self.closed or host not in self.sessions:
                    return
                if watch.loss(0.01):
                    raise ray.exceptions.RayActorError
            host.connect(process_info)
            host.info = {**info, "pid": process_info["pid"], "endpoint": process_info["endpoint"]}
        except UserError as error:
            failure = error
        except ray.exceptions.RayError:
            failure = DecoderUnavailable(f"The decoder was lost while loading the model for {host.session}.", MEMORY)
            with self.changed:
                self.mark_lost(time.monotonic_ns())  # mark the loss before the waiting caller gets the error
        with self.changed:
            if failure is None:
                self.mark_built(host, process_info, time.monotonic_ns())
            else:
                self.mark_failed(host, failure, time.monotonic_ns())
            self._notify_waiters()

    def _replace_process(self, pid: int, loss: str) -> dict[str, Any] | None:
        """Start a new process after a loss. Return its `process_info`, or None if the pool is closed."""
        log.warning("the decoder's process (pid %d) %s; a new one is being started", pid, loss)
        with self.changed:
            self.mark_lost(time.monotonic_ns())
        process_info = self.process.replace(lambda: self.closed)
        with self.changed:
            self.mark_running(process_info)
        return process_info
