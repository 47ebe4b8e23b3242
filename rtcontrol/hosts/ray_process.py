"""The decoder's process as an actor of Ray: started, asked to build and to free deciders, awaited when it was lost."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import zmq

from rtcontrol.hosts.decoder_link import dealer
from rtcontrol.hosts.messages import PING
from rtcontrol.hosts.pool_core import PING_EVERY_S, SilenceCore
from rtcontrol.hosts.processes import Progress
from rtcontrol.hosts.protocol import DeciderSource, DecisionRequest, DecoderUnavailable
from rtcontrol.hosts.ray_actor import BUILD, DecoderActor
from rtcontrol.hosts.ray_start import REMEDY, START_TIMEOUT_S, RaySession, actor_options, ask, share
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.host")


class DecoderProcess:
    """One `DecoderActor`, which Ray starts again where it is lost."""

    def __init__(self, gpus: float | None, arguments: Sequence[Any], joined: RaySession | None) -> None:
        """`gpus` None: one if Ray has any. `joined`: the Ray of another pool, which ends it."""
        self.actor: Any = None
        self.ray, self._joined = joined or RaySession(), joined is not None
        self._gpus, self._arguments = gpus, arguments

    def start(self, stopped: Callable[[], bool]) -> dict[str, Any]:
        """Start Ray and the actor; gives what the actor's `start` answers. Raises UserError, and Stopped when `stopped`
        says so before it runs."""
        if not self._joined:
            self.ray.start(stopped)
        import ray

        try:
            options = {"concurrency_groups": {BUILD: 1}, **actor_options(), **share(self._gpus)}
            self.actor = ray.remote(**options)(DecoderActor).remote(*self._arguments, self.ray.folder)
            return ask(self.actor.start.remote(), stopped)
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[0].rstrip(".")
            raise DecoderUnavailable(f"Ray cannot run the decoder's process: {reason}.", REMEDY) from error

    def build(
        self, key: bytes, source: DeciderSource, last: DecisionRequest | None, stopped: Callable[[], bool]
    ) -> dict[str, Any]:
        """Build a session's decider, warm by its `last` request. Raises UserError from the build, RayError, Stopped."""
        build = self.actor.open.options(concurrency_group=BUILD)
        try:
            asked = build.remote(key, source, last and replace(last, data=None))
        except TypeError as error:
            raise UserError(f"The decider's source cannot be sent ({error}).", "Make it picklable.") from error
        return ask(asked, stopped)

    def free(self, keys: Sequence[bytes]) -> None:
        """Free these sessions' deciders."""
        for key in keys:
            with contextlib.suppress(Exception):
                self.actor.close.remote(key)

    def until_lost(self, answer: dict[str, Any], stop: threading.Event) -> int | None:
        """Watch the process that gave this answer; return when it was lost, or a part of Ray; None when `stop` was set
        before."""
        heart = dealer(answer["heartbeat"], answer["key"])
        monitor = heart.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        poller = zmq.Poller()
        for watched in (heart, monitor, *self.ray.files):
            poller.register(watched, zmq.POLLIN)
        progress, silence = Progress(answer["pid"]), SilenceCore()
        try:
            while not stop.is_set():
                with contextlib.suppress(zmq.Again):
                    heart.send(PING, zmq.NOBLOCK)
                silence.pinged()
                until = time.monotonic() + PING_EVERY_S
                while (left := until - time.monotonic()) > 0:
                    ready = dict(poller.poll(max(1, int(1e3 * left))))
                    if heart in ready:
                        heart.recv()
                        silence.answered()
                        del ready[heart]
                    if ready:
                        return time.monotonic_ns()
                if silence.silent and silence.lost(progress.look()):
                    return time.monotonic_ns()
            return None
        finally:
            heart.disable_monitor()
            heart.close(0)

    def until_back(self, closed: threading.Event) -> dict[str, Any] | None:
        """Ask Ray for the process until it answers; None when the pool is closed. Raises DecoderUnavailable when that
        takes too long, and when Ray itself is lost."""
        import ray

        # A call made while the actor is away is looked at again only every second or two, so ask afresh meanwhile.
        asked: deque[Any] = deque(maxlen=32)
        give_up = time.monotonic() + START_TIMEOUT_S
        while not closed.is_set():
            if (died := self.ray.died()) is not None:
                raise DecoderUnavailable(f"Ray's {died} has ended.", "Start again.")
            if not ray.is_initialized():  # a call to a Ray that was shut down would start it again
                raise DecoderUnavailable("Ray was shut down by whoever had started it.", "Start again.")
            if time.monotonic() > give_up:
                raise DecoderUnavailable(
                    f"The decoder's process did not come back within {START_TIMEOUT_S:g} s.", REMEDY
                )
            asked.append(self.actor.start.remote())
            try:
                if done := ray.wait(list(asked), timeout=0.1)[0]:
                    asked.remove(done[0])
                    answer: dict[str, Any] = ray.get(done[0])
                    return answer
            except ray.exceptions.RayTaskError as error:
                log.error("decoder fails to start again: %s", error.cause)
                closed.wait(1.0)
            except ray.exceptions.RayError:
                closed.wait(0.05)
        return None

    def end(self) -> None:
        """Kill the actor, and end the Ray that was started here."""
        with contextlib.suppress(ImportError):
            import ray

            if self.actor is not None and ray.is_initialized() and self.ray.died() is None:
                with contextlib.suppress(ray.exceptions.RayError):
                    ray.kill(self.actor)
        self.actor = None
        if not self._joined:
            self.ray.end()
