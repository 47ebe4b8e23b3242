"""Measure times under equal conditions: the same number of threads, no garbage collection, an empty GPU queue."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from rtcontrol.models.runners.torch_runner import TorchRunner
from rtcontrol.telemetry.histogram import Histogram

T = TypeVar("T")
Progress = Callable[[int, int], None]  # arguments: number of finished steps, number of all steps


class Stopwatch:
    """A stopwatch for functions that compute on a device, such as a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def time(self, run: Callable[[], T]) -> tuple[T, float]:
        """Call `run`. Return its result, and the milliseconds until the device has finished the computation."""
        wait_for_device(self.device)
        began = time.perf_counter()
        result = run()
        wait_for_device(self.device)
        return result, (time.perf_counter() - began) * 1e3


def wait_for_device(device: torch.device) -> None:
    """Wait until the device's queue is empty."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def loop_conditions(runner: TorchRunner) -> Iterator[int]:
    """Set the conditions of the control loop in the context: the runner's number of threads, which is yielded, and no
    automatic garbage collection."""
    before = torch.get_num_threads()
    torch.set_num_threads(runner.threads or before)
    gc.collect()
    gc.disable()
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
        gc.enable()


def summarize(ways: Iterable[str], rounds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return percentiles of the times of each method. `rounds`: for each round, the milliseconds by method."""
    return {way: Histogram(ms[way] for ms in rounds).summary() for way in ways}


def rotated(ways: Iterable[T], offset: int) -> list[T]:
    """Return the methods as a list, rotated to the left by `offset`."""
    order = list(ways)
    first = offset % len(order)
    return order[first:] + order[:first]
