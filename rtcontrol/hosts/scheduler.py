"""Whose turn it is to be decided: earliest deadline first, and together what can be in time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

from rtcontrol.hosts.protocol import DecisionRequest

Turn = tuple[Any, DecisionRequest]
# A request that nobody limits has as much time, so that it does not wait behind the others for ever.
UNLIMITED_NS = 1_000_000_000
NEWEST = 0.1  # weight of the newest time of a number of decisions
# What so many later turns of its kind had no part in is no evidence any more, where there is a newer one.
OLD_TURNS = 64


class EdfScheduler:
    """The waiting requests: of each session the `depth` newest, in the place of the oldest. Without clock or lock."""

    def __init__(self, depth: int = 1) -> None:
        self._depth = depth
        self._waiting: dict[Any, deque[tuple[int, DecisionRequest]]] = {}  # with when each was asked
        self._since: dict[Any, int] = {}  # when the session began to wait
        self._took: dict[Hashable, dict[int, tuple[float, int]]] = {}  # by kind: ns of so many together, and when last
        self._turns: dict[Hashable, int] = {}  # of each kind, so far

    def put(self, key: Any, request: DecisionRequest, now_ns: int) -> None:
        """Add a session's request, in place of its oldest where `depth` wait."""
        self._waiting.setdefault(key, deque(maxlen=self._depth)).append((now_ns, request))
        self._since.setdefault(key, now_ns)

    def take(
        self,
        now_ns: int,
        kind: Callable[[Any], Hashable] = lambda key: None,
        patient: Callable[[Any], bool] = lambda key: False,
        late: bool = True,
    ) -> list[Turn]:
        """Return the newest request of the session whose time ends first, and those of others to decide with it.

        `kind`: only sessions of one kind are decided together (None: alone), as many as are expected to be decided
        while that request is waited for. Of `patient` sessions one, after all others, if `late`.
        """
        waiting = sorted((key for key, requests in self._waiting.items() if requests), key=self._end)
        eager = [key for key in waiting if not patient(key)]
        if not eager:
            return [self._pop(waiting[0], now_ns)] if waiting and late else []
        # Not the session's end: it is past for whoever missed ticks, and each decided alone all would go on missing.
        own, (asked, newest) = kind(eager[0]), self._waiting[eager[0]][-1]
        left = asked + _within(newest) - now_ns
        alike = eager[:1] if own is None else [key for key in eager if kind(key) == own]
        count = 1
        while count < len(alike) and self.expected(own, count + 1) <= left:
            count += 1
        return [self._pop(key, now_ns) for key in alike[:count]]

    def took(self, kind: Hashable, count: int, ns: int) -> None:
        """So many decisions of a kind together took so long."""
        times, turn = self._took.setdefault(kind, {}), self._turns.get(kind, 0) + 1
        before, last = times.get(count, (float(ns), turn))
        if turn - last > OLD_TURNS:
            before = float(ns)
        times[count], self._turns[kind] = (before + NEWEST * (ns - before), turn), turn

    def expected(self, kind: Hashable, count: int) -> float:
        """Nanoseconds of so many decisions together: at most as many times as long as fewer, so that a number that was
        slow once is tried again. One that was fast once counts as long as there is nothing newer."""
        since = self._turns.get(kind, 0) - OLD_TURNS
        found = [(ns * count / n, turn) for n, (ns, turn) in self._took.get(kind, {}).items() if n <= count]
        return min([ns for ns, turn in found if turn >= since] or [ns for ns, _ in found], default=0.0)

    def cancel(self, key: Any, tick: int) -> None:
        # The session keeps its place: with requests that are given up before their turn comes it would starve.
        for asked in self._waiting.get(key, ()):
            if asked[1].tick == tick:
                self._waiting[key].remove(asked)
                break

    def remove(self, key: Any) -> None:
        self._waiting.pop(key, None)
        self._since.pop(key, None)

    def _end(self, key: Any) -> int:
        return self._since[key] + _within(self._waiting[key][-1][1])

    def _pop(self, key: Any, now_ns: int) -> Turn:
        # The newest: an older one is overtaken, and will be dropped at its deadline.
        requests = self._waiting.pop(key)
        _, request = requests.pop()
        del self._since[key]
        if requests:
            self._waiting[key] = requests  # behind the others
            self._since[key] = now_ns
        return key, request


def _within(request: DecisionRequest) -> int:
    return request.within_ns or UNLIMITED_NS
