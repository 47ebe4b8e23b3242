"""Decides in worker threads of this process: for embedding, scripted deciders, and machines without Ray."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, Queue
from typing import Any

from rtcontrol.hosts.base import Decider, DeciderSource, DecisionReply, DecisionRequest, HostEvent
from rtcontrol.models.errors import UserError


def answer(decider: Decider, request: DecisionRequest) -> DecisionReply:
    """Decide; an exception becomes the reply's error, in one line."""
    began = time.monotonic_ns()
    try:
        decision = decider.decide(request)
    except UserError as error:
        return DecisionReply(
            request.tick, None, _line(str(error)), time.monotonic_ns() - began, (error.what, error.remedy)
        )
    except Exception as error:  # whatever a decider raises costs one tick, never the loop
        text = _line(f"{type(error).__name__}: {error}")
        return DecisionReply(request.tick, None, text, time.monotonic_ns() - began)
    return DecisionReply(request.tick, decision, None, time.monotonic_ns() - began)


def describe(decider: Decider) -> dict[str, Any]:
    """What a decider says of itself; empty where it says nothing."""
    info = getattr(decider, "info", None)
    return dict(info()) if info is not None else {}


def _line(text: str) -> str:
    return text.splitlines()[0] if text else text


class InProcessHost:
    """`lanes` threads with a decider each; at most `lanes` requests wait, the oldest gives way."""

    name = "inprocess"

    def __init__(self, source: DeciderSource, lanes: int = 1) -> None:
        self.incarnation = 0
        self.events: list[HostEvent] = []
        self._source = source
        self._lanes = lanes
        self._requests: deque[DecisionRequest] = deque(maxlen=lanes)
        self._arrived = threading.Condition()
        # No SimpleQueue: its timed get waits for ever where a signal's handler outlasts the timeout (CPython 3.11).
        self._replies: Queue[DecisionReply] = Queue()
        self._closed = False
        self._threads: list[threading.Thread] = []

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        deciders = [self._source.build() for _ in range(self._lanes)]
        for i, decider in enumerate(deciders):
            thread = threading.Thread(target=self._work, args=(decider,), name=f"decider-{i}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return describe(deciders[0])

    def submit(self, request: DecisionRequest) -> None:
        with self._arrived:
            self._requests.append(request)
            self._arrived.notify()

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        try:
            if timeout_ns <= 0:
                return self._replies.get_nowait()
            return self._replies.get(timeout=timeout_ns / 1e9)
        except Empty:
            return None

    def alive(self) -> bool:
        return not self._closed

    def cancel(self, tick: int) -> None:
        with self._arrived:
            for request in self._requests:
                if request.tick == tick:
                    self._requests.remove(request)
                    break

    def close(self) -> None:
        """A decider that is still at work ends with the process: its thread is a daemon."""
        with self._arrived:
            self._closed = True
            self._requests.clear()
            self._arrived.notify_all()
        for thread in self._threads:
            thread.join(timeout=1.0)

    def _work(self, decider: Decider) -> None:
        while True:
            with self._arrived:
                while not self._requests and not self._closed:
                    self._arrived.wait()
                if self._closed:
                    return
                # The newest: an older one that still waits is overtaken and will be dropped at its deadline.
                request = self._requests.pop()
            self._replies.put(answer(decider, request))
