"""Two deciders for one session (`--backup`): the first one's answers count where they are there in time and sure; a
backup decides all else in the time that is left."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rtcontrol.hosts.base import DecisionReply, DecisionRequest, Host, HostEvent
from rtcontrol.hosts.first import FirstAsked, FirstDecider, Handover

FIRST, BACKUP = "first", "backup"
# What is left of the time when the first one is waited for no longer: the backup's answer, there by then, has to act.
RESERVE, LEAST_NS = 8, 1_000_000
# While the first one is waited for it is looked at so often.
POLL_NS = 500_000
# Further calls of a tick are asked for under numbers of their own: an answer to the call before is none to them.
FURTHER = 1 << 40
MOST = 256  # ticks and questions that are remembered


class BackupHost:
    """Asks both at once: so the backup is there when it is needed, and what the first one takes delays nobody. Of each
    question one reply is given, by whoever decides; where neither does in time the loop's own fallback acts.

    The backup's answer is given at once, unless the first one is usually in time and its answer may still come.
    """

    name = "backup"

    def __init__(self, first: Host, backup: Host, terms: Handover) -> None:
        self.incarnation = 0
        self.events: list[HostEvent] = []
        self.gave_up: str | None = None
        self.first = FirstDecider(first, terms)
        self._backup = backup
        self._open: dict[int, FirstAsked] = {}  # not replied to yet, by the number that both were asked under
        self._calls: dict[int, int] = {}  # by tick: how many were asked for before
        self._number = FURTHER
        self._noted = {FIRST: 0, BACKUP: 0}
        self._gone: set[str] = set()
        self._woken = False

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        info = self.first.host.start(stopped)
        return {} if stopped() else {**info, BACKUP: self._backup.start(stopped)}

    @property
    def shares(self) -> deque[float]:
        """Of the backup's decisions, which are made in any case."""
        return self._backup.shares

    @property
    def threads(self) -> Sequence[tuple[int, int]]:
        """Those that every tick depends on."""
        return self.first.host.threads if self._alone else self._backup.threads

    def submit(self, request: DecisionRequest) -> None:
        self._look()
        first, now, within = self.first, time.monotonic_ns(), request.within_ns
        first.hear(now)
        first.lose(now)
        due_ns = now + within - max(within // RESERVE, LEAST_NS) if within else 0
        self._calls[request.tick] = n = self._calls.get(request.tick, -1) + 1
        number = request.tick
        if n:
            self._number = number = self._number + 1
        self._open[number] = question = FirstAsked(request, now, due_ns, n, first.host.incarnation)
        if len(self._calls) > MOST:
            del self._calls[next(iter(self._calls))]
        if len(self._open) > MOST:
            del self._open[next(iter(self._open))]
        first.ask(number, question)
        if not self._awaited(question, now):
            question.older = first.take_older(question, now)
        if question.older is None:
            try:
                self._backup.submit(replace(request, tick=number))
            except Exception as error:  # the first one may decide still
                question.spare = DecisionReply(number, None, f"{type(error).__name__}: {error}", 0)

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        now = time.monotonic_ns()
        until = now + timeout_ns
        self._look()
        while True:
            self.first.hear(now)
            for number, question in self._open.items():
                if (reply := self._chosen(question, now)) is not None:
                    question.waited = False
                    del self._open[number]
                    return replace(reply, tick=question.request.tick)
            left = until - now
            if left > POLL_NS and any(self._watched(question) for question in self._open.values()):
                left = POLL_NS
            spare = self._backup.wait(left)
            now = time.monotonic_ns()
            if spare is not None:
                if (asked := self._open.get(spare.tick)) is not None:
                    asked.spare = replace(spare, by=BACKUP)
            elif now >= until or self._woken:
                self._woken = False
                return None

    def wake(self) -> None:
        self._woken = True  # a wait of the backup's that ends early may be the end of a short look
        self._backup.wake()

    def alive(self) -> bool:
        """Whether a tick can be decided in time: without the backup, only where the first one is expected to."""
        self._look()
        return self._backup.alive() or ((self._alone or self.first.decides) and self.first.host.alive())

    def cancel(self, tick: int) -> None:
        # The first one goes on: what it answers late is worth a row, and may decide a later tick.
        for number, question in self._open.items():
            if question.request.tick == tick:
                question.waited = False
                self._backup.cancel(number)

    @property
    def _alone(self) -> bool:
        """Whether the first one is left alone for good."""
        return self._backup.gave_up is not None

    def close(self) -> None:
        try:
            self._backup.close()
        finally:
            self.first.host.close()

    def _chosen(self, question: FirstAsked, now_ns: int) -> DecisionReply | None:
        """The question's reply, once it is known."""
        answer, spare = question.answer, question.spare
        if not question.waited:
            return spare  # only how late it was is told
        if answer is not None and question.sure:
            return replace(answer, by=FIRST)
        if self._awaited(question, now_ns):
            return None
        older = question.older = question.older or self.first.take_older(question, now_ns)
        if older is not None and older.answer is not None:
            # Its stamps are of another tick.
            return replace(older.answer, by=FIRST, answers=older.request, received_ns=0, begun_ns=0, gaps=())
        if spare is None and answer is not None and not self._backup.alive():
            return replace(answer, by=FIRST)  # unsure, or an error: there is nobody else
        return spare

    def _awaited(self, question: FirstAsked, now_ns: int) -> bool:
        """Whether the first one's answer is still waited for."""
        out = question.asked and question.answer is None and now_ns < question.due_ns
        return out and (self.first.expected or question.failed)

    def _watched(self, question: FirstAsked) -> bool:
        """Whether an answer of the first one would be given at once."""
        out = question.asked and question.answer is None and question.waited
        return out and (self.first.expected or question.failed or not self._backup.alive())

    def _look(self) -> None:
        """What befell either of them."""
        first, backup = self.first.host, self._backup
        for who, host in ((FIRST, first), (BACKUP, backup)):
            if len(host.events) > self._noted[who]:
                self.events += [replace(event, decider=who) for event in host.events[self._noted[who] :]]
                self._noted[who] = len(host.events)
            if host.gave_up is not None and who not in self._gone:
                self._gone.add(who)
                name, other = ("first decider", "backup") if who == FIRST else ("backup", "first decider")
                self.first.notify(
                    f"the {name} is lost for good ({host.gave_up}): from now on the {other} alone decides"
                )
        # What is asked is lost with the backup: it has to decide whatever the first one does not.
        self.incarnation = backup.incarnation + (first.incarnation if self._alone else 0)
        self.gave_up = backup.gave_up if first.gave_up else None
