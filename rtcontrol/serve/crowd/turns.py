"""What is due when, and who of a crowd is decided for now, who waits, and who cannot be met. Pure."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from rtcontrol.hosts.scheduler import EdfScheduler
from rtcontrol.serve.crowd.members import MemberTick

# Members of one rate, seen in one message, are released at so many instants of their period: a batch of a quarter of
# them takes a quarter of the time until the last one's call, and little more of the decoder's in all.
PHASES = 4
# A batch is expected to take this much of the time that is left: one that takes twice as long is still in time, and one
# that is late costs a miss of everybody in it.
MARGIN = 0.5


class Agenda:
    """What is to be done, by the instant when it is due."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self._numbers = itertools.count()

    def at(self, t_ns: int, do: Callable[[Any], None], subject: Any) -> None:
        heapq.heappush(self._heap, (t_ns, next(self._numbers), do, subject))

    def run(self, now_ns: int) -> None:
        """Do what is due."""
        while self._heap and self._heap[0][0] <= now_ns:
            _, _, do, subject = heapq.heappop(self._heap)
            do(subject)

    @property
    def next_ns(self) -> int | None:
        return self._heap[0][0] if self._heap else None


def choose(waiting: Sequence[MemberTick], now_ns: int, expected: Callable[[int], float], most: int) -> list[MemberTick]:
    """Return the ticks to decide together: of those that can be in time, as many as are expected to be decided within
    MARGIN of the time to the earliest deadline among them, `most` at most; `expected` nanoseconds of so many.

    The earliest deadlines come first. Where not all can be in time, the highest priority does, then the member that was
    served longest ago. If none can be in time, the latest deadline is tried: what was slow once would else never be
    tried again.
    """
    able = [tick for tick in waiting if now_ns + expected(1) <= tick.deadline_ns]
    able = able or sorted((tick for tick in waiting if now_ns < tick.deadline_ns), key=lambda t: t.deadline_ns)[-1:]
    if not able:
        return []
    time_for_all = now_ns + expected(len(able)) <= max(tick.deadline_ns for tick in able)

    def urgency(tick: MemberTick) -> tuple[int, ...]:
        member = tick.member
        turn = -member.terms.priority, member.served
        return (tick.deadline_ns, *turn) if time_for_all else (*turn, tick.deadline_ns)

    ordered = sorted(able, key=urgency)
    earliest, count = ordered[0].deadline_ns, 1
    while count < min(len(ordered), most):
        earliest = min(earliest, ordered[count].deadline_ns)
        if expected(count + 1) > MARGIN * (earliest - now_ns):
            break
        count += 1
    return ordered[:count]


class BatchTimes:
    """What batches take, and how large one may be: halved after one that was late, and growing after one that was not,
    twofold until the first was late, then by an eighth. A batch that is always late would else be tried for ever."""

    def __init__(self) -> None:
        self._times = EdfScheduler()
        self.most = 1
        self._growth = 1

    def took(self, count: int, ns: int, late: bool) -> None:
        """So many together took so long, `late` for the earliest of them."""
        self._times.took(None, count, ns)
        if late:
            self.most, self._growth = max(1, count // 2), 8
        elif count >= self.most:
            self.most = count + max(1, count // self._growth)

    def expected(self, count: int) -> float:
        """Nanoseconds of so many together."""
        return self._times.expected(None, count)
