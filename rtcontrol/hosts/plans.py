"""Execute the calls of a plan (several calls in one answer of a decider) step by step, one step per tick.

Step `i` is due `i * step_ns` after the observation from which the plan was made. So a plan that arrives late starts at
a later step. A tick gets the due step of the active plan at once, while the decider computes the next plan. If no step
is due, or if plans usually arrive in time, the tick waits for the plan for its observation, and gets the first step. An
answer with a single call is used unchanged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rtcontrol.hosts.layered_core import (
    RECENT,
    CancelRequest,
    LayeredCore,
    PendingRequest,
    RecordFields,
    Status,
    SubmitRequest,
    add_bounded,
    reply_due_ns,
    usually_in_time,
)
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest
from rtcontrol.models.call import Call, Decision, Plan

PLANNER = "planner"
Scope = tuple[int, str]


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """Settings for executing plans. No step acts if the plan's observation is older than `max_age_ns`.

    A newer plan replaces the active plan as soon as it arrives. `in_flight`: the maximum number of pending plans.
    `waits`: the world waits for decisions, so each tick gets the first step of the plan for its observation."""

    max_age_ns: int
    in_flight: int = 1
    waits: bool = False


@dataclass(slots=True, eq=False)
class ActivePlan:
    """The plan that is being executed, the `request` for this plan, and the `decision` that contains it."""

    plan: Plan
    request: DecisionRequest
    decision: Decision

    def step(self, tick: PendingRequest, max_age_ns: int, now_ns: int) -> int | None:
        """Return the index of the step that is due for `tick`, or None if the plan is over, too old, or for another
        epoch or instruction."""
        if not tick.due_ns:
            return 0 if self.request is tick.request else None
        age_ns = now_ns - self.request.captured_ns
        if scope_of(tick.request) != scope_of(self.request) or not 0 <= age_ns <= max_age_ns:
            return None
        i = age_ns // self.plan.step_ns
        return i if i < len(self.plan.calls) else None

    def reply(self, tick: PendingRequest, i: int) -> DecisionReply:
        """Return the reply to `tick` with step `i` of the plan, which may be the plan of an older request."""
        same = self.request is tick.request
        reply = tick.answer if tick.answer is not None and same else DecisionReply(tick.request.tick, None, None, 0)
        return replace(
            reply,
            decision=replace(self.decision, call=self.plan.calls[i], plan=None),
            older_request=None if same else self.request,
            steps=(i, len(self.plan.calls)),
            ahead_ns=i * self.plan.step_ns,
        )


def scope_of(request: DecisionRequest) -> Scope:
    """Return the epoch and the instruction of a request. A plan acts only for requests with the same scope."""
    return request.epoch, request.instruction


class PlanCore(LayeredCore):
    """The core of PlanHost: answer requests by steps of plans from PLANNER. `legal` returns whether a call is valid."""

    def __init__(self, settings: PlanSettings, legal: Callable[[Call], bool]) -> None:
        super().__init__("plans", [PLANNER], PLANNER)
        self._settings, self._legal = settings, legal
        self._pending: dict[int, PendingRequest] = {}  # by tick: requests that the planner has not answered
        self._plan: ActivePlan | None = None
        self._scope: Scope | None = None  # scope of the newest request
        self._recent: deque[bool] = deque(maxlen=RECENT)  # for each of the last plans: whether it was in time

    def on_request(self, request: DecisionRequest, now_ns: int) -> None:
        self._cancel_old_requests(now_ns)
        within_ns = request.within_ns
        tick = PendingRequest(request, now_ns, 0 if self._settings.waits else reply_due_ns(now_ns, within_ns))
        add_bounded(self.open, request.tick, tick)
        self._scope = scope_of(request)
        requested = sum(scope_of(pending.request) == self._scope for pending in self._pending.values())
        if requested < self._settings.in_flight and self.state.up:
            add_bounded(self._pending, request.tick, tick)
            # Wait longer than the tick's deadline: later ticks may use the plan, until it is too old.
            patience_ns = self._patience_ns(within_ns) if within_ns else 0
            self.add_actions(SubmitRequest(PLANNER, replace(request, within_ns=patience_ns)))

    def _cancel_old_requests(self, now_ns: int) -> None:
        """Cancel requests to the planner if the planner was lost, or if the plan would be too old for any tick."""
        for k, tick in tuple(self._pending.items()):
            within_ns = tick.request.within_ns
            late = within_ns and now_ns - tick.sent_ns > 2 * self._patience_ns(within_ns)
            if late or not self.state.up:
                self.add_actions(CancelRequest(PLANNER, k))
                del self._pending[k]

    def _patience_ns(self, within_ns: int) -> int:
        """Return how long to wait for a plan after its request."""
        return max(within_ns, self._settings.max_age_ns)

    def on_cancel(self, tick: int) -> None:
        # Do not cancel the request to the planner: later ticks may use the plan, and the record contains its lateness.
        if (pending := self.open.get(tick)) is not None:
            pending.awaited = False
            if tick not in self._pending:
                del self.open[tick]

    def on_status(self, before: Mapping[str, Status], now_ns: int) -> None:
        state, planner = self.state, self.status[PLANNER]
        state.up, state.incarnation, state.gave_up = planner.alive, planner.incarnation, planner.gave_up
        state.events = list(planner.events)

    def on_reply(self, name: str, reply: DecisionReply, now_ns: int) -> None:
        tick = self._pending.pop(reply.tick, None)
        if tick is None:
            return
        tick.answer = reply
        self._recent.append(not tick.due_ns or now_ns <= tick.due_ns)
        fields: dict[str, Any] = {"plan": reply.tick, "plan_ms": round((now_ns - tick.sent_ns) / 1e6, 4)}
        outcome = self._use_answer(reply, tick, now_ns)
        if outcome is not None and reply.tick >= 0:
            self.add_actions(RecordFields(now_ns, fields | outcome))

    def _use_answer(self, reply: DecisionReply, tick: PendingRequest, now_ns: int) -> dict[str, Any] | None:
        """Activate the plan of an answer if it is newer than the active plan. Return the answer's fields for the
        record, or None if the answer is a single call."""
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
            and new.step(tick, self._settings.max_age_ns, now_ns) is not None
        )
        if active:
            self._plan = new
        return {"outcome": "in_force" if active else "over", "steps": len(plan.calls)}

    def choose_reply(self, tick: PendingRequest, now_ns: int) -> DecisionReply | None:
        answer = tick.answer
        decision = None if answer is None else answer.decision
        single = decision is not None and (decision.plan is None or len(decision.plan.calls) < 2)
        if answer is not None and (single or not tick.awaited or tick.request.tick < 0):
            return answer
        if not tick.awaited or (answer is None and self._may_be_in_time(tick, now_ns)):
            return None
        plan = self._plan
        i = None if plan is None else plan.step(tick, self._settings.max_age_ns, now_ns)
        if plan is not None and i is not None:
            return plan.reply(tick, i)
        if answer is None or decision is None:
            return answer
        return replace(answer, decision=None, error="the plan was over, or too old, when it arrived")

    def _may_be_in_time(self, tick: PendingRequest, now_ns: int) -> bool:
        """Return whether the plan that was requested for this tick may still arrive in time."""
        in_time = not tick.due_ns or (usually_in_time(self._recent) and now_ns < tick.due_ns)
        return in_time and tick.request.tick in self._pending
