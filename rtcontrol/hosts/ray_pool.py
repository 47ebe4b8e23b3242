"""A decoder pool in one Ray actor: who has a decider there, and how all come back when its process is lost."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rtcontrol.hosts.decoder_link import DecoderLink
from rtcontrol.hosts.inprocess import Places
from rtcontrol.hosts.protocol import (
    LIMIT,
    DeciderSource,
    DecoderUnavailable,
)
from rtcontrol.hosts.ray_actor import BUILD, DecoderActor
from rtcontrol.hosts.ray_host import RayHost
from rtcontrol.hosts.ray_start import POLL_S, REMEDY, START_TIMEOUT_S, RaySession, Stopped, actor_options, ask, share
from rtcontrol.hosts.ray_watch import until_lost
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.host")

READY_MS = 10_000
AGAIN_S = 1.0
NOTICE_S = 2.0  # within which the watcher has noticed a lost process
# A build that ends the process each time must not end it for ever.
ATTEMPTS = 3
# So often a session's decider is built again (once in `AGAIN_S`) in a process that is up.
REBUILDS = 30


def single_host(source: DeciderSource, lanes: int = 1, gpus: float | None = None) -> RayHost:
    """A run's host: the one session of a pool of its own."""
    return RayHost(RayPool(1, gpus, lanes, preload=False), source, "the run", own=True)


class RayPool:
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
        self.gave_up: str | None = None
        self.actor: Any = None
        self._gpus, self._arguments = gpus, (lanes, preload)
        self._places = Places(limit)
        self.ray, self._joined = joined or RaySession(), joined is not None
        self._watcher: threading.Thread | None = None
        self._closed = threading.Event()
        # Guards all below, and tells of its changes.
        self._changed = threading.Condition()
        self._answer: dict[str, Any] | None = None  # of the process that is up
        self._hosts: set[RayHost] = set()
        self._busy = 0  # threads that use Ray
        # Of sessions that ended while the process was away.
        self._unfreed: deque[bytes] = deque(maxlen=max(limit, LIMIT))

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        try:
            self._answer = answer = self._start(stopped)
        except Stopped:
            return {}
        self._watcher = threading.Thread(target=self._watch, args=(answer,), name="ray-watcher", daemon=True)
        self._watcher.start()
        return {"pid": answer["pid"], "endpoint": answer["lanes"][0]}

    def open(self, session: str, source: DeciderSource) -> RayHost:
        host = RayHost(self, source, session)
        host.start()
        return host

    def alive(self) -> bool:
        return self._answer is not None

    def close(self) -> None:
        with self._changed:
            self._closed.set()
            self._answer = None
            for host in self._hosts:
                host.up = False
            self._changed.notify_all()
        if self._watcher is not None:
            self._watcher.join()
        self._end_ray()

    # -- the actor: any thread ----------------------------------------------------------------------------------------

    def _start(self, stopped: Callable[[], bool]) -> dict[str, Any]:
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

    def _end_ray(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._busy == 0, POLL_S + READY_MS / 1e3)
        with contextlib.suppress(ImportError):
            import ray

            if self.actor is not None and ray.is_initialized() and self.ray.died() is None:
                with contextlib.suppress(ray.exceptions.RayError):
                    ray.kill(self.actor)
        self.actor = None
        if not self._joined:
            self.ray.end()

    @contextlib.contextmanager
    def _using_ray(self, answer: dict[str, Any]) -> Iterator[None]:
        """Ray is not shut down meanwhile. Raises Stopped where the process that gave the answer is gone: a call to Ray
        after it was shut down would start it again."""
        with self._changed:
            if self._gone(answer):
                raise Stopped
            self._busy += 1
        try:
            yield
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def _gone(self, answer: dict[str, Any]) -> bool:
        return self._answer is not answer

    # -- sessions: their own threads ----------------------------------------------------------------------------------

    def admit(self, host: RayHost, stopped: Callable[[], bool]) -> None:
        """Build the host's decider, and give it its link; neither where `stopped` says so before."""
        import ray

        self._places.take()
        try:
            for _ in range(ATTEMPTS):
                answer = self._until_up()
                with contextlib.suppress(ray.exceptions.RayError, Stopped):
                    if self._bring(host, answer, stopped):
                        return
                if stopped():
                    break
                log.warning("the decoder was lost while it made the decider of %s", host.session)
                with self._changed:
                    self._changed.wait_for(partial(self._gone, answer), NOTICE_S)
            else:
                raise DecoderUnavailable(
                    f"The decoder's process was lost {ATTEMPTS} times while it made the decider of {host.session}.",
                    "It may need more memory than there is (see `rtcontrol doctor`); choose a smaller model.",
                )
        finally:
            if host not in self._hosts:
                with self._changed:  # it may be there, or still be built
                    self._free(host.key)
                host.renew()
                self._places.free()

    def release(self, host: RayHost) -> None:
        """Free the decider of a host that is being closed, on that host's thread."""
        with self._changed:
            if host not in self._hosts:
                return
            self._hosts.remove(host)
            self._free(host.key)
        self._places.free()

    def _until_up(self) -> dict[str, Any]:
        with self._changed:
            self._changed.wait_for(lambda: self._answer or self._closed.is_set() or self.gave_up, START_TIMEOUT_S)
            if self._closed.is_set():
                raise DecoderUnavailable("The decoder is closed.", "Start it again.")
            if self._answer is None:
                why = self.gave_up or f"The decoder's process did not come back within {START_TIMEOUT_S:g} s."
                raise DecoderUnavailable(why, REMEDY)
            return self._answer

    def _bring(self, host: RayHost, answer: dict[str, Any], stopped: Callable[[], bool] = lambda: False) -> bool:
        """Build the host's decider in the process that gave `answer`, and give the host its link to it; False when that
        process is not up any more. Raises UserError from the build, RayError and Stopped."""
        with self._using_ray(answer):
            build = self.actor.open.options(concurrency_group=BUILD)
            try:
                asked = build.remote(host.key, host.source, host.last and replace(host.last, data=None))
            except TypeError as error:
                raise UserError(f"The decider's source cannot be sent ({error}).", "Make it picklable.") from error
            built = ask(asked, lambda: stopped() or self._gone(answer))
        if built["pid"] != answer["pid"]:
            return False
        link = DecoderLink(answer, host.key, host.woken)
        ready = link.ready(READY_MS)
        with self._changed:
            # One that was lost may have been closed meanwhile.
            if ready and not self._gone(answer) and (host.lost_ns is None or host in self._hosts):
                host.info = {**built["info"], "pid": built["pid"], "endpoint": answer["lanes"][0]}
                host.offer(link)
                self._hosts.add(host)
                return True
        link.close()
        return False

    def _free(self, key: bytes) -> None:
        """Locked, and so before Ray is shut down. Where the process is away it is freed when that is back: it may only
        have been silent."""
        if self._answer is None:
            self._unfreed.append(key)
            return
        with contextlib.suppress(Exception):
            self.actor.close.remote(key)

    # -- what is lost comes back: the watcher's thread ----------------------------------------------------------------

    def _watch(self, answer: dict[str, Any]) -> None:
        try:
            while (lost_ns := until_lost(answer, self.ray.files, self._closed)) is not None:
                self._lose(lost_ns)
                log.warning("decoder lost (pid %d); waiting for Ray to restart it", answer["pid"])
                if (found := self._until_back()) is None:
                    return
                answer = found
                seconds = (time.monotonic_ns() - lost_ns) / 1e9
                log.warning("decoder's process is back after %.2f s (pid %d)", seconds, answer["pid"])
                self._back(answer)
        except DecoderUnavailable as error:
            self._give_up(error.what)
        except Exception as error:
            log.exception("the decoder is not watched any more")
            self._give_up(f"The decoder is not watched any more ({type(error).__name__}: {error}).")

    def _lose(self, lost_ns: int) -> None:
        with self._changed:
            self._answer = None
            for host in filter(RayHost.alive, self._hosts):  # others are not yet back from the loss before
                host.lose(lost_ns)
            self._changed.notify_all()

    def _until_back(self) -> dict[str, Any] | None:
        """Ask Ray for the process until it answers; None when the pool is closed. Raises DecoderUnavailable when that
        takes too long, and when Ray itself is lost."""
        import ray

        # A call made while the actor is away is looked at again only every second or two, so ask afresh meanwhile.
        asked: deque[Any] = deque(maxlen=32)
        give_up = time.monotonic() + START_TIMEOUT_S
        while not self._closed.is_set():
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
                self._closed.wait(1.0)
            except ray.exceptions.RayError:
                self._closed.wait(0.05)
        return None

    def _back(self, answer: dict[str, Any]) -> None:
        with self._changed:
            if not self._closed.is_set():
                self._answer = answer
                self._changed.notify_all()
                while self._unfreed:
                    self._free(self._unfreed.popleft())
                again = (answer, list(self._hosts))
                threading.Thread(target=self._reopen, args=again, name="pool-reopen", daemon=True).start()

    def _reopen(self, answer: dict[str, Any], hosts: Sequence[RayHost]) -> None:
        """Build the deciders of all sessions in the restarted process; the watcher goes on meanwhile."""
        import ray

        why = "The decoder's sockets do not answer."
        with contextlib.suppress(Stopped, ray.exceptions.RayError):
            for _ in range(REBUILDS):
                failed = []
                for host in hosts:
                    try:
                        if not self._bring(host, answer):
                            failed.append(host)
                    except UserError as error:
                        log.error("a session's decider cannot be made again: %s", error)
                        why = str(error)
                        failed.append(host)
                with self._changed:
                    self._changed.wait_for(partial(self._gone, answer), AGAIN_S if failed else 0)
                    for host in failed:
                        if host not in self._hosts:
                            self._free(host.key)
                    hosts = [host for host in failed if host in self._hosts]
                if not hosts or self._gone(answer):
                    return
            for host in hosts:
                host.give_up(f"The decider could not be made again {REBUILDS} times: {why}")

    def _give_up(self, why: str) -> None:
        with self._changed:
            self.gave_up = why
            if not self._hosts:  # whose loops would tell it
                log.error("no more decisions: %s", why)
            for host in self._hosts:
                host.give_up(why)
            self._changed.notify_all()
