"""A decoder's process: an actor that Ray places and restarts, watched by its heartbeat."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq

from rtcontrol.hosts.base import PlaceTrouble
from rtcontrol.hosts.progress import GONE, STOPPED, WAITING, Progress
from rtcontrol.hosts.ray_actor import PING
from rtcontrol.hosts.ray_link import dealer
from rtcontrol.hosts.ray_start import POLL_S, REMEDY, RaySession, Stopped, source_root
from rtcontrol.hosts.reaper import Reaper, descendants
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.host")

PING_EVERY_S = 0.1
# Silence alone proves little: on a starved machine a live process answers late. So long it may be silent before the
# kernel's word counts that it has got nowhere for `STILL_S`; and so long whatever the kernel says (or cannot say: of
# another machine).
DOUBT_AFTER_S, STILL_S, DEAD_AFTER_S = 2.0, 1.0, 10.0
START_TIMEOUT_S = 300.0


class RayProcess:
    """Starts one actor, watches it from a thread of its own, ends it and all that was started for it.

    The watcher notices a lost process (its socket closes within a millisecond; one that was stopped or hangs answers no
    more, see `DOUBT_AFTER_S`) and calls `lost(t_ns)`; then it asks Ray until the actor's `start` answers, and calls
    `back(answer, lost_ns)`, which says whether the process can be used (else it is asked again).
    """

    def __init__(
        self, lost: Callable[[int], None], back: Callable[[dict[str, Any], int], bool], context: zmq.Context[Any]
    ) -> None:
        self.context = context
        self._directory: str | None = None  # of the sockets; made by `start`, since not every server starts its pool
        self.actor: Any = None
        self._lost, self._back = lost, back
        self._session = RaySession()
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None
        self._reaper: Reaper | None = None

    def start(
        self,
        kind: type,
        *args: Any,
        gpus: float | None = None,
        stopped: Callable[[], bool] = lambda: False,
        **options: Any,
    ) -> dict[str, Any]:
        """Make the actor `kind(*args, directory, host name)`; gives what its `start` answers.

        `gpus` None: one if Ray has any. Raises UserError, and Stopped when `stopped` says so before it runs.
        """
        if self._directory is None:
            self._directory = tempfile.mkdtemp(prefix="rtcontrol-")
        before = set(descendants(os.getpid()))
        self._session.start(stopped)
        import ray

        options |= {"max_restarts": -1, **_share(gpus)}
        if root := source_root():
            path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
            options["runtime_env"] = {"env_vars": {"PYTHONPATH": path}}
        try:
            self.actor = ray.remote(**options)(kind).remote(*args, self._directory, socket.gethostname())
            answer = self.ask(self.actor.start.remote(), stopped)
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[0].rstrip(".")
            raise PlaceTrouble(f"Ray cannot run the decoder's process: {reason}.", REMEDY) from error
        if self._session.ours:
            self._reaper = Reaper([p for p in descendants(os.getpid()) if p not in before], self._directory)
        return answer

    def ask(self, asked: Any, stopped: Callable[[], bool]) -> dict[str, Any]:
        """The answer to a call of the actor. Raises UserError for what went wrong in the call, RayError for what went
        wrong with the actor, Stopped when `stopped` says so."""
        import ray

        # In short waits: a long one would not be left when the run is stopped.
        give_up = time.monotonic() + START_TIMEOUT_S
        while not ray.wait([asked], timeout=POLL_S)[0]:
            if stopped():
                raise Stopped
            if time.monotonic() > give_up:
                raise PlaceTrouble(f"The decider was not built within {START_TIMEOUT_S:g} s.", REMEDY)
        try:
            answer: dict[str, Any] = ray.get(asked)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, UserError):
                raise cause from None
            raise UserError(f"The decider cannot be built: {cause!r}.", "Run with --debug.") from error
        return answer

    def watch(self, answer: dict[str, Any]) -> None:
        """Begin to watch the process that gave this answer."""
        self._watcher = threading.Thread(target=self._watch, args=(answer,), name="ray-watcher", daemon=True)
        self._watcher.start()

    def unwatch(self) -> None:
        """From here on neither `lost` nor `back` is called."""
        self._stop.set()
        if self._watcher is not None:
            self._watcher.join(timeout=5.0)

    def end(self) -> None:
        """Ends the actor, and Ray if it was started here; nothing is left behind but the caller's context."""
        with contextlib.suppress(ImportError):
            import ray

            if self.actor is not None and ray.is_initialized():
                with contextlib.suppress(ray.exceptions.RayError):
                    ray.kill(self.actor)
            self.actor = None
            self._session.end()
        if self._reaper is not None:
            self._reaper.dismiss()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    # -- the watcher's thread -----------------------------------------------------------------------------------------

    def _watch(self, answer: dict[str, Any]) -> None:
        while not self._stop.is_set():
            lost_ns = self._until_lost(answer)
            if lost_ns is None:
                return
            self._lost(lost_ns)
            log.warning("decoder lost (pid %d); waiting for Ray to restart it", answer["pid"])
            back = self._until_back(lost_ns)
            if back is None:
                return
            answer = back
            seconds = (time.monotonic_ns() - lost_ns) / 1e9
            log.warning("decoder is back after %.2f s (pid %d)", seconds, answer["pid"])

    def _until_lost(self, answer: dict[str, Any]) -> int | None:
        """When the process was lost; None when it is not to be watched any more."""
        heart = dealer(self.context, answer["heartbeat"], answer["key"])
        monitor = heart.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        poller = zmq.Poller()
        poller.register(heart, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        # On the same machine, as its socket tells.
        progress = Progress(answer["pid"]) if answer["heartbeat"].startswith("ipc://") else None
        # In rounds, which this thread itself saw: while it is not run, nobody is silent.
        silent = still = 0
        try:
            while not self._stop.is_set():
                with contextlib.suppress(zmq.Again):
                    heart.send(PING, zmq.NOBLOCK)
                until = time.monotonic() + PING_EVERY_S
                silent += 1
                while (left := until - time.monotonic()) > 0:
                    ready = dict(poller.poll(max(1, int(1e3 * left))))
                    if heart in ready:
                        heart.recv()
                        silent = 0
                    if monitor in ready:
                        return time.monotonic_ns()
                if not silent:
                    still = 0
                    continue
                state = None if progress is None else progress.look()
                still = still + 1 if state in (STOPPED, WAITING) else 0
                doubted = silent * PING_EVERY_S > DOUBT_AFTER_S and still * PING_EVERY_S > STILL_S
                if state == GONE or doubted or silent * PING_EVERY_S > DEAD_AFTER_S:
                    return time.monotonic_ns()
            return None
        finally:
            heart.disable_monitor()
            heart.close(0)

    def _until_back(self, lost_ns: int) -> dict[str, Any] | None:
        """Ask Ray for the process until it can be used; None when it is not to be watched any more."""
        import ray

        # A call made while the actor is away is looked at again only every second or two, so ask afresh meanwhile.
        asked: deque[Any] = deque(maxlen=32)
        while not self._stop.is_set() and ray.is_initialized():  # a call would start it anew
            asked.append(self.actor.start.remote())
            try:
                done = ray.wait(list(asked), timeout=0.1)[0]
                if not done:
                    continue
                asked.remove(done[0])
                answer: dict[str, Any] = ray.get(done[0])
            except ray.exceptions.RayTaskError as error:
                log.error("decoder fails to start again: %s", error.cause)
                self._stop.wait(1.0)
                continue
            except ray.exceptions.RayError:
                self._stop.wait(0.05)
                continue
            if self._back(answer, lost_ns):
                return answer
        return None


def _share(gpus: float | None) -> dict[str, float]:
    """What the actor takes of the machine. UserError where there is no free GPU."""
    import ray

    free = ray.available_resources()
    if gpus is None:
        gpus = 1 if ray.cluster_resources().get("GPU", 0) >= 1 else 0
    if gpus > free.get("GPU", 0):
        raise UserError("Ray has no free GPU.", "End what holds it, or use `--host inprocess`.")
    # Waiting for a CPU that somebody holds for good would hang; sharing one is only slower.
    return {"num_cpus": 1 if free.get("CPU", 0) >= 1 else 0, "num_gpus": gpus}
