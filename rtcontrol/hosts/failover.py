"""Two deciders for one session (`--backup`): the first one's answers count where they are there in time and sure; a
backup decides all else in the time that is left."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rtcontrol.hosts.plan_host import RECENT, PlanHost, due_of
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, Host, HostEvent

log = logging.getLogger("rtcontrol.host")

# A request that is not answered by then is lost, and another may be under way in its place.
GIVE_UP_NS = 2_000_000_000
# After so many failures in a row it is asked only so often, until it answers again.
FAILURES, RETRY_NS = 8, 1_000_000_000


@dataclass(frozen=True, slots=True)
class Handover:
    """When the backup decides: where the first one's answer to this tick is late, or its least sure head is below
    `below`. At most `in_flight` requests to the first one are under way; a tick beyond is not asked of it."""

    below: float
    period_ns: int
    in_flight: int


@dataclass(slots=True, eq=False)
class PendingQuestion:
    """What the loop asked, the `n`th call of its tick. Until `due_ns` the first one may be waited for. `answer` is its
    reply, `spare` the backup's. `waited`: the loop waits for its one reply."""

    request: DecisionRequest
    asked_ns: int
    due_ns: int
    n: int
    incarnation: int
    asked: bool = False
    judged: bool = False
    waited: bool = True
    sure: bool = False
    answer: DecisionReply | None = None
    spare: DecisionReply | None = None

    @property
    def failed(self) -> bool:
        """Whether the backup did."""
        return self.spare is not None and self.spare.decision is None

    @property
    def fresh(self) -> bool:
        """Whether its time is not over."""
        within_ns = self.request.within_ns
        return not within_ns or time.monotonic_ns() <= self.asked_ns + within_ns


class FirstDecider:
    """Asks `host`. Each answer is an event (`emit`: its instant, and the event's fields), whatever becomes of it;
    `notify` is told once that it fails, and once that it is back. The owner may set both."""

    def __init__(self, host: Host, terms: Handover) -> None:
        self.emit: Callable[[int, dict[str, Any]], None] = lambda t_ns, event: None
        self.notify: Callable[[str], None] = log.warning
        self.host, self._terms = host, terms
        self._asked: dict[int, PendingQuestion] = {}  # not answered yet, by the number that they were asked under
        self._punctual: deque[bool] = deque(maxlen=RECENT)
        self._failures = self._tried_ns = 0
        self._failing = False

    @property
    def expected(self) -> bool:
        """Whether it is usually in time."""
        return 2 * sum(self._punctual) >= len(self._punctual)

    def ask(self, number: int, question: PendingQuestion) -> None:
        """Unless so many requests are under way, or it is lost, or fails."""
        now = question.asked_ns
        resting = self._failures >= FAILURES and now - self._tried_ns < RETRY_NS
        if resting or len(self._asked) >= self._terms.in_flight or not self.host.alive():
            return
        self._tried_ns = now
        question.asked, self._asked[number] = True, question
        try:
            within_ns = _patience_ns(question)
            if isinstance(self.host, PlanHost):  # it is patient itself, and has a step by when it is waited for
                within_ns = max(question.due_ns - now, 0)
            self.host.submit(replace(question.request, tick=number, within_ns=within_ns))
        except Exception as error:
            self._answered(DecisionReply(number, None, f"{type(error).__name__}: {error}", 0), now)

    def hear(self, now_ns: int) -> None:
        """Take in whatever it has answered."""
        while self._asked and (reply := self.host.wait(0)) is not None:
            self._answered(reply, now_ns)

    def lose(self, now_ns: int) -> None:
        """Give up what it will not answer any more, and see what it was late for."""
        alive, incarnation = self.host.alive(), self.host.incarnation
        for number, question in tuple(self._asked.items()):
            if now_ns > self._by_ns(question):
                self._judge(question, False)
            if not alive or question.incarnation != incarnation:
                why = "the first decider was lost"
            elif now_ns - question.asked_ns > _patience_ns(question):
                self.host.cancel(number)
                why = f"no answer within {_patience_ns(question) / 1e9:g} s"
            else:
                continue
            self._answered(DecisionReply(number, None, why, 0), now_ns, "lost")

    def _answered(self, reply: DecisionReply, now_ns: int, outcome: str = "failed") -> None:
        """Its answer to a question, or the `outcome` of one that it has none to."""
        if (question := self._asked.pop(reply.tick, None)) is None:
            return  # it was given up
        decision, request = reply.decision, question.request
        ended_ns = reply.begun_ns + reply.decide_ns if reply.begun_ns else now_ns
        event: dict[str, Any] = {"first": request.tick, **({"n": question.n} if question.n else {})}
        event["answer_ms"] = round((ended_ns - question.asked_ns) / 1e6, 4)
        question.answer = reply
        if decision is None:
            event |= {"error": reply.error} | ({"loss": reply.loss} if reply.loss else {})
        else:
            least = min(decision.confidence.values(), default=1.0)
            question.sure = least >= self._terms.below
            outcome = "in_time" if question.waited and question.fresh else "late"
            event["answer"] = None if decision.call is None else decision.call.to_dict()
            event["confidence"] = round(least, 4)
            if not question.sure:
                outcome = "unsure"
        self._judge(question, decision is not None and ended_ns <= self._by_ns(question))
        self._count(None if decision is not None else reply.error or "no answer")
        if request.tick >= 0:  # else it is warmed up
            self.emit(ended_ns, event | {"outcome": outcome})

    def _by_ns(self, question: PendingQuestion) -> int:
        """When it is late; in the warm-up, which nobody waits for it in, after a period."""
        return question.due_ns or question.asked_ns + self._terms.period_ns

    def _judge(self, question: PendingQuestion, punctual: bool) -> None:
        if not question.judged:
            question.judged = True
            self._punctual.append(punctual)

    def _count(self, error: str | None) -> None:
        """Failures in a row: `error` is what this one's was."""
        self._failures = 0 if error is None else self._failures + 1
        if self._failures >= FAILURES and not self._failing:
            self._failing = True
            self.notify(
                f"the first decider failed {FAILURES} times in a row ({error}): the backup decides; the first one is "
                f"asked every {RETRY_NS / 1e9:g} s"
            )
        elif not self._failures and self._failing:
            self._failing = False
            self.notify("the first decider answers again")


def _patience_ns(question: PendingQuestion) -> int:
    """For how long its answer is waited for, if only for a row."""
    return max(GIVE_UP_NS, 2 * question.request.within_ns)


FIRST, BACKUP = "first", "backup"
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
        self._open: dict[int, PendingQuestion] = {}  # not replied to yet, by the number that both were asked under
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
        first, now = self.first, time.monotonic_ns()
        first.hear(now)
        first.lose(now)
        due_ns = due_of(now, request.within_ns)
        self._calls[request.tick] = n = self._calls.get(request.tick, -1) + 1
        number = request.tick
        if n:
            self._number = number = self._number + 1
        self._open[number] = question = PendingQuestion(request, now, due_ns, n, first.host.incarnation)
        if len(self._calls) > MOST:
            del self._calls[next(iter(self._calls))]
        if len(self._open) > MOST:
            del self._open[next(iter(self._open))]
        first.ask(number, question)
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
        return self._backup.alive() or ((self._alone or self.first.expected) and self.first.host.alive())

    def cancel(self, tick: int) -> None:
        # The first one goes on: what it answers late is worth a row.
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

    def _chosen(self, question: PendingQuestion, now_ns: int) -> DecisionReply | None:
        """The question's reply, once it is known."""
        answer, spare = question.answer, question.spare
        if not question.waited:
            return spare  # only how late it was is told
        if answer is not None and question.sure:
            return replace(answer, by=FIRST)
        if self._awaited(question, now_ns):
            return None
        if spare is None and answer is not None and not self._backup.alive():
            return replace(answer, by=FIRST)  # unsure, or an error: there is nobody else
        return spare

    def _awaited(self, question: PendingQuestion, now_ns: int) -> bool:
        """Whether the first one's answer is still waited for."""
        out = question.asked and question.answer is None and now_ns < question.due_ns
        return out and (self.first.expected or question.failed)

    def _watched(self, question: PendingQuestion) -> bool:
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
