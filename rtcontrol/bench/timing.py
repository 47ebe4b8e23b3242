"""Clocks that mean the same for every way that is measured: threads, garbage collection and a GPU's queue."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from rtcontrol.models.runners.torch_runner import TorchRunner
from rtcontrol.telemetry.histogram import Series

T = TypeVar("T")
Progress = Callable[[int, int], None]  # done, of


@dataclass(frozen=True, slots=True)
class Took:
    """Milliseconds by the clock, and of them those that this thread computed. A stall of the machine is in the first
    alone. Work of other threads (torch's, with more than one) and of a GPU is not in the second."""

    wall_ms: float
    cpu_ms: float


class Stopwatch:
    """Measures calls that compute on one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def time(self, run: Callable[[], Any]) -> tuple[Any, Took]:
        """What it gives, and what it took: until the device is done."""
        self.wait()
        cpu, began = time.thread_time(), time.perf_counter()
        found = run()
        self.wait()
        return found, Took((time.perf_counter() - began) * 1e3, (time.thread_time() - cpu) * 1e3)

    def wait(self) -> None:
        """Until nothing is left in the device's queue."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@contextmanager
def like(runner: TorchRunner) -> Iterator[int]:
    """Everything inside runs under the threads that the runner decides with, and garbage is collected where
    `gc.collect` is called, as in the control loop; gives the number of threads."""
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


def tail(walls: list[float], cpus: list[float]) -> dict[str, Any]:
    """The worst decisions as multiples of p50, by the clock and by the deciding thread's own compute."""
    found: dict[str, Any] = {"decisions": len(walls)}
    for name, values in (("wall", walls), ("cpu", cpus)):
        series = Series(values)
        p50 = series.percentile(50.0)
        above = sum(value > 5.0 * p50 for value in values)
        found[name] = {"p50": round(p50, 4), "max_over_p50": round(series.most / max(p50, 1e-9), 2), "above_5x": above}
    return found


def summaries(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Percentiles in the place of each list of milliseconds, however deep; a way that never took its turn has none."""
    return {
        name: summaries(one) if isinstance(one, Mapping) else Series(one).summary() for name, one in raw.items() if one
    }


def stepped(progress: Progress, total: float) -> Callable[..., None]:
    """Tells how much is done: each time one more, or so many."""
    done = 0.0

    def step(more: float = 1.0) -> None:
        nonlocal done
        done += more
        progress(round(done), round(total))

    return step


def rotated(ways: Iterable[T], turn: int) -> list[T]:
    """Who begins changes from one turn to the next."""
    order = deque(ways)
    order.rotate(-turn)
    return list(order)


class Turns:
    """Rounds in which all ways take their turns; garbage is collected after each. Of the first ones, which warm up,
    nothing is `counted`."""

    def __init__(self, ways: Iterable[str], warm_up: int) -> None:
        self.raw: dict[str, list[float]] = {way: [] for way in ways}
        self._warm_up = warm_up
        self.counted = False

    def over(self, items: Iterable[T]) -> Iterator[tuple[int, T]]:
        """Each with its number."""
        for i, item in enumerate(items):
            self.counted = i >= self._warm_up
            yield i, item
            gc.collect(1)

    def add(self, took: Mapping[str, float]) -> None:
        """Milliseconds by way."""
        for way, ms in took.items() if self.counted else ():
            self.raw[way].append(ms)

    def figures(self) -> dict[str, Any]:
        """For the document: percentiles, and each measurement."""
        return {"ms": summaries(self.raw), "raw_ms": self.raw}


def without_raw(value: Any) -> Any:
    """A document without its lists of single measurements (`raw_...`)."""
    if isinstance(value, dict):
        return {k: without_raw(v) for k, v in value.items() if not str(k).startswith("raw_")}
    return [without_raw(v) for v in value] if isinstance(value, list) else value
