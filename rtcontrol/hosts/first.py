"""The first of two deciders: its requests overlap, within a bound, and its answers may come long after their ticks."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rtcontrol.hosts.base import DecisionReply, DecisionRequest, Host

log = logging.getLogger("rtcontrol.host")

# It is waited for while it was in time for half of so many requests.
RECENT = 16
# A request that is not answered by then is lost, and another may be under way in its place.
GIVE_UP_NS = 2_000_000_000
# After so many failures in a row it is asked only so often, until it answers again.
FAILURES, RETRY_NS = 8, 1_000_000_000


@dataclass(frozen=True, slots=True)
class Handover:
    """When the backup decides: where the first one's least sure head is below `below`, or its newest answer is of an
    observation `after_ns` old or older (with the period: of any tick but the one at hand). At most `in_flight` requests
    to the first one are under way; a tick beyond is not asked of it."""

    below: float
    after_ns: int
    period_ns: int
    in_flight: int


@dataclass(slots=True, eq=False)
class FirstAsked:
    """What the loop asked, the `n`th call of its tick. Until `due_ns` the first one may be waited for. `answer` is its
    reply, `spare` the backup's, `older` an older question whose answer decides this one, too. `waited`: the loop waits
    for its one reply."""

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
    older: FirstAsked | None = None

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
        self._asked: dict[int, FirstAsked] = {}  # not answered yet, by the number that they were asked under
        self._ready: FirstAsked | None = None  # the newest whose answer decided nothing; none of the warm-up
        self._newest = -1
        self._punctual: deque[bool] = deque(maxlen=RECENT)
        self._failures = self._tried_ns = 0
        self._failing = False

    @property
    def expected(self) -> bool:
        """Whether it is usually in time."""
        return 2 * sum(self._punctual) >= len(self._punctual)

    @property
    def decides(self) -> bool:
        """Whether its answers may decide at all: it is in time, or older ones may."""
        return self.expected or self._terms.after_ns > self._terms.period_ns

    def ask(self, number: int, question: FirstAsked) -> None:
        """Unless so many requests are under way, or it is lost, or fails."""
        now = question.asked_ns
        resting = self._failures >= FAILURES and now - self._tried_ns < RETRY_NS
        if resting or len(self._asked) >= self._terms.in_flight or not self.host.alive():
            return
        self._tried_ns = now
        question.asked, self._asked[number] = True, question
        try:
            self.host.submit(replace(question.request, tick=number, within_ns=_patience_ns(question)))
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

    def take_older(self, question: FirstAsked, now_ns: int) -> FirstAsked | None:
        """An older question whose answer is young enough to decide this one, too: of the same epoch, under the same
        instruction. It decides no other."""
        ready, asked = self._ready, question.request
        if ready is None or question.n or not question.fresh:
            return None
        older = ready.request
        # In ticks too: a world that waits stands still while they take their time.
        age_ns = max(now_ns - older.captured_ns, (asked.tick - older.tick) * self._terms.period_ns)
        same = older.epoch == asked.epoch and older.instruction == asked.instruction
        if not same or older.tick >= asked.tick or age_ns >= self._terms.after_ns:
            return None
        self._ready = None
        return ready

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
            elif not (question.waited or question.n) and request.tick > self._newest:
                self._ready, self._newest = question, request.tick
        self._judge(question, decision is not None and ended_ns <= self._by_ns(question))
        self._count(None if decision is not None else reply.error or "no answer")
        if request.tick >= 0:  # else it is warmed up
            self.emit(ended_ns, event | {"outcome": outcome})

    def _by_ns(self, question: FirstAsked) -> int:
        """When it is late; in the warm-up, which nobody waits for it in, after a period."""
        return question.due_ns or question.asked_ns + self._terms.period_ns

    def _judge(self, question: FirstAsked, punctual: bool) -> None:
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


def _patience_ns(question: FirstAsked) -> int:
    """For how long its answer is waited for, if only for a row."""
    return max(GIVE_UP_NS, 2 * question.request.within_ns)
