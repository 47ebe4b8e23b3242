"""Decides in a Ray actor: Ray places and restarts it, the tick's bytes take its ZeroMQ sockets."""

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

from rtcontrol.hosts.base import DeciderSource, DecisionReply, DecisionRequest, HostEvent
from rtcontrol.hosts.ray_actor import PING, DecoderActor
from rtcontrol.hosts.ray_link import Link, dealer
from rtcontrol.hosts.ray_start import POLL_S, REMEDY, RaySession, Stopped, source_root
from rtcontrol.hosts.reaper import Reaper, descendants
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.host")

PING_EVERY_S = 0.1
DEAD_AFTER_S = 0.5
START_TIMEOUT_S = 300.0
WARM_TIMEOUT_MS = 10_000


class RayHost:
    """The client of one `DecoderActor`.

    The loop's thread owns the lanes' sockets; a watcher thread owns the heartbeat's, notices a lost process (its
    socket closes within a millisecond; a hung one stops answering), asks Ray until it is back, and offers new sockets.
    """

    name = "ray"

    def __init__(self, source: DeciderSource, lanes: int = 1, gpus: float | None = None) -> None:
        self.incarnation = 0
        self.events: list[HostEvent] = []
        self._source, self._lanes, self._gpus = source, lanes, gpus
        self._context: zmq.Context[Any] = zmq.Context()
        self._directory = tempfile.mkdtemp(prefix="rtcontrol-")
        self._session = RaySession()
        self._before: set[int] = set()
        self._actor: Any = None
        self._link: Link | None = None
        self._offer: Link | None = None
        self._last: DecisionRequest | None = None
        self._up = False
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None
        self._reaper: Reaper | None = None

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        self._before = set(descendants(os.getpid()))
        try:
            return self._start(stopped)
        except Stopped:
            return {}

    def _start(self, stopped: Callable[[], bool]) -> dict[str, Any]:
        self._session.start(stopped)
        import ray

        free = ray.available_resources()
        gpus = self._gpus
        if gpus is None:
            everything = ray.cluster_resources()
            gpus = 1 if everything.get("GPU", 0) >= 1 else 0
        if gpus > free.get("GPU", 0):
            raise UserError("Ray has no free GPU.", "End what holds it, or use `--host inprocess`.")
        # Waiting for a CPU that somebody holds for good would hang; sharing one is only slower.
        cpus = 1 if free.get("CPU", 0) >= 1 else 0
        options: dict[str, Any] = {"max_restarts": -1, "num_cpus": cpus, "num_gpus": gpus}
        if root := source_root():
            path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
            options["runtime_env"] = {"env_vars": {"PYTHONPATH": path}}
        try:
            actor_class = ray.remote(DecoderActor).options(**options)
            self._actor = actor_class.remote(self._source, self._lanes, self._directory, socket.gethostname())
            answer = self._ask(self._actor.start.remote(), stopped)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, UserError):
                raise cause from None
            raise UserError(f"The decoder's process failed to start: {cause!r}.", "Run with --debug.") from error
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[0].rstrip(".")
            raise UserError(f"Ray cannot run the decoder's process: {reason}.", REMEDY) from error
        self._link = Link(self._context, answer)
        if not self._link.ready(10_000):
            raise UserError("The decoder's process runs, but its socket does not answer.", REMEDY)
        if self._session.ours:
            self._reaper = Reaper([p for p in descendants(os.getpid()) if p not in self._before], self._directory)
        self._up = True
        self._watcher = threading.Thread(target=self._watch, args=(answer,), name="ray-watcher", daemon=True)
        self._watcher.start()
        return {**answer["info"], "pid": answer["pid"], "endpoint": answer["lanes"][0]}

    def _ask(self, asked: Any, stopped: Callable[[], bool]) -> dict[str, Any]:
        # In short waits: a long one would not be left when the run is stopped.
        import ray

        give_up = time.monotonic() + START_TIMEOUT_S
        while not ray.wait([asked], timeout=POLL_S)[0]:
            if stopped():
                raise Stopped
            if time.monotonic() > give_up:
                raise UserError(f"The decoder's process did not start within {START_TIMEOUT_S:g} s.", REMEDY)
        answer: dict[str, Any] = ray.get(asked)
        return answer

    def submit(self, request: DecisionRequest) -> None:
        self._adopt()
        self._last = request
        if self._link is not None and not self._link.send(request):
            log.debug("tick %d was not sent: no connection", request.tick)

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        self._adopt()
        if self._link is None:
            time.sleep(max(timeout_ns, 0) / 1e9)
            return None
        return self._link.receive(timeout_ns)

    def alive(self) -> bool:
        return self._up

    def cancel(self, tick: int) -> None:
        """Nothing to do: a lane answers the newest request only."""

    def close(self) -> None:
        """Ends the actor, and Ray if it was started here; nothing is left behind."""
        self._stop.set()
        self._up = False
        if self._watcher is not None:
            self._watcher.join(timeout=5.0)
        for link in (self._link, self._offer):
            if link is not None:
                link.close()
        self._link = self._offer = None
        self._context.destroy(linger=0)
        with contextlib.suppress(ImportError):
            import ray

            if self._actor is not None and ray.is_initialized():
                with contextlib.suppress(ray.exceptions.RayError):
                    ray.kill(self._actor)
            self._actor = None
            self._session.end()
        if self._reaper is not None:
            self._reaper.dismiss()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _adopt(self) -> None:
        # The loop's thread takes over the sockets to a restarted process, and closes those that it used itself.
        if (offer := self._offer) is not None:
            self._offer = None
            if self._link is not None:
                self._link.close()
            self._link = offer

    # -- the watcher's thread -----------------------------------------------------------------------------------------

    def _watch(self, answer: dict[str, Any]) -> None:
        while not self._stop.is_set():
            lost_ns = self._until_lost(answer)
            if lost_ns is None:
                return
            self._up = False
            self.events.append(HostEvent(lost_ns, "lost", 0.0))
            log.warning("decoder lost (pid %d); waiting for Ray to restart it", answer["pid"])
            back = self._until_back(answer)
            if back is None:
                return
            answer = back
            now_ns = time.monotonic_ns()
            seconds = (now_ns - lost_ns) / 1e9
            self.incarnation += 1
            self._up = True
            self.events.append(HostEvent(now_ns, "restarted", seconds))
            log.warning("decoder is back after %.2f s (pid %d)", seconds, answer["pid"])

    def _until_lost(self, answer: dict[str, Any]) -> int | None:
        """When the process was lost; None when the host is being closed."""
        heart = dealer(self._context, answer["heartbeat"], answer["key"])
        monitor = heart.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        poller = zmq.Poller()
        poller.register(heart, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        last_pong = time.monotonic()
        try:
            while not self._stop.is_set():
                with contextlib.suppress(zmq.Again):
                    heart.send(PING, zmq.NOBLOCK)
                until = time.monotonic() + PING_EVERY_S
                while (left := until - time.monotonic()) > 0:
                    ready = dict(poller.poll(max(1, int(1e3 * left))))
                    if heart in ready:
                        heart.recv()
                        last_pong = time.monotonic()
                    if monitor in ready:
                        return time.monotonic_ns()
                if time.monotonic() - last_pong > DEAD_AFTER_S:
                    return time.monotonic_ns()
            return None
        finally:
            heart.disable_monitor()
            heart.close(0)

    def _until_back(self, lost: dict[str, Any]) -> dict[str, Any] | None:
        """Ask Ray for the process until it answers on its sockets; None when the host is being closed."""
        import ray

        # A call made while the actor is away is looked at again only every second or two, so ask afresh meanwhile.
        asked: deque[Any] = deque(maxlen=32)
        while not self._stop.is_set():
            asked.append(self._actor.start.remote())
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
            link = Link(self._context, answer)
            if link.ready(WARM_TIMEOUT_MS, self._last):
                self._offer = link
                return answer
            link.close()
        return None
