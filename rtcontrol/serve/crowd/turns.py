"""Who of a crowd is decided for now, who waits, and who cannot be met."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import NamedTuple

from rtcontrol.hosts.scheduler import EdfScheduler
from rtcontrol.serve.crowd.member import MemberTick

MOST = 8  # periods of a member to whom nothing happens
# Members of one rate, seen in one message, are released at so many instants of their period: a batch of a quarter of
# them takes a quarter of the time until the last one's call, and little more of the decoder's in all.
PHASES = 4
# A batch is expected to take this much of the time that is left: one that takes twice as long is still in time, and one
# that is late costs a miss of everybody in it.
MARGIN = 0.5


def stretched(stretch: int) -> int:
    """The periods until the next tick, after one more decision that changed nothing."""
    return min(2 * stretch, MOST)


class CrowdTurn(NamedTuple):
    """`hopeless` ones cannot be decided in time, not even alone; the `batch` is asked for together."""

    hopeless: list[MemberTick]
    batch: list[MemberTick]
    waiting: list[MemberTick]


def urgency(tick: MemberTick) -> tuple[int, int, int, int]:
    """The earliest deadline, then the priority; of equals whoever was asked for longest ago."""
    member = tick.member
    return tick.deadline_ns, -member.terms.priority, member.served, member.serial


def choose(waiting: Sequence[MemberTick], now_ns: int, expected: Callable[[int], float], most: int) -> CrowdTurn:
    """As many of the most urgent as are expected to be decided within MARGIN of the time to the earliest deadline among
    them, `most` at most; `expected` nanoseconds of so many together. At least one, before its deadline: what was slow
    once would else never be tried again.

    Where not all can be in time, those of the lowest priority wait, whenever their deadlines are.
    """
    ordered = sorted(waiting, key=urgency)
    alone = expected(1)
    first = next((i for i, tick in enumerate(ordered) if now_ns + alone <= tick.deadline_ns), len(ordered))
    if first == len(ordered) and ordered and now_ns < ordered[-1].deadline_ns:
        first -= 1
    hopeless = ordered[:first]
    left, later = in_time(ordered[first:], now_ns, expected)
    count = min(1, len(left))
    while count < min(len(left), most) and expected(count + 1) <= MARGIN * (left[0].deadline_ns - now_ns):
        count += 1
    return CrowdTurn(hopeless, left[:count], [*left[count:], *later])


def in_time(
    ordered: Sequence[MemberTick], now_ns: int, expected: Callable[[int], float]
) -> tuple[list[MemberTick], list[MemberTick]]:
    """Of these, by deadline, as many as are in time if they are decided in this order, and the others: whenever one
    more would be late, the one of the lowest priority among them, whoever had its turn last, gives way."""
    kept: list[tuple[int, int, int, MemberTick]] = []
    later: list[MemberTick] = []
    for i, tick in enumerate(ordered):
        heapq.heappush(kept, (tick.member.terms.priority, -tick.member.served, i, tick))
        if len(kept) > 1 and now_ns + expected(len(kept)) > tick.deadline_ns:
            later.append(heapq.heappop(kept)[3])
    return [tick for _, _, _, tick in sorted(kept, key=itemgetter(2))], later


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
