"""The watch over a decoder's process: it pings, and looks what the kernel reports; `SilenceCore` judges."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any

import zmq

from rtcontrol.hosts.decoder_link import dealer
from rtcontrol.hosts.processes import Progress
from rtcontrol.hosts.ray_actor import PING
from rtcontrol.hosts.silence_core import PING_EVERY_S, SilenceCore


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
