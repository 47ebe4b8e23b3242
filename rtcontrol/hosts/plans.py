"""Execute plans step by step, while the next plan is made.

A tick gets the due step of the active plan at once. If no step is due, or if plans usually come in time, the tick gets
the first step of its own plan. A call, or a plan of one step, passes unchanged. Step `i` is for the instant
`i * step_ns` after the plan's observation: a plan that comes late starts at a later step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rtcontrol.hosts.layered_core import (
    RECENT,
    Ask,
    LayeredCore,
    PendingRequest,
    Report,
    Status,
    Withdraw,
    due_of,
    is_usual,
    remember,
)
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest
from rtcontrol.models.call import Call, Decision, Plan

PLANNER = "planner"
Scope = tuple[int, str]


@dataclass(frozen=True, slots=True)
class PlanTerms:
    """Settings for executing plans: no step acts once the plan's observation is older than `max_age_ns`.

    A newer plan replaces the older one as soon as it arrives. At most `in_flight` plans are requested at once. If the
    world `waits`, each tick executes the first step of its own plan.
    """

    max_age_ns: int
    in_flight: int = 1
    waits: bool = False


@dataclass(slots=True, eq=False)
class ActivePlan:
    """The plan that answers `request`."""

    plan: Plan
    request: DecisionRequest
    decision: Decision

    def step(self, tick: PendingRequest, max_age_ns: int, now_ns: int) -> int | None:
        """Return the index of the call that is due; None if the plan is over, too old, or outside the tick's scope."""
        if not tick.due_ns:
            return 0 if self.request is tick.request else None
        age_ns = now_ns - self.request.captured_ns
        if scope_of(tick.request) != scope_of(self.request) or not 0 <= age_ns <= max_age_ns:
            return None
        i = age_ns // self.plan.step_ns
        return i if i < len(self.plan.calls) else None

    def reply(self, tick: PendingRequest, i: int) -> DecisionReply:
        """Return the tick's reply: step `i`, which may answer an older request."""
        same = self.request is tick.request
        reply = tick.answer if tick.answer is not None and same else DecisionReply(tick.request.tick, None, None, 0)
        return replace(
            reply,
            decision=replace(self.decision, call=self.plan.calls[i], plan=None),
            answers=None if same else self.request,
            steps=(i, len(self.plan.calls)),
            ahead_ns=i * self.plan.step_ns,
        )


def scope_of(request: DecisionRequest) -> Scope:
    """Return the epoch and the instruction of a request: a plan acts only where both are the same."""
    return request.epoch, request.instruction


class PlanCore(LayeredCore):
    """Answer the ticks of a session by the plans of PLANNER, and report each plan. `legal` says if a call is valid."""

    def __init__(self, terms: PlanTerms, legal: Callable[[Call], bool]) -> None:
        super().__init__("plans", [PLANNER], PLANNER)
        self._terms, self._legal = terms, legal
        self._pending: dict[int, PendingRequest] = {}  # not answered by the planner yet
        self._plan: ActivePlan | None = None
        self._scope: Scope | None = None  # the scope of the newest request
        self._recent: deque[bool] = deque(maxlen=RECENT)  # whether plans were in time

    def requested(self, request: DecisionRequest, now_ns: int) -> None:
        self._give_up(now_ns)
        within_ns = request.within_ns
        tick = PendingRequest(request, now_ns, 0 if self._terms.waits else due_of(now_ns, within_ns))
        remember(self.open, request.tick, tick)
        self._scope = scope_of(request)
        under_way = sum(scope_of(pending.request) == self._scope for pending in self._pending.values())
        if under_way < self._terms.in_flight and self.state.up:
            remember(self._pending, request.tick, tick)
            # A plan that comes after the deadline may still serve later ticks, until its observation is too old.
            patience_ns = self._patience_ns(within_ns) if within_ns else 0
            self.do(Ask(PLANNER, replace(request, within_ns=patience_ns)))

    def _give_up(self, now_ns: int) -> None:
        """Withdraw requests that are lost or too late for any tick."""
        for k, tick in tuple(self._pending.items()):
            within_ns = tick.request.within_ns
            late = within_ns and now_ns - tick.sent_ns > 2 * self._patience_ns(within_ns)
            if late or not self.state.up:
                self.do(Withdraw(PLANNER, k))
                del self._pending[k]

    def _patience_ns(self, within_ns: int) -> int:
        return max(within_ns, self._terms.max_age_ns)

    def cancelled(self, tick: int) -> None:
        # Its plan may still serve later ticks. Its reply only shows how late it was.
        if (question := self.open.get(tick)) is not None:
            question.waited = False
            if tick not in self._pending:
                del self.open[tick]

    def changed(self, before: Mapping[str, Status], now_ns: int) -> None:
        state, planner = self.state, self.status[PLANNER]
        state.up, state.incarnation, state.gave_up = planner.alive, planner.incarnation, planner.gave_up
        state.events = list(planner.events)

    def replied(self, name: str, reply: DecisionReply, now_ns: int) -> None:
        tick = self._pending.pop(reply.tick, None)
        if tick is None:
            return
        tick.answer = reply
        self._recent.append(not tick.due_ns or now_ns <= tick.due_ns)
        fields: dict[str, Any] = {"plan": reply.tick, "plan_ms": round((now_ns - tick.sent_ns) / 1e6, 4)}
        outcome = self._outcome(reply, tick, now_ns)
        if outcome is not None and reply.tick >= 0:
            self.do(Report(now_ns, fields | outcome))

    def _outcome(self, reply: DecisionReply, tick: PendingRequest, now_ns: int) -> dict[str, Any] | None:
        """Return what to report about an answer (None: a call or a plan of one step), and activate a newer plan."""
        decision = reply.decision
        if decision is None:
            return {"outcome": "failed", "error": reply.error} | ({"loss": reply.loss} if reply.loss else {})
        plan = decision.plan
        if plan is None and decision.call is not None and not self._legal(decision.call):
            return {"outcome": "failed", "loss": "invalid", "error": decision.call.text()}
        if plan is None or len(plan.calls) < 2 or reply.tick < 0:
            return None
        new = ActivePlan(plan, tick.request, decision)
        newer = self._plan is None or tick.request.tick > self._plan.request.tick
        active = (
            newer
            and scope_of(tick.request) == self._scope
            and new.step(tick, self._terms.max_age_ns, now_ns) is not None
        )
        if active:
            self._plan = new
        return {"outcome": "in_force" if active else "over", "steps": len(plan.calls)}

    def chosen(self, tick: PendingRequest, now_ns: int) -> DecisionReply | None:
        answer = tick.answer
        decision = None if answer is None else answer.decision
        single = decision is not None and (decision.plan is None or len(decision.plan.calls) < 2)
        if answer is not None and (single or not tick.waited or tick.request.tick < 0):
            return answer
        if not tick.waited or (answer is None and self._is_awaited(tick, now_ns)):
            return None
        plan = self._plan
        i = None if plan is None else plan.step(tick, self._terms.max_age_ns, now_ns)
        if plan is not None and i is not None:
            return plan.reply(tick, i)
        if answer is None or decision is None:
            return answer
        return replace(answer, decision=None, error="the plan was over, or too old, before it came")

    def _is_awaited(self, tick: PendingRequest, now_ns: int) -> bool:
        """Return whether the tick's plan may still come in time."""
        in_time = not tick.due_ns or (is_usual(self._recent) and now_ns < tick.due_ns)
        return in_time and tick.request.tick in self._pending
