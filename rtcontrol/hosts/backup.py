"""Decide by two deciders (`host.backup`): the backup decides if the first decider's answer is late or not confident.

Each request goes to both deciders, so the backup's answer is ready when it is needed, and a slow first decider delays
nothing. Each request gets one reply. If no answer comes in time, the loop's fallback acts. The backup's answer is
returned at once, unless the first decider is usually in time and may still answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rtcontrol.hosts.layered_core import (
    FURTHER,
    RECENT,
    Ask,
    LayeredCore,
    Notify,
    PendingRequest,
    Report,
    Status,
    Withdraw,
    due_of,
    is_usual,
    remember,
)
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest

FIRST, BACKUP = "first", "backup"
NAMES = {FIRST: "first decider", BACKUP: "backup"}
# A request that has no answer after this time counts as lost, and another request may take its place.
GIVE_UP_NS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Handover:
    """The rule by which the backup decides: the first answer is late, or a head's confidence is less than `below`.

    At most `in_flight` requests to the first decider are pending; further ticks go to the backup alone. `plans`: the
    first decider's answers are steps of plans."""

    below: float
    period_ns: int
    in_flight: int
    plans: bool = False


@dataclass(slots=True, eq=False)
class PairedRequest(PendingRequest):
    """A request for the `n`th call of a tick. `answer` is the first decider's reply, `spare` the backup's.

    `sent`: the first decider got the request. `confident`: each of that decider's heads is confident enough. An answer
    after `late_ns` is late."""

    n: int = 0
    late_ns: int = 0
    sent: bool = False
    confident: bool = False
    spare: DecisionReply | None = None

    @property
    def patience_ns(self) -> int:
        """How long to wait for the first decider's answer, if only for the record."""
        return max(GIVE_UP_NS, 2 * self.request.within_ns)

    @property
    def failed(self) -> bool:
        """Whether the backup failed."""
        return self.spare is not None and self.spare.decision is None

    @property
    def pending(self) -> bool:
        """Whether the first decider has yet to answer."""
        return self.sent and self.answer is None


class BackupCore(LayeredCore):
    """Choose between the answers of FIRST and BACKUP. Each answer of FIRST is reported, whether or not it is used."""

    def __init__(self, terms: Handover) -> None:
        super().__init__("backup", NAMES, BACKUP)
        self.recent: deque[bool] = deque(maxlen=RECENT)  # whether the first decider was in time
        self._terms = terms
        self._pending: dict[int, PairedRequest] = {}  # the first decider's open requests, by number
        self._calls: dict[int, int] = {}  # by tick: how many calls were requested before

    def info(self, infos: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        return {**infos[FIRST], BACKUP: infos[BACKUP]}

    @property
    def watching(self) -> bool:  # type: ignore[override]
        """Whether an answer of the first decider would be used as soon as it comes."""
        useful = is_usual(self.recent) or not self.status[BACKUP].alive
        return any(q.pending and q.waited and (useful or q.failed) for q in self.open.values())

    def requested(self, request: DecisionRequest, now_ns: int) -> None:
        for number, question in tuple(self._pending.items()):
            if now_ns - question.sent_ns > question.patience_ns:
                self.do(Withdraw(FIRST, number))
                self._lost(number, f"no answer within {question.patience_ns / 1e9:g} s", now_ns)
        n = self._calls.get(request.tick, -1) + 1
        remember(self._calls, request.tick, n)
        number = n * FURTHER + request.tick  # the answer to the previous call must not match
        due_ns = due_of(now_ns, request.within_ns)
        # In the warm-up nothing waits for an answer, which is late after one period.
        question = PairedRequest(request, now_ns, due_ns, n=n, late_ns=due_ns or now_ns + self._terms.period_ns)
        remember(self.open, number, question)
        self._ask_first(number, question, now_ns)
        self.do(Ask(BACKUP, replace(request, tick=number)))

    def _ask_first(self, number: int, question: PairedRequest, now_ns: int) -> None:
        """Ask the first decider, unless that decider is lost or has too many requests already."""
        if len(self._pending) >= self._terms.in_flight or not self.status[FIRST].alive:
            return
        question.sent, self._pending[number] = True, question
        # A planner always has a step of a plan ready by the end of the wait.
        within_ns = max(question.due_ns - now_ns, 0) if self._terms.plans else question.patience_ns
        self.do(Ask(FIRST, replace(question.request, tick=number, within_ns=within_ns)))

    def replied(self, name: str, reply: DecisionReply, now_ns: int) -> None:
        if name == FIRST:
            self._answered(reply, now_ns)
        elif (question := self.open.get(reply.tick)) is not None:
            question.spare = reply

    def _lost(self, number: int, why: str, now_ns: int) -> None:
        self._answered(DecisionReply(number, None, why, 0), now_ns, "lost")

    def _answered(self, reply: DecisionReply, now_ns: int, outcome: str = "failed") -> None:
        """Record the first decider's answer, or the `outcome` of a request without an answer."""
        question = self._pending.pop(reply.tick, None)
        if question is None:
            return  # the request was given up
        request, decision = question.request, reply.decision
        ended_ns = reply.begun_ns + reply.decide_ns if reply.begun_ns else now_ns
        fields: dict[str, Any] = {"first": request.tick, **({"n": question.n} if question.n else {})}
        fields["answer_ms"] = round((ended_ns - question.sent_ns) / 1e6, 4)
        question.answer = reply
        if decision is None:
            fields |= {"error": reply.error} | ({"loss": reply.loss} if reply.loss else {})
        else:
            least = min(decision.confidence.values(), default=1.0)
            question.confident = least >= self._terms.below
            fields["answer"] = None if decision.call is None else decision.call.to_dict()
            fields["confidence"] = round(least, 4)
            outcome = _outcome(question, now_ns)
        self.recent.append(decision is not None and ended_ns <= question.late_ns)
        if request.tick >= 0:
            self.do(Report(ended_ns, fields | {"outcome": outcome}))

    def cancelled(self, tick: int) -> None:
        # The first decider continues: its late answer still gets a row in the record.
        for number, question in self.open.items():
            if question.request.tick == tick:
                question.waited = False
                self.do(Withdraw(BACKUP, number))

    def changed(self, before: Mapping[str, Status], now_ns: int) -> None:
        """Act on the new status of the deciders."""
        for name, status in self.status.items():
            new = status.events[len(before[name].events) :]
            self.state.events += [replace(event, decider=name) for event in new]
            if status.gave_up is not None and before[name].gave_up is None:
                other = NAMES[BACKUP if name == FIRST else FIRST]
                text = f"the {NAMES[name]} is lost for good ({status.gave_up}): from now on the {other} alone decides"
                self.do(Notify(text))
        first, backup = self.status[FIRST], self.status[BACKUP]
        self.state.up = first.alive or backup.alive
        # If the backup is lost, so are its pending requests: it decides whatever the first decider does not.
        self.state.incarnation = backup.incarnation
        self.state.gave_up = backup.gave_up if first.gave_up else None
        if not first.alive or first.incarnation != before[FIRST].incarnation:
            for number in tuple(self._pending):
                self._lost(number, "the first decider was lost", now_ns)

    def has_other(self, question: PairedRequest) -> bool:
        return question.pending and question.spare is not None

    def chosen(self, question: PairedRequest, now_ns: int) -> DecisionReply | None:
        reply = self._best(question, now_ns)
        if reply is None:
            return None
        return replace(reply, tick=question.request.tick, by=FIRST if reply is question.answer else BACKUP)

    def _best(self, question: PairedRequest, now_ns: int) -> DecisionReply | None:
        """Return the answer to use, or None while it is not known yet."""
        answer, spare = question.answer, question.spare
        if not question.waited:
            return spare  # this reply only shows how late the answer was
        if answer is not None and question.confident:
            return answer
        if question.pending and now_ns < question.due_ns and (is_usual(self.recent) or question.failed):
            return None
        if spare is None and not self.status[BACKUP].alive:
            return answer  # not confident, or an error
        return spare


def _outcome(question: PairedRequest, now_ns: int) -> str:
    if not question.confident:
        return "unsure"
    within_ns = question.request.within_ns
    fresh = not within_ns or now_ns <= question.sent_ns + within_ns
    return "in_time" if question.waited and fresh else "late"
