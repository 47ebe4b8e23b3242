"""A decoder pool in one Ray actor: who has a decider there, and how all come back when its process is lost."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import zmq

from rtcontrol.hosts.base import LIMIT, DeciderSource, PlaceTrouble
from rtcontrol.hosts.inprocess import Places
from rtcontrol.hosts.ray_actor import BUILDERS
from rtcontrol.hosts.ray_link import DecoderLink
from rtcontrol.hosts.ray_process import START_TIMEOUT_S, RayProcess
from rtcontrol.hosts.ray_start import POLL_S, REMEDY, Stopped
from rtcontrol.models.errors import UserError

if TYPE_CHECKING:
    from rtcontrol.hosts.ray_host import RayHost

log = logging.getLogger("rtcontrol.host")

READY_MS = 10_000
AGAIN_S = 1.0
NOTICE_S = 2.0  # within which the watcher has noticed a lost process
# A build that ends the process each time must not end it for ever.
ATTEMPTS = 3
# So often a session's decider is built again (once in `AGAIN_S`) in a process that is up.
REBUILDS = 30
# For the process's life: to end a context is to wait for its sockets, which their sessions' threads must close.
_CONTEXT: zmq.Context[Any] = zmq.Context()


class RayPool:
    """The client of one `DecoderActor`.

    When its process is lost, all sessions' hosts say so; it is started again, and every session's decider is built
    there again from its source, one after the other: each host says when its own is back. `gave_up` says why that
    failed for good.
    """

    name = "ray"

    def __init__(self, limit: int = LIMIT, gpus: float | None = None, lanes: int = 1, preload: bool = True) -> None:
        self._places = Places(limit)
        self._process = RayProcess(self, _CONTEXT, lanes, preload, gpus)
        self._numbers = itertools.count()
        self.gave_up: str | None = None
        # Guards all below, and tells of its changes.
        self._changed = threading.Condition()
        self._answer: dict[str, Any] | None = None  # of the process that is up
        self._hosts: set[RayHost] = set()
        self._busy = 0  # threads that use Ray
        self._closed = False

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        try:
            answer = self._process.start(stopped)
        except Stopped:
            return {}
        self._answer = answer
        self._process.watch(answer)
        return {"pid": answer["pid"], "endpoint": answer["lanes"][0]}

    def open(self, session: str, source: DeciderSource) -> RayHost:
        from rtcontrol.hosts.ray_host import RayHost

        host = RayHost(source, pool=self, session=session)
        host.start()
        return host

    def alive(self) -> bool:
        return self._answer is not None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._answer = None
            for host in self._hosts:
                host.end()
            self._changed.notify_all()
        self.idle()
        self._process.end()

    # -- for the hosts ------------------------------------------------------------------------------------------------

    def admit(self, host: RayHost, session: str, stopped: Callable[[], bool]) -> None:
        """Build the host's decider, and give it its link."""
        self._places.take()
        try:
            self._admit(host, session, stopped)
        except BaseException as error:
            self._places.free()
            if isinstance(error, Stopped) and not stopped():
                raise PlaceTrouble("The decoder is closed.", "Start it again.") from None
            raise

    def release(self, host: RayHost) -> None:
        """Free the decider of a host that is being closed, on that host's thread."""
        with self._changed:
            if host not in self._hosts:
                return
            self._hosts.remove(host)
            self._free(host.key)
        self._places.free()

    def _admit(self, host: RayHost, session: str, stopped: Callable[[], bool]) -> None:
        import ray

        host.key = b"%d" % next(self._numbers)
        for _ in range(ATTEMPTS):
            answer = self._until_up()
            try:
                with self._using_ray(answer):
                    built = self._process.ask(self._build(host), partial(self._leave, answer, stopped))
            except UserError:
                with self._changed:
                    self._free(host.key)
                raise
            except (ray.exceptions.RayError, Stopped):
                if stopped():
                    raise Stopped from None
                built = {"pid": None}
            if built["pid"] != answer["pid"]:
                log.warning("the decoder was lost while it made the decider of %s", session)
                with self._changed:
                    self._changed.wait_for(partial(self._gone, answer), NOTICE_S)
            elif self._hand_over(host, answer, built, None):
                return
        raise PlaceTrouble(
            f"The decoder's process was lost {ATTEMPTS} times while it made the decider of {session}.",
            "It may need more memory than there is (see `rtcontrol doctor`); choose a smaller model.",
        )

    def _until_up(self) -> dict[str, Any]:
        with self._changed:
            self._changed.wait_for(lambda: self._answer or self._closed or self.gave_up, START_TIMEOUT_S)
            if self._closed:
                raise Stopped
            if self._answer is None:
                why = self.gave_up or f"The decoder's process did not come back within {START_TIMEOUT_S:g} s."
                raise PlaceTrouble(why, REMEDY)
            return self._answer

    def _build(self, host: RayHost) -> Any:
        """Ask for the host's decider; gives the reference to the answer."""
        call = self._process.actor.open.options(concurrency_group=BUILDERS)
        try:
            return call.remote(host.key, host.source, host.last and replace(host.last, data=None))
        except TypeError as error:
            raise UserError(f"The decider's source cannot be sent ({error}).", "Make it picklable.") from error

    def _hand_over(self, host: RayHost, answer: dict[str, Any], built: dict[str, Any], lost_ns: int | None) -> bool:
        """Give the host its link to the decider; `lost_ns` is when it lost the one before. False when it cannot."""
        link = DecoderLink(self._process.context, answer, host.woken, b"%s/%d" % (host.key, next(self._numbers)))
        ready = link.ready(READY_MS)
        with self._changed:
            if ready and not self._gone(answer) and (lost_ns is None or host in self._hosts):
                host.info = {**built["info"], "pid": built["pid"], "endpoint": answer["lanes"][0]}
                host.offer(link, lost_ns)
                self._hosts.add(host)
                return True
        link.close()
        return False

    def _leave(self, answer: dict[str, Any], stopped: Callable[[], bool]) -> bool:
        return stopped() or self._gone(answer)

    def _gone(self, answer: dict[str, Any]) -> bool:
        return self._answer is not answer

    def _free(self, key: bytes) -> None:
        """Where the process is away, there is nothing to free. Locked, and so before Ray is shut down."""
        if self._answer is not None:
            with contextlib.suppress(Exception):
                self._process.actor.close.remote(key)

    @contextlib.contextmanager
    def _using_ray(self, answer: dict[str, Any]) -> Iterator[None]:
        # A call to Ray after it was shut down would start it anew.
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

    # -- on the watcher's thread --------------------------------------------------------------------------------------

    def lost(self, lost_ns: int) -> None:
        with self._changed:
            self._answer = None
            for host in self._hosts:
                if host.alive():  # else it was not yet back from the loss before
                    host.lose(lost_ns)
            self._changed.notify_all()

    def idle(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._busy == 0, POLL_S + READY_MS / 1e3)

    def back(self, answer: dict[str, Any], lost_ns: int) -> None:
        with self._changed:
            if not self._closed:
                self._answer = answer
                self._changed.notify_all()
                again = threading.Thread(
                    target=self._reopen, args=(answer, list(self._hosts)), name="pool-reopen", daemon=True
                )
                again.start()

    def give_up(self, why: str) -> None:
        with self._changed:
            self.gave_up = why
            if not self._hosts:  # whose loops would tell it
                log.error("no more decisions: %s", why)
            for host in self._hosts:
                host.give_up(why)
            self._changed.notify_all()

    def _reopen(self, answer: dict[str, Any], hosts: Sequence[RayHost]) -> None:
        """Build the deciders of all sessions in the restarted process; the watcher goes on meanwhile."""
        import ray

        why = "The decoder's sockets do not answer."
        with contextlib.suppress(Stopped, ray.exceptions.RayError):
            for _ in range(REBUILDS):
                failed = []
                for host in hosts:
                    try:
                        with self._using_ray(answer):
                            built = self._process.ask(self._build(host), partial(self._gone, answer))
                    except UserError as error:
                        log.error("a session's decider cannot be made again: %s", error)
                        why = str(error)
                        failed.append(host)
                        continue
                    if not self._hand_over(host, answer, built, host.lost_ns):
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
