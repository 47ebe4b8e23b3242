"""Use the answer of a backup decider (`host.backup`) if the first decider's answer is late or not confident.

BackupCore sends each request of the loop to both deciders, and returns one reply. While the first decider is usually in
time, the core waits for it; otherwise it returns the backup's answer at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rtcontrol.hosts.layered_core import (
    FURTHER,
    RECENT,
    CancelRequest,
    LayeredCore,
    Notify,
    PendingRequest,
    RecordFields,
    Status,
    SubmitRequest,
    add_bounded,
    reply_due_ns,
    usually_in_time,
)
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest

FIRST, BACKUP = "first", "backup"
NAMES = {FIRST: "first decider", BACKUP: "backup"}
# A request counts as lost if the first decider does not answer it within this time.
GIVE_UP_NS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class BackupRule:
    """The rule for using the backup's answer: the first decider is late, or has less confidence than `below` in a head.

    `in_flight`: how many requests to the first decider may be pending; further requests go only to the backup. `plans`:
    whether the first decider's answers are steps of plans."""

    below: float
    period_ns: int
    in_flight: int
    plans: bool = False


@dataclass(slots=True, eq=False)
class PairedRequest(PendingRequest):
    """A request for the `n`th call of a tick, which was sent to the backup, and if `sent` also to the first decider.

    `answer`: the first decider's reply. `confident`: whether this reply is confident enough. `late_ns`: the instant
    after which the reply counts as late."""

    n: int = 0
    late_ns: int = 0
    sent: bool = False
    confident: bool = False
    backup_answer: DecisionReply | None = None

    @property
    def patience_ns(self) -> int:
        """Return how long to wait for the first decider's answer, even if only to record how late it is."""
        return max(GIVE_UP_NS, 2 * self.request.within_ns)

    @property
    def backup_failed(self) -> bool:
        """Return whether the backup replied without a decision."""
        return self.backup_answer is not None and self.backup_answer.decision is None

    @property
    def first_is_pending(self) -> bool:
        """Return whether the first decider has the request, and has not answered yet."""
        return self.sent and self.answer is None


class BackupCore(LayeredCore):
    """The core of BackupHost: choose between the answers of FIRST and BACKUP, and record each answer of FIRST."""

    def __init__(self, rule: BackupRule) -> None:
        super().__init__("backup", NAMES, BACKUP)
        self.recent: deque[bool] = deque(maxlen=RECENT)  # whether each of the first decider's last answers was in time
        self._rule = rule
        self._pending: dict[int, PairedRequest] = {}  # by number: requests that the first decider has not answered
        self._call_counts: dict[int, int] = {}  # by tick: the number of the last requested call

    def info(self, infos: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        return {**infos[FIRST], BACKUP: infos[BACKUP]}

    @property
    def polls_often(self) -> bool:  # type: ignore[override]
        """Return whether an answer of the first decider would be used as soon as it arrives."""
        useful = usually_in_time(self.recent) or not self.status[BACKUP].alive
        return any(q.first_is_pending and q.awaited and (useful or q.backup_failed) for q in self.open.values())

    def on_request(self, request: DecisionRequest, now_ns: int) -> None:
        for number, paired in tuple(self._pending.items()):
            if now_ns - paired.sent_ns > paired.patience_ns:
                self.add_actions(CancelRequest(FIRST, number))
                self._record_lost(number, f"no answer within {paired.patience_ns / 1e9:g} s", now_ns)
        n = self._call_counts.get(request.tick, -1) + 1
        add_bounded(self._call_counts, request.tick, n)
        number = n * FURTHER + request.tick  # each call of a tick gets a unique number
        due_ns = reply_due_ns(now_ns, request.within_ns)
        # The answer to a warm-up request, which has no deadline, counts as late after one period.
        paired = PairedRequest(request, now_ns, due_ns, n=n, late_ns=due_ns or now_ns + self._rule.period_ns)
        add_bounded(self.open, number, paired)
        self._submit_to_first(number, paired, now_ns)
        self.add_actions(SubmitRequest(BACKUP, replace(request, tick=number)))

    def _submit_to_first(self, number: int, paired: PairedRequest, now_ns: int) -> None:
        """Send a request to the first decider, unless that decider is lost or has too many pending requests."""
        if len(self._pending) >= self._rule.in_flight or not self.status[FIRST].alive:
            return
        paired.sent, self._pending[number] = True, paired
        # If the first decider makes plans, it answers by `due_ns` even if the new plan is not ready (by an older plan).
        within_ns = max(paired.due_ns - now_ns, 0) if self._rule.plans else paired.patience_ns
        self.add_actions(SubmitRequest(FIRST, replace(paired.request, tick=number, within_ns=within_ns)))

    def on_reply(self, name: str, reply: DecisionReply, now_ns: int) -> None:
        if name == FIRST:
            self._record_answer(reply, now_ns)
        elif (paired := self.open.get(reply.tick)) is not None:
            paired.backup_answer = reply

    def _record_lost(self, number: int, why: str, now_ns: int) -> None:
        self._record_answer(DecisionReply(number, None, why, 0), now_ns, "lost")

    def _record_answer(self, reply: DecisionReply, now_ns: int, outcome: str = "failed") -> None:
        """Record the first decider's answer. `outcome`: what to record if the answer has no decision."""
        paired = self._pending.pop(reply.tick, None)
        if paired is None:
            return  # ignore the answer: the request already counts as lost
        request, decision = paired.request, reply.decision
        ended_ns = reply.started_ns + reply.decide_ns if reply.started_ns else now_ns
        fields: dict[str, Any] = {"first": request.tick, **({"n": paired.n} if paired.n else {})}
        fields["answer_ms"] = round((ended_ns - paired.sent_ns) / 1e6, 4)
        paired.answer = reply
        if decision is None:
            fields |= {"error": reply.error} | ({"loss": reply.loss} if reply.loss else {})
        else:
            lowest = min(decision.confidence.values(), default=1.0)
            paired.confident = lowest >= self._rule.below
            fields["answer"] = None if decision.call is None else decision.call.to_dict()
            fields["confidence"] = round(lowest, 4)
            outcome = _answer_outcome(paired, now_ns)
        self.recent.append(decision is not None and ended_ns <= paired.late_ns)
        if request.tick >= 0:
            self.add_actions(RecordFields(ended_ns, fields | {"outcome": outcome}))

    def on_cancel(self, tick: int) -> None:
        # Do not cancel the request to the first decider, because its late answer must be recorded.
        for number, paired in self.open.items():
            if paired.request.tick == tick:
                paired.awaited = False
                self.add_actions(CancelRequest(BACKUP, number))

    def on_status(self, before: Mapping[str, Status], now_ns: int) -> None:
        """Handle a new status: add the deciders' events, and record the pending requests of a lost first decider."""
        for name, status in self.status.items():
            new = status.events[len(before[name].events) :]
            self.state.events += [replace(event, decider=name) for event in new]
            if status.gave_up is not None and before[name].gave_up is None:
                other = NAMES[BACKUP if name == FIRST else FIRST]
                text = f"the {NAMES[name]} cannot be restarted ({status.gave_up}): from now on only the {other} decides"
                self.add_actions(Notify(text))
        first, backup = self.status[FIRST], self.status[BACKUP]
        self.state.up = first.alive or backup.alive
        # A restarted backup has lost its requests. The loop sends them again when the incarnation changes.
        self.state.incarnation = backup.incarnation
        self.state.gave_up = backup.gave_up if first.gave_up else None
        if not first.alive or first.incarnation != before[FIRST].incarnation:
            for number in tuple(self._pending):
                self._record_lost(number, "the first decider was lost", now_ns)

    def has_other_answer(self, paired: PairedRequest) -> bool:
        return paired.first_is_pending and paired.backup_answer is not None

    def choose_reply(self, paired: PairedRequest, now_ns: int) -> DecisionReply | None:
        reply = self._best_answer(paired, now_ns)
        if reply is None:
            return None
        return replace(reply, tick=paired.request.tick, decided_by=FIRST if reply is paired.answer else BACKUP)

    def _best_answer(self, paired: PairedRequest, now_ns: int) -> DecisionReply | None:
        """Return the answer to use, or None to wait."""
        answer, backup_answer = paired.answer, paired.backup_answer
        if not paired.awaited:
            return backup_answer  # the tick is over; the loop uses this late reply only as evidence
        if answer is not None and paired.confident:
            return answer
        useful = usually_in_time(self.recent) or paired.backup_failed
        if useful and paired.first_is_pending and now_ns < paired.due_ns:
            return None
        if backup_answer is None and not self.status[BACKUP].alive:
            return answer  # without a backup, use this answer even if it is unsure or an error
        return backup_answer


def _answer_outcome(paired: PairedRequest, now_ns: int) -> str:
    if not paired.confident:
        return "unsure"
    within_ns = paired.request.within_ns
    fresh = not within_ns or now_ns <= paired.sent_ns + within_ns
    return "in_time" if paired.awaited and fresh else "late"
