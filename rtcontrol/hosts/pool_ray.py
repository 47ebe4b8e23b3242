"""A decoder pool in one Ray actor; each session talks to it on a ZeroMQ socket of its own."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import zmq

from rtcontrol.hosts.base import DeciderSource, Host, PlaceTrouble
from rtcontrol.hosts.pool import LIMIT, Places
from rtcontrol.hosts.pool_actor import BUILDERS, PoolActor
from rtcontrol.hosts.ray_link import Link, LinkedHost
from rtcontrol.hosts.ray_process import START_TIMEOUT_S, RayProcess
from rtcontrol.hosts.ray_start import POLL_S, REMEDY, Stopped
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.host")

READY_MS = 10_000
AGAIN_S = 1.0
NOTICE_S = 2.0  # within which the watcher has noticed a lost process
# A build that ends the process each time must not end it for ever.
ATTEMPTS = 3
# For the process's life: to end a context is to wait for its sockets, which their sessions' threads must close.
_CONTEXT: zmq.Context[Any] = zmq.Context()


class RayPool:
    """The client of one `PoolActor`.

    When its process is lost, all sessions' hosts say so; Ray restarts it, and every session's decider is built there
    again from its source, one after the other: each host says when its own is back.
    """

    name = "ray"

    def __init__(self, limit: int = LIMIT, gpus: float | None = None) -> None:
        self._places = Places(limit)
        self._gpus = gpus
        self._process = RayProcess(self._lost, self._back, _CONTEXT)
        self._numbers = itertools.count()
        # Guards all below, and tells of its changes.
        self._changed = threading.Condition()
        self._answer: dict[str, Any] | None = None  # of the process that is up
        self._hosts: set[PooledHost] = set()
        self._busy = 0  # threads that use Ray
        self._closed = False

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        try:
            answer = self._process.start(PoolActor, gpus=self._gpus, stopped=stopped, concurrency_groups={BUILDERS: 1})
        except Stopped:
            return {}
        self._answer = answer
        self._process.watch(answer)
        return {"pid": answer["pid"], "endpoint": answer["lanes"][0]}

    def open(self, session: str, source: DeciderSource) -> Host:
        self._places.take()
        try:
            with self._using_ray():
                return self._open(session, source)
        except BaseException as error:
            self._places.free()
            if isinstance(error, Stopped):
                raise PlaceTrouble("The decoder is closed.", "Start it again.") from None
            raise

    def alive(self) -> bool:
        return self._answer is not None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._answer = None
            for host in self._hosts:
                host.end()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._busy == 0, POLL_S + READY_MS / 1e3)
        self._process.unwatch()
        self._process.end()

    def release(self, host: PooledHost) -> None:
        """Free the decider of a host that is being closed, on that host's thread."""
        with self._changed:
            if host not in self._hosts:
                return
            self._hosts.remove(host)
            if not self._closed:
                self._free(host.key)
        host.drop()
        self._places.free()

    # -- opening ------------------------------------------------------------------------------------------------------

    def _open(self, session: str, source: DeciderSource) -> PooledHost:
        import ray

        host = PooledHost(self, b"%d" % next(self._numbers), source)
        try:
            for _ in range(ATTEMPTS):
                answer = self._until_up()
                try:
                    built = self._process.ask(self._build(host), lambda: self._closed)
                except ray.exceptions.RayError:
                    built = {"pid": None}
                if built["pid"] != answer["pid"]:
                    log.warning("the decoder was lost while it made the decider of %s", session)
                    with self._changed:
                        self._changed.wait_for(partial(self._gone, answer), NOTICE_S)
                elif self._hand_over(host, answer, built, None):
                    return host
        except UserError:
            self._free(host.key)
            raise
        raise PlaceTrouble(
            f"The decoder's process was lost {ATTEMPTS} times while it made the decider of {session}.",
            "It may need more memory than there is (see `rtcontrol doctor`); choose a smaller model.",
        )

    def _until_up(self) -> dict[str, Any]:
        with self._changed:
            self._changed.wait_for(lambda: self._answer is not None or self._closed, START_TIMEOUT_S)
            if self._closed:
                raise Stopped
            if self._answer is None:
                raise PlaceTrouble(f"The decoder's process did not come back within {START_TIMEOUT_S:g} s.", REMEDY)
            return self._answer

    def _build(self, host: PooledHost) -> Any:
        """Ask for the host's decider; gives the reference to the answer."""
        call = self._process.actor.open.options(concurrency_group=BUILDERS)
        try:
            return call.remote(host.key, host.source, host.last and replace(host.last, data=None))
        except TypeError as error:
            raise UserError(f"The decider's source cannot be sent ({error}).", "Make it picklable.") from error

    def _hand_over(self, host: PooledHost, answer: dict[str, Any], built: dict[str, Any], lost_ns: int | None) -> bool:
        """Give the host its link to the decider; `lost_ns` is when it lost the one before. False when it cannot."""
        link = Link(self._process.context, answer, host._wake, b"%s/%d" % (host.key, next(self._numbers)))
        ready = link.ready(READY_MS)
        with self._changed:
            if ready and not self._gone(answer) and (lost_ns is None or host in self._hosts):
                host.info = {**built["info"], "pid": built["pid"]}
                if lost_ns is None:
                    host.take(link)
                    self._hosts.add(host)
                else:
                    host.offer(link, lost_ns)
                return True
        link.close()
        return False

    def _gone(self, answer: dict[str, Any]) -> bool:
        return self._answer is not answer

    def _free(self, key: bytes) -> None:
        with contextlib.suppress(Exception):  # the process may be away: then there is nothing to free
            self._process.actor.close.remote(key)

    @contextlib.contextmanager
    def _using_ray(self) -> Iterator[None]:
        # A call to Ray after it was shut down would start it anew.
        with self._changed:
            if self._closed:
                raise Stopped
            self._busy += 1
        try:
            yield
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    # -- on the watcher's thread --------------------------------------------------------------------------------------

    def _lost(self, lost_ns: int) -> None:
        with self._changed:
            self._answer = None
            for host in self._hosts:
                if host.alive():  # else it was not yet back from the loss before
                    host.lose(lost_ns)
            self._changed.notify_all()

    def _back(self, answer: dict[str, Any], lost_ns: int) -> bool:
        with self._changed:
            if not self._closed:
                self._answer = answer
                self._changed.notify_all()
                again = threading.Thread(
                    target=self._reopen, args=(answer, list(self._hosts)), name="pool-reopen", daemon=True
                )
                again.start()
        return True

    def _reopen(self, answer: dict[str, Any], hosts: Sequence[PooledHost]) -> None:
        """Build the deciders of all sessions in the restarted process; the watcher goes on meanwhile."""
        import ray

        with contextlib.suppress(Stopped, ray.exceptions.RayError), self._using_ray():
            while hosts:
                failed = []
                for host, asked in [(host, self._build(host)) for host in hosts]:
                    try:
                        built = self._process.ask(asked, partial(self._gone, answer))
                    except UserError as error:
                        log.error("a session's decider cannot be made again: %s", error)
                        failed.append(host)
                        continue
                    if not self._hand_over(host, answer, built, host.lost_ns):
                        if host in self._hosts:
                            failed.append(host)
                        else:
                            self._free(host.key)
                with self._changed:
                    self._changed.wait_for(partial(self._gone, answer), AGAIN_S if failed else 0)
                    if self._gone(answer):
                        return
                    hosts = [host for host in failed if host in self._hosts]


class PooledHost(LinkedHost):
    """One session's part of a `RayPool`."""

    def __init__(self, pool: RayPool, key: bytes, source: DeciderSource) -> None:
        super().__init__()
        self.key, self.source = key, source
        self.info: dict[str, Any] = {}
        self._pool = pool

    @property
    def lost_ns(self) -> int:
        """When the decider was last lost; only of a host that lost one."""
        return next(e.t_ns for e in reversed(self.events) if e.event == "lost")

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        return self.info

    def cancel(self, tick: int) -> None:
        if self._link is not None:
            self._link.cancel(tick)

    def end(self) -> None:
        """The pool is closed: there will be no more decisions."""
        self._up = False

    def close(self) -> None:
        self._pool.release(self)
