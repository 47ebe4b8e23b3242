"""A client of policy servers as the control loop sees it: each of its questions is a release."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from queue import Empty, SimpleQueue
from typing import Any

from rtcontrol.envs.base import Barrier, ClockKind, Effect, Emission, Episode, Observation
from rtcontrol.models.call import Call

WAIT_S = 0.05


class PolicyWorld:
    """Implements `Environment` and `Emitting`. `ask` puts a question, one at a time; `answered` is told what became of
    it, on the actuator's thread. `started` is called when the loop is warm."""

    name = "openpi"

    def __init__(self, tool: str, answered: Callable[[Emission], None], started: Callable[[], None]) -> None:
        self.bindings: Mapping[str, Callable[..., Any]] = {tool: _elsewhere}
        self.episodes: list[Episode] = []
        self.finished = False
        self._answered, self._started = answered, started
        self._questions = SimpleQueue[Observation]()
        self._open: Observation | None = None
        self._waiting = False  # whether it was only looked at so far

    def ask(self, seq: int, data: Mapping[str, Any], deadline_ns: int) -> None:
        """From any thread; `seq` grows from 1 on."""
        self._questions.put(Observation(seq, 0, time.monotonic_ns(), data, deadline_ns))

    # -- the loop's side ----------------------------------------------------------------------------------------------

    def start(self, clock: ClockKind, seeds: int | Iterable[int] = 0, episodes: int | None = None) -> None:
        self._started()

    def await_first(self) -> None:
        if self._open is None:
            self._waiting = self._next(round(WAIT_S * 1e9)) is not None

    def latest(self) -> Observation | None:
        return self._open

    def arrival(self, timeout_ns: int) -> int | None:
        """When the next question came (CLOCK_MONOTONIC); None where there is none within the time."""
        if self._waiting and self._open is not None:
            self._waiting = False
            return self._open.t_capture_ns
        return self._next(timeout_ns)

    def _next(self, timeout_ns: int) -> int | None:
        try:
            self._open = self._questions.get(timeout=timeout_ns / 1e9)
        except Empty:
            return None
        return self._open.t_capture_ns

    def execute(
        self, call: Call, epoch: int | None, not_after_ns: int | None = None, barrier: Barrier | None = None
    ) -> Effect:
        """Nothing is done here: `emit` tells the client."""
        if barrier is not None and barrier.shut is not None:
            return "refused"
        return "too_late" if not_after_ns is not None and time.monotonic_ns() > not_after_ns else "acted"

    def emit(self, emission: Emission) -> None:
        self._answered(emission)

    def advance(self, dt_ns: int) -> None:
        """Nothing to do: the client's world runs elsewhere."""

    def conclude(self) -> None:
        """Nothing to do: the client ends by itself."""

    def instruct(self, text: str) -> None:
        """Nothing to do: the client said so."""

    def close(self) -> None:
        """The connection is another's."""


def _elsewhere(**arguments: Any) -> None:
    """Stands for the client's own actuators."""
