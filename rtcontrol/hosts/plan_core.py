"""Which step of which plan answers a tick, while the next plan is made.

Each tick is answered at once by the step of the active plan that is due; where there is none, or the plan for the tick
itself is usually there in time, by that one. What is no plan, or has one step, is handed on as it came. Step `i` is for
the instant `i * step_ns` after the plan's observation: one that comes late begins in its midst.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rtcontrol.hosts.host_events import (
    Action,
    Cancel,
    Cancelled,
    Changed,
    Event,
    HostView,
    Replied,
    Reply,
    Report,
    Requested,
    Submit,
)
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, HostEvent
from rtcontrol.models.call import Call, Decision, Plan

PLANNER = "planner"
RECENT = 16  # a plan, or a first decider, is waited for while half of so many answers came in time
# What is left of a tick's time when that is waited for no longer: the active step, or the backup's, has to act.
RESERVE, LEAST_NS = 8, 1_000_000
MOST = 64  # ticks that are remembered


@dataclass(frozen=True, slots=True)
class PlanTerms:
    """No step of a plan is executed when its observation is older than `max_age_ns`. Where two plans meet the newer one
    counts from its first step on. At most `in_flight` plans are made at once. Where the world `waits` each tick has a
    plan of its own, of which the first step is executed."""

    max_age_ns: int
    in_flight: int = 1
    waits: bool = False


@dataclass(slots=True, eq=False)
class OpenTick:
    """What the loop asked; `reply` is the planner's to it. Until `due_ns` it may be waited for (0: for ever)."""

    request: DecisionRequest
    asked_ns: int
    due_ns: int
    reply: DecisionReply | None = None
    waited: bool = True
    past: bool = False  # its epoch, or its instruction, is over


@dataclass(slots=True, eq=False)
class ActivePlan:
    """The plan that answers `request`."""

    plan: Plan
    request: DecisionRequest
    decision: Decision

    def step(self, tick: OpenTick, max_age_ns: int, now_ns: int) -> int | None:
        """Return which of its calls is due now; None where it is of another epoch or instruction, over, or too old."""
        if not tick.due_ns:
            return 0 if self.request is tick.request else None
        age_ns = now_ns - self.request.captured_ns
        if _scope(tick.request) != _scope(self.request) or not 0 <= age_ns <= max_age_ns:
            return None
        i = age_ns // self.plan.step_ns
        return i if i < len(self.plan.calls) else None


def due_of(now_ns: int, within_ns: int) -> int:
    """Return until when a question of this time may wait for a better answer; 0: for ever."""
    return now_ns + within_ns - max(within_ns // RESERVE, LEAST_NS) if within_ns else 0


def _scope(request: DecisionRequest) -> tuple[int, str]:
    return request.epoch, request.instruction


def _steps(decision: Decision) -> int:
    return 1 if decision.plan is None else len(decision.plan.calls)


class PlanCore:
    """The ticks of one session over one PLANNER. `legal` judges a call. Every plan is reported."""

    main = PLANNER
    sleepers = (PLANNER,)

    def __init__(self, terms: PlanTerms, legal: Callable[[Call], bool]) -> None:
        self._terms, self._legal = terms, legal
        self._open: dict[int, OpenTick] = {}  # not replied to yet
        self._pending: dict[int, OpenTick] = {}  # not answered by the planner yet
        self._plan: ActivePlan | None = None
        self._punctual: deque[bool] = deque(maxlen=RECENT)
        self._view = HostView()
        self._now_ns = 0

    def advance(self, event: Event, now_ns: int) -> list[Action]:
        """Take an event; return what to do."""
        self._now_ns = now_ns
        actions: list[Action] = []
        if isinstance(event, Requested):
            actions = self._ask(event.request, now_ns)
        elif isinstance(event, Replied):
            actions = self._answered(event.reply, now_ns)
        elif isinstance(event, Cancelled):
            self._cancel(event.tick)
        elif isinstance(event, Changed):
            self._view = event.views[PLANNER]
        return actions + self._decided(now_ns)

    @property
    def incarnation(self) -> int:
        return self._view.incarnation

    @property
    def events(self) -> list[HostEvent]:
        return self._view.events

    @property
    def gave_up(self) -> str | None:
        return self._view.gave_up

    @property
    def alive(self) -> bool:
        return self._view.alive

    @property
    def polled(self) -> tuple[str, ...]:
        return (PLANNER,) if self._pending else ()

    @property
    def watching(self) -> bool:
        return False

    @property
    def wake_ns(self) -> int | None:
        """When the active plan's step acts in the place of a plan that is not there."""
        dues = (tick.due_ns for tick in self._open.values() if tick.waited and tick.due_ns > self._now_ns)
        return min(dues, default=None)

    def _ask(self, request: DecisionRequest, now_ns: int) -> list[Action]:
        actions = self._give_up(now_ns)
        within_ns = request.within_ns
        due_ns = 0 if self._terms.waits else due_of(now_ns, within_ns)
        self._open[request.tick] = tick = OpenTick(request, now_ns, due_ns)
        for pending in self._pending.values():
            pending.past = pending.past or _scope(pending.request) != _scope(request)
        for remembered in (self._open, self._pending):
            if len(remembered) > MOST:
                del remembered[next(iter(remembered))]
        under_way = sum(not pending.past for pending in self._pending.values())
        if under_way < self._terms.in_flight and self.alive:
            self._pending[request.tick] = tick
            # What comes later than its deadline may serve ticks to come, as long as its observation may.
            patience_ns = self._patience_ns(within_ns) if within_ns else 0
            actions.append(Submit(PLANNER, replace(request, within_ns=patience_ns)))
        return actions

    def _give_up(self, now_ns: int) -> list[Action]:
        """Forget what the planner lost, or cannot answer in time for any tick."""
        actions: list[Action] = []
        for k, tick in tuple(self._pending.items()):
            within_ns = tick.request.within_ns
            late = within_ns and now_ns - tick.asked_ns > 2 * self._patience_ns(within_ns)
            if late or not self.alive:
                actions.append(Cancel(PLANNER, k))
                del self._pending[k]
        return actions

    def _patience_ns(self, within_ns: int) -> int:
        return max(within_ns, self._terms.max_age_ns)

    def _cancel(self, k: int) -> None:
        # Its plan goes on being made: it may serve ticks to come. It only tells how late it was.
        if (tick := self._open.get(k)) is not None:
            tick.waited = False
            if k not in self._pending:
                del self._open[k]

    def _answered(self, reply: DecisionReply, now_ns: int) -> list[Action]:
        tick = self._pending.pop(reply.tick, None)
        if tick is None:
            return []
        tick.reply = reply
        self._punctual.append(not tick.due_ns or now_ns <= tick.due_ns)
        fields: dict[str, Any] = {"plan": reply.tick, "plan_ms": round((now_ns - tick.asked_ns) / 1e6, 4)}
        outcome = self._outcome(reply, tick, now_ns)
        return [] if outcome is None or reply.tick < 0 else [Report(now_ns, fields | outcome)]

    def _outcome(self, reply: DecisionReply, tick: OpenTick, now_ns: int) -> dict[str, Any] | None:
        """Return what to report of an answer, None for a call or a plan of one step; activate a newer plan."""
        decision = reply.decision
        if decision is None:
            return {"outcome": "failed", "error": reply.error} | ({"loss": reply.loss} if reply.loss else {})
        plan = decision.plan
        if plan is None and decision.call is not None and not self._legal(decision.call):
            return {"outcome": "failed", "loss": "invalid", "error": decision.call.text()}
        if plan is None or len(plan.calls) < 2 or reply.tick < 0:
            return None
        made = ActivePlan(plan, tick.request, decision)
        newer = self._plan is None or tick.request.tick > self._plan.request.tick
        active = newer and not tick.past and self._step(made, tick, now_ns) is not None
        if active:
            self._plan = made
        return {"outcome": "in_force" if active else "over", "steps": len(plan.calls)}

    def _decided(self, now_ns: int) -> list[Action]:
        """Reply to every tick whose call is known."""
        actions: list[Action] = []
        for k, tick in tuple(self._open.items()):
            reply = self._chosen(tick, now_ns)
            if reply is not None:
                del self._open[k]
                actions.append(Reply(reply))
        return actions

    def _chosen(self, tick: OpenTick, now_ns: int) -> DecisionReply | None:
        """Return the tick's reply, once it is known."""
        answer = tick.reply
        decision = None if answer is None else answer.decision
        if answer is not None and (not tick.waited or tick.request.tick < 0):
            return answer
        if decision is not None and _steps(decision) < 2:
            return answer
        if not tick.waited or (answer is None and self._awaited(tick, now_ns)):
            return None
        plan = self._plan
        i = None if plan is None else self._step(plan, tick, now_ns)
        if plan is None or i is None:
            if answer is None or decision is None:
                return answer
            return replace(answer, decision=None, error="the plan was over, or too old, before it came")
        return _reply(plan, i, tick)

    def _step(self, plan: ActivePlan, tick: OpenTick, now_ns: int) -> int | None:
        return plan.step(tick, self._terms.max_age_ns, now_ns)

    def _awaited(self, tick: OpenTick, now_ns: int) -> bool:
        """Return whether the tick's plan is waited for still."""
        punctual = 2 * sum(self._punctual) >= len(self._punctual)
        return tick.request.tick in self._pending and (not tick.due_ns or (punctual and now_ns < tick.due_ns))


def _reply(plan: ActivePlan, i: int, tick: OpenTick) -> DecisionReply:
    """Return the tick's reply: step `i` of the plan, which may answer an older request."""
    same = plan.request is tick.request
    reply = tick.reply if tick.reply is not None and same else DecisionReply(tick.request.tick, None, None, 0)
    return replace(
        reply,
        decision=replace(plan.decision, call=plan.plan.calls[i], plan=None),
        answers=None if same else plan.request,
        steps=(i, len(plan.plan.calls)),
        ahead_ns=i * plan.plan.step_ns,
    )
