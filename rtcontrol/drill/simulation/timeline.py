"""Simulated time: a queue of due functions, processes that can be frozen, and threads that can be starved."""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush

Act = Callable[[], object]
US, MS, S = 1_000, 1_000_000, 1_000_000_000
# CLOCK_MONOTONIC of a machine that has run for an hour, since 0 means "not yet" in many stamps.
START_NS = 3600 * S


class SimTimeline:
    """A queue of functions in the order of their instants, then of entry. `now_ns` is the simulated CLOCK_MONOTONIC."""

    def __init__(self, seed: int) -> None:
        self.now_ns = START_NS
        self._seed = seed
        self._due: list[tuple[int, int, Act]] = []
        self._count = 0

    def chance(self, name: str) -> random.Random:
        """Return a random generator for one component, which other components do not influence."""
        return random.Random(f"{self._seed} {name}")

    def at(self, t_ns: int, act: Act) -> None:
        """Call a function at an instant."""
        self._count += 1
        heappush(self._due, (t_ns, self._count, act))

    def run(self, until_ns: int, ends: Callable[[], bool] | None = None) -> None:
        """Let time pass until an instant, or until `ends` returns True."""
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
    """A process whose threads are frozen until `frozen_ns`, which delays due functions. `stood`: when the process was
    frozen."""

    def __init__(self, time: SimTimeline) -> None:
        self.time = time
        self.frozen_ns = 0
        self.stood: list[tuple[int, int]] = []

    def freeze(self, for_ns: int) -> None:
        now = self.time.now_ns
        self.frozen_ns = max(self.frozen_ns, now + for_ns)
        self.stood.append((now, self.frozen_ns))

    def at(self, t_ns: int, act: Act) -> None:
        """Call a function at an instant on a thread of the process."""
        self.time.at(t_ns, lambda: self._do(act))

    def _do(self, act: Act) -> None:
        if self.time.now_ns < self.frozen_ns:
            self.at(self.frozen_ns, act)
        else:
            act()


class Thread:
    """A thread with the counts of the kernel. A ready thread waits until `starved_ns`, and `delayed_ns` grows by this
    time when the thread runs. `ready_ns`: since when the thread waits for a processor (0: it does not wait). `away`:
    when the thread was ready and did not run, or was in user code."""

    def __init__(self, process: Process, chance: random.Random) -> None:
        self.process, self._chance = process, chance
        self.starved_ns = 0
        self.ready_ns = self.ran_ns = self.delayed_ns = 0
        self.away: list[tuple[int, int]] = []

    def wakes_ns(self) -> int:
        """Return when a thread will run that becomes ready now."""
        now = self.process.time.now_ns
        if now < self.starved_ns:
            self.ready_ns = now
            self.away.append((now, self.starved_ns))
            return self.starved_ns
        return now + 5 * US + int(self._chance.random() * 55_000)

    def arrives(self) -> None:
        """Give the thread a processor, and count how long it had none."""
        if self.ready_ns:
            self.delayed_ns += self.process.time.now_ns - self.ready_ns
            self.ready_ns = 0

    def pause(self, for_ns: int) -> None:
        """Keep the thread working for so long, while everything else happens on the simulation's stack."""
        time = self.process.time
        self.ran_ns += for_ns
        time.run(time.now_ns + for_ns)
        self.thaw()

    def thaw(self) -> None:
        time, process = self.process.time, self.process
        while time.now_ns < process.frozen_ns:
            time.run(process.frozen_ns)

    def sleep(self, until_ns: int, ends: Callable[[], bool]) -> None:
        """Wait until an instant or until `ends` returns True, and then for a processor."""
        time = self.process.time
        time.run(until_ns, ends)
        time.run(self.wakes_ns())
        self.arrives()
        self.thaw()

    @property
    def schedstat(self) -> bytes:
        return b"%d %d 1\n" % (self.ran_ns, self.delayed_ns)
