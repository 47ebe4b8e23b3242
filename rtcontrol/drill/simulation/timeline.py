"""Simulate time (a queue of scheduled functions), processes that can freeze, and threads that wait for a processor."""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush

Act = Callable[[], object]
US, MS, S = 1_000, 1_000_000, 1_000_000_000
# The simulated clock starts at one hour, because many timestamps use 0 for "not yet".
START_NS = 3600 * S


class SimTimeline:
    """A queue of functions that are called at simulated instants. `now_ns`: the simulated CLOCK_MONOTONIC."""

    def __init__(self, seed: int) -> None:
        self.now_ns = START_NS
        self._seed = seed
        self._due: list[tuple[int, int, Act]] = []
        self._count = 0

    def rng(self, name: str) -> random.Random:
        """Return the random generator of one component. It does not depend on how others use theirs."""
        return random.Random(f"{self._seed} {name}")

    def at(self, t_ns: int, act: Act) -> None:
        """Schedule a function for the instant `t_ns`."""
        self._count += 1
        heappush(self._due, (t_ns, self._count, act))

    def run(self, until_ns: int, ends: Callable[[], bool] | None = None) -> None:
        """Advance the time to `until_ns`, and call the functions that are due. Return early if `ends` returns True."""
        due = self._due
        if ends is not None and ends():
            return
        while due and due[0][0] <= until_ns:
            t_ns, _, act = heappop(due)
            if t_ns > self.now_ns:
                self.now_ns = t_ns
            act()
            if ends is not None and ends():
                return
        if until_ns > self.now_ns:
            self.now_ns = until_ns


class Process:
    """A simulated process. While it is frozen, that is until `frozen_ns`, it calls no functions; they are called then.
    `frozen_spans`: when the process was frozen."""

    def __init__(self, time: SimTimeline) -> None:
        self.time = time
        self.frozen_ns = 0
        self.frozen_spans: list[tuple[int, int]] = []

    def freeze(self, for_ns: int) -> None:
        now = self.time.now_ns
        self.frozen_ns = max(self.frozen_ns, now + for_ns)
        self.frozen_spans.append((now, self.frozen_ns))

    def at(self, t_ns: int, act: Act) -> None:
        """Schedule a function that the process calls at `t_ns`, or later if it is frozen then."""
        self.time.at(t_ns, lambda: self._call_unless_frozen(act))

    def _call_unless_frozen(self, act: Act) -> None:
        if self.time.now_ns < self.frozen_ns:
            self.at(self.frozen_ns, act)
        else:
            act()


class Thread:
    """A simulated thread with scheduler statistics. It gets no processor until `starved_ns`. `ready_ns`: since when it
    waits for a processor, or 0. `ran_ns`, `delayed_ns`: total time that it ran, and that it waited for a processor.
    `blocked_spans`: when it waited for a processor or ran user code."""

    def __init__(self, process: Process, rng: random.Random) -> None:
        self.process, self._rng = process, rng
        self.starved_ns = 0
        self.ready_ns = self.ran_ns = self.delayed_ns = 0
        self.blocked_spans: list[tuple[int, int]] = []

    def next_run_ns(self) -> int:
        """Return when the thread gets a processor if it is ready to run now."""
        now = self.process.time.now_ns
        if now < self.starved_ns:
            self.ready_ns = now
            self.blocked_spans.append((now, self.starved_ns))
            return self.starved_ns
        return now + 5 * US + int(self._rng.random() * 55_000)

    def start_running(self) -> None:
        """Record that the thread got a processor, and add its waiting time to the statistics."""
        if self.ready_ns:
            self.delayed_ns += self.process.time.now_ns - self.ready_ns
            self.ready_ns = 0

    def pause(self, for_ns: int) -> None:
        """Let the thread compute for `for_ns`. Other threads run meanwhile."""
        time = self.process.time
        self.ran_ns += for_ns
        time.run(time.now_ns + for_ns)
        self.wait_while_frozen()

    def wait_while_frozen(self) -> None:
        time, process = self.process.time, self.process
        while time.now_ns < process.frozen_ns:
            time.run(process.frozen_ns)

    def sleep(self, until_ns: int, ends: Callable[[], bool]) -> None:
        """Sleep until an instant, or until `ends` returns True. Then wait until the thread gets a processor."""
        time = self.process.time
        time.run(until_ns, ends)
        time.run(self.next_run_ns())
        self.start_running()
        self.wait_while_frozen()

    @property
    def schedstat(self) -> bytes:
        return b"%d %d 1\n" % (self.ran_ns, self.delayed_ns)
