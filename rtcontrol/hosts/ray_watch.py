"""The watch over a pool's process: it notices a loss, and brings all sessions back."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import zmq

from rtcontrol.hosts.decoder_link import dealer
from rtcontrol.hosts.messages import PING
from rtcontrol.hosts.pool_core import PING_EVERY_S, Rebuild, SilenceCore
from rtcontrol.hosts.processes import Progress
from rtcontrol.hosts.protocol import DecoderUnavailable
from rtcontrol.hosts.ray_sessions import RaySessions
from rtcontrol.hosts.ray_start import Stopped
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.host")

AGAIN_S = 1.0  # from one round of builds to the next


def watch(pool: RaySessions, answer: dict[str, Any]) -> None:
    """Watch the pool's process, which gave this answer, until the pool is closed or gives up; on a thread."""
    try:
        while (lost_ns := until_lost(answer, pool.process.ray.files, pool.closed)) is not None:
            with pool.changed:
                pool.core.lost(lost_ns)
                pool.changed.notify_all()
            log.warning("decoder lost (pid %d); waiting for Ray to restart it", answer["pid"])
            found = pool.process.until_back(pool.closed)
            if found is None:
                return
            answer = found
            seconds = (time.monotonic_ns() - lost_ns) / 1e9
            log.warning("decoder's process is back after %.2f s (pid %d)", seconds, answer["pid"])
            _restore(pool, answer)
    except DecoderUnavailable as error:
        _give_up(pool, error.what)
    except Exception as error:
        log.exception("the decoder is not watched any more")
        _give_up(pool, f"The decoder is not watched any more ({type(error).__name__}: {error}).")


def _restore(pool: RaySessions, answer: dict[str, Any]) -> None:
    with pool.changed:
        pool.process.free(pool.core.restored(answer))
        pool.changed.notify_all()
        rebuild = Rebuild(pool.core)
    threading.Thread(target=_reopen, args=(pool, rebuild), name="pool-reopen", daemon=True).start()


def _reopen(pool: RaySessions, rebuild: Rebuild) -> None:
    """Build the deciders of all sessions in the restarted process; the watcher goes on meanwhile."""
    import ray

    with contextlib.suppress(Stopped, ray.exceptions.RayError):
        while not rebuild.over:
            failed, why = [], None
            for session in rebuild.waiting:
                host = pool.hosts.get(session)
                try:
                    if host is None or not pool.bring(host, rebuild.life):
                        failed.append(session)
                except UserError as error:
                    log.error("a session's decider cannot be made again: %s", error)
                    why = str(error)
                    failed.append(session)
            with pool.changed:
                pool.changed.wait_for(lambda: pool.core.life is not rebuild.life, AGAIN_S if failed else 0)
                pool.process.free(rebuild.round(failed, why))
                _wake_lost(pool)


def _give_up(pool: RaySessions, why: str) -> None:
    with pool.changed:
        if not pool.hosts:  # whose loops would report it
            log.error("no more decisions: %s", why)
        pool.core.end(why)
        _wake_lost(pool)
        pool.changed.notify_all()


def _wake_lost(pool: RaySessions) -> None:
    for session, host in pool.hosts.items():
        if session.gave_up is not None:
            host.woken.set()


def until_lost(answer: dict[str, Any], others: Sequence[int], stop: threading.Event) -> int | None:
    """Watch the process that gave this answer: when it was lost, or one of `others` became readable; None when
    `stop` was set before."""
    heart = dealer(answer["heartbeat"], answer["key"])
    monitor = heart.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    poller = zmq.Poller()
    for watched in (heart, monitor, *others):
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
