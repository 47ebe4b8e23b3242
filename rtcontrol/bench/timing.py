"""Clocks that mean the same for every way that is measured: threads, garbage collection and a GPU's queue."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from rtcontrol.models.runners.torch_runner import TorchRunner
from rtcontrol.telemetry.histogram import Series

T = TypeVar("T")
Progress = Callable[[int, int], None]  # done, of


class Stopwatch:
    """Time calls that compute on one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def time(self, run: Callable[[], T]) -> tuple[T, float]:
        """Return the result, and the milliseconds until the device is done."""
        wait(self.device)
        began = time.perf_counter()
        result = run()
        wait(self.device)
        return result, (time.perf_counter() - began) * 1e3


def wait(device: torch.device) -> None:
    """Wait until nothing is left in the device's queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def like(runner: TorchRunner) -> Iterator[int]:
    """Run under the threads that the runner decides with, and collect garbage only where `gc.collect` is called, as in
    the control loop; gives the number of threads."""
    before, collecting = torch.get_num_threads(), gc.isenabled()
    torch.set_num_threads(runner.threads or before)
    gc.collect()
    gc.disable()
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
        if collecting:
            gc.enable()


def summaries(samples: Mapping[str, Iterable[float]]) -> dict[str, Any]:
    """Return the percentiles of each list of milliseconds; a way that was never timed has none."""
    return {name: Series(values).summary() for name, values in samples.items() if values}


def rotated(ways: Iterable[T], turn: int) -> list[T]:
    """Return the ways in their order of this turn: the first one changes from one turn to the next."""
    order = list(ways)
    first = turn % len(order)
    return order[first:] + order[:first]


class Turns:
    """Rounds in which all ways take their turns; garbage is collected after each. The first ones warm up and are not
    `counted`."""

    def __init__(self, ways: Iterable[str], warm_up: int) -> None:
        self.ms: dict[str, list[float]] = {way: [] for way in ways}
        self._warm_up = warm_up
        self.counted = False

    def over(self, items: Iterable[T]) -> Iterator[tuple[int, T]]:
        """Yield each with its number."""
        for i, item in enumerate(items):
            self.counted = i >= self._warm_up
            yield i, item
            gc.collect(1)

    def add(self, times: Mapping[str, float]) -> None:
        """Keep milliseconds by way."""
        for way, ms in times.items() if self.counted else ():
            self.ms[way].append(ms)
