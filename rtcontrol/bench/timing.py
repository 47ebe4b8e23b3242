"""Clocks that mean the same for every way that is measured: threads, garbage collection and a GPU's queue."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    before = torch.get_num_threads()
    torch.set_num_threads(runner.threads or before)
    gc.collect()
    gc.disable()
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
        gc.enable()


def summaries(ways: Iterable[str], rounds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return percentiles of each way's milliseconds."""
    return {way: Series(ms[way] for ms in rounds).summary() for way in ways}


def rotated(ways: Iterable[T], turn: int) -> list[T]:
    """Return the ways in their order of this turn: the first one changes from one turn to the next."""
    order = list(ways)
    first = turn % len(order)
    return order[first:] + order[:first]
