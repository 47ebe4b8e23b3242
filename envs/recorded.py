"""A world that shows again what was recorded; what is called acts on nothing."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rtcontrol.envs.base import Barrier, ClockKind, Effect, Episode, Observation
from rtcontrol.models.call import Call


def restored(value: Any) -> Any:
    """What was recorded as the world gave it: JSON has no infinite numbers, so a record has them as texts."""
    if isinstance(value, dict):
        return {key: restored(one) for key, one in value.items()}
    if isinstance(value, list):
        return [restored(one) for one in value]
    return float(value) if isinstance(value, str) and value in ("inf", "-inf", "nan") else value


class RecordedLook(dict[str, Any]):
    """An observation's data as it was recorded, and in `text` what was read of it then."""

    text: str = ""

    @classmethod
    def of(cls, data: Any, text: str) -> RecordedLook:
        look = cls(data if isinstance(data, Mapping) else {})
        look.text = text
        return look


@dataclass(frozen=True, slots=True)
class Capture:
    """An observation at its time, in nanoseconds from the first."""

    t_ns: int
    epoch: int
    data: RecordedLook


def _nothing(**arguments: Any) -> None:
    """What a call does here."""


class RecordedWorld:
    """Implements `Environment`: shows each of the `looks` (in order, at least one) at its time after `start`, on either
    clock, and is finished `after_ns` after the last. `tools` may be called, and change nothing."""

    def __init__(self, name: str, looks: Sequence[Capture], tools: Iterable[str], after_ns: int) -> None:
        self.name = name
        self.bindings: Mapping[str, Callable[..., Any]] = dict.fromkeys(tools, _nothing)
        self.episodes: list[Episode] = []
        self._looks, self._times = looks, [look.t_ns for look in looks]
        self._end_ns = self._times[-1] + after_ns
        self._clock: ClockKind = "wall"
        self._start_ns = self._moved_ns = self._stood_ns = 0

    def start(self, clock: ClockKind, seeds: int | Iterable[int] = 0, episodes: int | None = None) -> None:
        self._clock, self._moved_ns = clock, 0
        self._start_ns = self._stood_ns = time.monotonic_ns()

    def preview(self, seed: int) -> Observation:
        """The first look, before `start`."""
        return self._look(0, time.monotonic_ns())

    @property
    def finished(self) -> bool:
        return self._now_ns() >= self._end_ns

    def latest(self) -> Observation | None:
        i = max(0, bisect_right(self._times, self._now_ns()) - 1)
        # In lockstep the world stands still between two ticks: what it shows is as fresh as its last move.
        return self._look(i, self._start_ns + self._times[i] if self._clock == "wall" else self._stood_ns)

    def execute(
        self, call: Call, epoch: int | None, not_after_ns: int | None = None, barrier: Barrier | None = None
    ) -> Effect:
        if self.finished or epoch not in (None, self._now_look().epoch):
            return "epoch_over"
        if not_after_ns is not None and time.monotonic_ns() > not_after_ns:
            return "too_late"
        if barrier is not None and barrier.shut is not None:
            return "refused"
        self.bindings[call.name](**call.arguments)
        return "acted"

    def advance(self, dt_ns: int) -> None:
        self._moved_ns += dt_ns
        self._stood_ns = time.monotonic_ns()

    def instruct(self, text: str) -> None:
        """Nobody judges here."""

    def conclude(self) -> None:
        """What was recorded ends by itself."""

    def close(self) -> None:
        """Nothing runs."""

    def _now_ns(self) -> int:
        return time.monotonic_ns() - self._start_ns if self._clock == "wall" else self._moved_ns

    def _now_look(self) -> Capture:
        return self._looks[max(0, bisect_right(self._times, self._now_ns()) - 1)]

    def _look(self, i: int, t_capture_ns: int) -> Observation:
        look = self._looks[i]
        return Observation(i + 1, look.epoch, t_capture_ns, look.data)
