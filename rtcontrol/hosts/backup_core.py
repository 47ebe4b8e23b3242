"""Which of two deciders' answers counts (`--backup`): the first one's where it is in time and confident, else the
backup's.

Both are asked at once, so the backup's answer is there when it is needed, and a slow first decider delays nothing. Each
request gets one reply, from either; where neither answers in time the loop's own fallback acts. The backup's answer is
given at once, unless the first decider is usually in time and its answer may still come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rtcontrol.hosts import host_core
from rtcontrol.hosts.host_core import Action, Cancel, HostView, Notify, Report, Submit, due_of, remember
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest

FIRST, BACKUP = "first", "backup"
NAMES = {FIRST: "first decider", BACKUP: "backup"}
# A request that is not answered by then is lost, and another may be under way in its place.
GIVE_UP_NS = 2_000_000_000
# After so many failures in a row it is asked only so often, until it answers again.
FAILURES, RETRY_NS = 8, 1_000_000_000
# Further calls of a tick are asked for under numbers of their own: an answer to the call before is none to them.
FURTHER = 1 << 40


@dataclass(frozen=True, slots=True)
class Handover:
    """When the backup decides: where the first decider's answer to this tick is late, or its least confident head is
    below `below`. At most `in_flight` requests to the first decider are under way; a tick beyond is not asked of it.
    With `plans` the first decider has a step of a plan by the instant until which it is waited for."""

    below: float
    period_ns: int
    in_flight: int
    plans: bool = False


@dataclass(slots=True, eq=False)
class Question(host_core.Question):
    """A request of the loop, the `n`th call of its tick. `answer` is the first decider's reply, `spare` the backup's;
    `incarnation` is the first one's when it was asked."""

    n: int = 0
    incarnation: int = 0
    asked: bool = False
    judged: bool = False
    sure: bool = False
    spare: DecisionReply | None = None

    @property
    def patience_ns(self) -> int:
        """How long the first decider's answer is waited for, if only for the record."""
        return max(GIVE_UP_NS, 2 * self.request.within_ns)

    @property
    def failed(self) -> bool:
        """Whether the backup did."""
        return self.spare is not None and self.spare.decision is None

    @property
    def pending(self) -> bool:
        """Whether the first decider has yet to answer."""
        return self.asked and self.answer is None


class FirstDecider:
    """What the first decider was asked, and how it does. Each answer is reported, whatever becomes of it."""

    def __init__(self, terms: Handover) -> None:
        self.pending: dict[int, Question] = {}  # by the number that it was asked under
        self._terms = terms
        self._punctual = host_core.Punctuality()
        self._failures = self._tried_ns = 0

    @property
    def expected(self) -> bool:
        """Whether it is usually in time."""
        return self._punctual.usual

    def ask(self, number: int, question: Question, alive: bool, now_ns: int) -> list[Action]:
        """Ask it, unless so many requests are under way, or it is lost, or fails."""
        resting = self._failures >= FAILURES and now_ns - self._tried_ns < RETRY_NS
        if resting or len(self.pending) >= self._terms.in_flight or not alive:
            return []
        self._tried_ns = now_ns
        question.asked, self.pending[number] = True, question
        within_ns = max(question.due_ns - now_ns, 0) if self._terms.plans else question.patience_ns
        return [Submit(FIRST, replace(question.request, tick=number, within_ns=within_ns))]

    def give_up(self, view: HostView, now_ns: int) -> list[Action]:
        """Give up what it will not answer any more, and note what it was late for."""
        actions: list[Action] = []
        for number, question in tuple(self.pending.items()):
            if now_ns > self._late_ns(question):
                self._judge(question, False)
            if not view.alive or question.incarnation != view.incarnation:
                why = "the first decider was lost"
            elif now_ns - question.asked_ns > question.patience_ns:
                actions.append(Cancel(FIRST, number))
                why = f"no answer within {question.patience_ns / 1e9:g} s"
            else:
                continue
            actions += self.answered(DecisionReply(number, None, why, 0), now_ns, "lost")
        return actions

    def answered(self, reply: DecisionReply, now_ns: int, outcome: str = "failed") -> list[Action]:
        """Take its answer to a question, or the `outcome` of one that it has none to."""
        question = self.pending.pop(reply.tick, None)
        if question is None:
            return []  # it was given up
        request, decision = question.request, reply.decision
        ended_ns = reply.begun_ns + reply.decide_ns if reply.begun_ns else now_ns
        fields: dict[str, Any] = {"first": request.tick, **({"n": question.n} if question.n else {})}
        fields["answer_ms"] = round((ended_ns - question.asked_ns) / 1e6, 4)
        question.answer = reply
        if decision is None:
            fields |= {"error": reply.error} | ({"loss": reply.loss} if reply.loss else {})
        else:
            least = min(decision.confidence.values(), default=1.0)
            question.sure = least >= self._terms.below
            fields["answer"] = None if decision.call is None else decision.call.to_dict()
            fields["confidence"] = round(least, 4)
            outcome = self._outcome(question, now_ns)
        self._judge(question, decision is not None and ended_ns <= self._late_ns(question))
        self._failures = 0 if decision is not None else self._failures + 1
        return [] if request.tick < 0 else [Report(ended_ns, fields | {"outcome": outcome})]

    def _outcome(self, question: Question, now_ns: int) -> str:
        if not question.sure:
            return "unsure"
        within_ns = question.request.within_ns
        fresh = not within_ns or now_ns <= question.asked_ns + within_ns
        return "in_time" if question.waited and fresh else "late"

    def _late_ns(self, question: Question) -> int:
        """When it is late; in the warm-up, where no one waits for it, after a period."""
        return question.due_ns or question.asked_ns + self._terms.period_ns

    def _judge(self, question: Question, punctual: bool) -> None:
        if not question.judged:
            question.judged = True
            self._punctual.note(punctual)


class BackupCore(host_core.WaitingCore[Question]):
    """Two deciders of one session, FIRST and BACKUP."""

    name = "backup"

    def __init__(self, terms: Handover) -> None:
        super().__init__((FIRST, BACKUP), BACKUP)
        self.first = FirstDecider(terms)
        self._calls: dict[int, int] = {}  # by tick: how many were asked for before
        self._number = FURTHER

    def info(self, infos: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        return {**infos[FIRST], BACKUP: infos[BACKUP]}

    @property
    def alive(self) -> bool:
        return any(view.alive for view in self.views.values())

    @property
    def watching(self) -> bool:
        """Whether an answer of the first decider would be given at once."""
        useful = self.first.expected or not self.views[BACKUP].alive
        return any(q.pending and q.waited and (useful or q.failed) for q in self.open.values())

    def requested(self, request: DecisionRequest, now_ns: int) -> list[Action]:
        view = self.views[FIRST]
        actions = self.first.give_up(view, now_ns)
        n = self._calls.get(request.tick, -1) + 1
        remember(self._calls, request.tick, n)
        number = request.tick
        if n:
            self._number = number = self._number + 1
        due_ns = due_of(now_ns, request.within_ns)
        question = Question(request, now_ns, due_ns, n=n, incarnation=view.incarnation)
        remember(self.open, number, question)
        actions += self.first.ask(number, question, view.alive, now_ns)
        return [*actions, Submit(BACKUP, replace(request, tick=number) if n else request)]

    def replied(self, host: str, reply: DecisionReply, now_ns: int) -> list[Action]:
        if host == FIRST:
            return self.first.answered(reply, now_ns)
        if (question := self.open.get(reply.tick)) is not None:
            question.spare = reply
        return []

    def cancelled(self, tick: int) -> list[Action]:
        # The first decider goes on: what it answers late is worth a row.
        actions: list[Action] = []
        for number, question in self.open.items():
            if question.request.tick == tick:
                question.waited = False
                actions.append(Cancel(BACKUP, number))
        return actions

    def changed(self, views: Mapping[str, HostView], now_ns: int) -> list[Action]:
        """Note what befell either of them."""
        actions: list[Action] = []
        for name, view in views.items():
            noted = sum(event.decider == name for event in self.events)
            self.events += [replace(event, decider=name) for event in view.events[noted:]]
            if view.gave_up is not None and self.views[name].gave_up is None:
                other = NAMES[BACKUP if name == FIRST else FIRST]
                what = f"the {NAMES[name]} is lost for good ({view.gave_up}): from now on the {other} alone decides"
                actions.append(Notify(what))
        self.views = dict(views)
        first, backup = views[FIRST], views[BACKUP]
        # What is pending is lost with the backup: it has to decide whatever the first decider does not.
        self.incarnation = backup.incarnation
        self.gave_up = backup.gave_up if first.gave_up else None
        return actions + self.first.give_up(first, now_ns)

    def _has_other(self, question: Question) -> bool:
        return question.pending and question.spare is not None

    def _chosen(self, question: Question, now_ns: int) -> DecisionReply | None:
        reply = self._best(question, now_ns)
        if reply is None:
            return None
        return replace(reply, tick=question.request.tick, by=FIRST if reply is question.answer else BACKUP)

    def _best(self, question: Question, now_ns: int) -> DecisionReply | None:
        """Return the answer that counts, once it is known."""
        answer, spare = question.answer, question.spare
        if not question.waited:
            return spare  # it only tells how late it was
        if answer is not None and question.sure:
            return answer
        if question.pending and now_ns < question.due_ns and (self.first.expected or question.failed):
            return None
        if spare is None and answer is not None and not self.views[BACKUP].alive:
            return answer  # not confident, or an error: there is no one else
        return spare
