"""A decoder's process: an actor that Ray places and restarts, watched by its heartbeat; and Ray, started again."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import zmq

from rtcontrol.hosts.base import PlaceTrouble
from rtcontrol.hosts.processes import GONE, STOPPED, WAITING, Progress
from rtcontrol.hosts.ray_actor import BUILDERS, PING, DecoderActor
from rtcontrol.hosts.ray_link import dealer
from rtcontrol.hosts.ray_start import POLL_S, REMEDY, RaySession, Stopped, source_root
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.host")

PING_EVERY_S = 0.1
# Silence alone proves little: on a starved machine a live process answers late. So long it may be silent before the
# kernel's word counts that it has got nowhere for `STILL_S`; and so long whatever the kernel says (or cannot say: of
# another machine).
DOUBT_AFTER_S, STILL_S, DEAD_AFTER_S = 2.0, 1.0, 10.0
START_TIMEOUT_S = 300.0
# How often Ray itself is started again until it has lasted for `STEADY_S`.
RAY_TRIES, STEADY_S = 3, 60.0


class ProcessOwner(Protocol):
    """Who is told, on the watcher's thread."""

    def lost(self, lost_ns: int) -> None:
        """The process does not answer."""

    def idle(self) -> None:
        """Ray is about to be shut down: wait until nobody uses it."""

    def back(self, answer: dict[str, Any], lost_ns: int) -> None:
        """A process answers again."""

    def give_up(self, why: str) -> None:
        """There will be none any more."""


class RayProcess:
    """Starts one actor, watches it from a thread of its own, ends it and all that was started for it.

    The watcher notices a lost process (its socket closes within a millisecond; one that was stopped or hangs answers no
    more, see `DOUBT_AFTER_S`), and asks Ray until the actor's `start` answers again. A Ray that was started here and
    lost its raylet or its GCS is noticed as soon, shut down, and started again with a new actor.
    """

    def __init__(
        self, owner: ProcessOwner, context: zmq.Context[Any], lanes: int, preload: bool, gpus: float | None
    ) -> None:
        """`gpus` None: one if Ray has any."""
        self.context = context
        self.actor: Any = None
        self._owner, self._gpus = owner, gpus
        self._arguments = (lanes, preload)
        self._session = RaySession()
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None
        self._tries, self._began = 0, 0.0

    def start(self, stopped: Callable[[], bool]) -> dict[str, Any]:
        """Start Ray and the actor; gives what the actor's `start` answers. Raises UserError, and Stopped when `stopped`
        says so before it runs."""
        self._session.start(stopped)
        import ray

        options: dict[str, Any] = {"max_restarts": -1, "concurrency_groups": {BUILDERS: 1}, **_share(self._gpus)}
        if root := source_root():
            path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
            options["runtime_env"] = {"env_vars": {"PYTHONPATH": path}}
        where = (self._session.folder, socket.gethostname())
        try:
            self.actor = ray.remote(**options)(DecoderActor).remote(*self._arguments, *where)
            answer = self.ask(self.actor.start.remote(), stopped)
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[0].rstrip(".")
            raise PlaceTrouble(f"Ray cannot run the decoder's process: {reason}.", REMEDY) from error
        self._began = time.monotonic()
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

    def end(self) -> None:
        """Nobody is told any more; the actor is ended, and Ray if it was started here. Nothing is left behind but the
        caller's context."""
        self._stop.set()
        if self._watcher is not None:
            self._watcher.join()
        self._end_ray()

    def _end_ray(self) -> None:
        with contextlib.suppress(ImportError):
            import ray

            if self.actor is not None and ray.is_initialized() and self._session.died() is None:
                with contextlib.suppress(ray.exceptions.RayError):
                    ray.kill(self.actor)
        self.actor = None
        self._session.end()

    # -- the watcher's thread -----------------------------------------------------------------------------------------

    def _watch(self, answer: dict[str, Any]) -> None:
        try:
            while (lost_ns := self._until_lost(answer)) is not None:
                self._owner.lost(lost_ns)
                if time.monotonic() - self._began > STEADY_S:
                    self._tries = 0
                found = None
                if self._session.died() is None:
                    log.warning("decoder lost (pid %d); waiting for Ray to restart it", answer["pid"])
                    found = self._until_back()
                while found is None and not self._stop.is_set():
                    found = self._ray_again()
                if found is None:
                    return
                answer = found
                seconds = (time.monotonic_ns() - lost_ns) / 1e9
                log.warning("decoder's process is back after %.2f s (pid %d)", seconds, answer["pid"])
                self._owner.back(answer, lost_ns)
        except PlaceTrouble as error:
            self._owner.give_up(error.what)
        except Exception as error:
            log.exception("the decoder is not watched any more")
            self._owner.give_up(f"The decoder is not watched any more ({type(error).__name__}: {error}).")

    def _until_lost(self, answer: dict[str, Any]) -> int | None:
        """When the process, or Ray itself, was lost; None when it is not to be watched any more."""
        heart = dealer(self.context, answer["heartbeat"], answer["key"])
        monitor = heart.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        poller = zmq.Poller()
        for watched in (heart, monitor, *self._session.files):
            poller.register(watched, zmq.POLLIN)
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
                        del ready[heart]
                    if ready:
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

    def _until_back(self) -> dict[str, Any] | None:
        """Ask Ray for the process until it answers; None when Ray itself is lost, or nobody waits any more.

        PlaceTrouble when it takes too long."""
        import ray

        # A call made while the actor is away is looked at again only every second or two, so ask afresh meanwhile.
        asked: deque[Any] = deque(maxlen=32)
        give_up = time.monotonic() + START_TIMEOUT_S
        # A call to a Ray that was shut down would start it anew.
        while not self._stop.is_set() and self._session.died() is None:
            if not ray.is_initialized():
                raise PlaceTrouble("Ray was shut down by whoever had started it.", "Start again.")
            if time.monotonic() > give_up:
                raise PlaceTrouble(f"The decoder's process did not come back within {START_TIMEOUT_S:g} s.", REMEDY)
            asked.append(self.actor.start.remote())
            try:
                if done := ray.wait(list(asked), timeout=0.1)[0]:
                    asked.remove(done[0])
                    answer: dict[str, Any] = ray.get(done[0])
                    return answer
            except ray.exceptions.RayTaskError as error:
                log.error("decoder fails to start again: %s", error.cause)
                self._stop.wait(1.0)
            except ray.exceptions.RayError:
                self._stop.wait(0.05)
        return None

    def _ray_again(self) -> dict[str, Any] | None:
        """Start Ray and the actor again; None when that failed, or nobody waits any more. PlaceTrouble when it was
        tried too often."""
        if self._tries == RAY_TRIES:
            raise PlaceTrouble(f"Ray was lost, and {RAY_TRIES} times started again in vain.", REMEDY)
        self._tries += 1
        if (died := self._session.died()) is not None:
            log.warning("Ray's %s has ended: Ray is started again", died)
        try:
            self._owner.idle()
            self._end_ray()
            self._session = RaySession()
            return self.start(self._stop.is_set)
        except Stopped:
            return None
        except UserError as error:
            log.error("Ray does not start again: %s", error)
            self._stop.wait(1.0)
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
