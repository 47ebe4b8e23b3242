"""Plans: an answer of several calls (a chunk) is executed step by step, while the next one is made."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, Host, HostEvent
from rtcontrol.models.call import Call, Decision, Plan

RECENT = 16  # a plan, or a first decider, is waited for while half of so many answers came in time
# What is left of a tick's time when that is waited for no longer: the step in force, or the backup's, has to act.
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
    """What the loop asked; `own` is the answer to it. Until `due_ns` it may be waited for (0: for ever)."""

    request: DecisionRequest
    asked_ns: int
    due_ns: int
    own: DecisionReply | None = None
    waited: bool = True
    past: bool = False  # its epoch, or its instruction, is over


@dataclass(slots=True, eq=False)
class PlanInForce:
    """The plan that answers `request`."""

    plan: Plan
    request: DecisionRequest
    decision: Decision

    def step(self, asked: DecisionRequest, terms: PlanTerms, now_ns: int) -> int | None:
        """Which of its calls is due now; None where it is of another epoch or instruction, over, or too old."""
        of = self.request
        age_ns = now_ns - of.captured_ns
        if _scope(asked) != _scope(of) or not 0 <= age_ns <= terms.max_age_ns:
            return None
        i = age_ns // self.plan.step_ns
        return i if i < len(self.plan.calls) else None


def due_of(now_ns: int, within_ns: int) -> int:
    """Until when a question of this time may wait for a better answer; 0: for ever."""
    return now_ns + within_ns - max(within_ns // RESERVE, LEAST_NS) if within_ns else 0


def _scope(request: DecisionRequest) -> tuple[int, str]:
    return request.epoch, request.instruction


class PlanHost:
    """Asks `planner`, and answers each tick at once by the step of the plan in force that is due; where there is none,
    or the plan for the tick itself is usually there in time, by that one. What is no plan, or has one step, is handed
    on as it came.

    Step `i` is for the instant `i * step_ns` after the plan's observation: one that comes late begins in its midst.
    `emit` is told of each plan (its instant, and the event's fields); the owner may set it. `legal` judges a call.
    """

    name = "plans"

    def __init__(self, planner: Host, terms: PlanTerms, legal: Callable[[Call], bool]) -> None:
        self.emit: Callable[[int, dict[str, Any]], None] = lambda t_ns, event: None
        self.planner, self._terms, self._legal = planner, terms, legal
        self._open: dict[int, OpenTick] = {}  # not replied to yet
        self._asked: dict[int, OpenTick] = {}  # of the planner, not answered yet
        self._plan: PlanInForce | None = None
        self._punctual: deque[bool] = deque(maxlen=RECENT)
        self._woken = False

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        return self.planner.start(stopped)

    @property
    def incarnation(self) -> int:
        return self.planner.incarnation

    @property
    def events(self) -> list[HostEvent]:
        return self.planner.events

    @property
    def gave_up(self) -> str | None:
        return self.planner.gave_up

    @property
    def shares(self) -> deque[float]:
        return self.planner.shares

    @property
    def threads(self) -> Sequence[tuple[int, int]]:
        return self.planner.threads

    def submit(self, request: DecisionRequest) -> None:
        now, within = time.monotonic_ns(), request.within_ns
        self._hear()
        self._lose(now)
        due_ns = 0 if self._terms.waits else due_of(now, within)
        self._open[request.tick] = asked = OpenTick(request, now, due_ns)
        for question in self._asked.values():
            question.past = question.past or _scope(question.request) != _scope(request)
        for each in (self._open, self._asked):
            if len(each) > MOST:
                del each[next(iter(each))]
        under_way = sum(not question.past for question in self._asked.values())
        if under_way < self._terms.in_flight and self.planner.alive():
            self._asked[request.tick] = asked
            # What comes later than its deadline may serve ticks to come, as long as its observation may.
            patience_ns = max(within, self._terms.max_age_ns) if within else 0
            self.planner.submit(replace(request, within_ns=patience_ns))

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        now = time.monotonic_ns()
        until = now + timeout_ns
        while True:
            self._hear()
            for tick, question in self._open.items():
                if (reply := self._chosen(question, now)) is not None:
                    del self._open[tick]
                    return reply
            if self._woken:  # what ends a wait may have been taken by `_hear`
                self._woken = False
                return None
            dues = (q.due_ns for q in self._open.values() if q.waited and now < q.due_ns)
            answer = self.planner.wait(min((until, *dues)) - now)
            now = time.monotonic_ns()
            if answer is not None:
                self._answered(answer)
            elif now >= until or self._woken:
                self._woken = False
                return None

    def wake(self) -> None:
        self._woken = True
        self.planner.wake()

    def alive(self) -> bool:
        return self.planner.alive()

    def cancel(self, tick: int) -> None:
        # Its plan goes on being made: it may serve ticks to come. Only how late it was is told then.
        if (question := self._open.get(tick)) is not None:
            question.waited = False
            if tick not in self._asked:
                del self._open[tick]

    def close(self) -> None:
        self.planner.close()

    def _hear(self) -> None:
        while self._asked and (reply := self.planner.wait(0)) is not None:
            self._answered(reply)

    def _lose(self, now_ns: int) -> None:
        """Nobody waits for what the planner lost, or cannot answer in time for any tick."""
        for tick, question in tuple(self._asked.items()):
            within_ns = question.request.within_ns
            if not self.planner.alive() or (within_ns and now_ns - question.asked_ns > 2 * self._patience(within_ns)):
                self.planner.cancel(tick)
                del self._asked[tick]

    def _patience(self, within_ns: int) -> int:
        return max(within_ns, self._terms.max_age_ns)

    def _answered(self, reply: DecisionReply) -> None:
        if (question := self._asked.pop(reply.tick, None)) is None:
            return
        now, request, decision = time.monotonic_ns(), question.request, reply.decision
        question.own = reply
        self._punctual.append(not question.due_ns or now <= question.due_ns)
        plan = None if decision is None else decision.plan
        event: dict[str, Any] = {"plan": request.tick, "plan_ms": round((now - question.asked_ns) / 1e6, 4)}
        if decision is None:
            event |= {"outcome": "failed", "error": reply.error} | ({"loss": reply.loss} if reply.loss else {})
        elif plan is None and decision.call is not None and not self._legal(decision.call):
            event |= {"outcome": "failed", "loss": "invalid", "error": decision.call.text()}
        elif plan is None or len(plan.calls) < 2 or request.tick < 0:
            return
        else:
            made = PlanInForce(plan, request, decision)
            newer = self._plan is None or request.tick > self._plan.request.tick
            over = question.past or self._due(made, question, now) is None
            event |= {"outcome": "over" if over or not newer else "in_force", "steps": len(plan.calls)}
            if newer and not over:
                self._plan = made
        if request.tick >= 0:  # else it is warmed up
            self.emit(now, event)

    def _chosen(self, question: OpenTick, now_ns: int) -> DecisionReply | None:
        """The tick's reply, once it is known."""
        own, asked = question.own, question.request
        decision = None if own is None else own.decision
        if own is not None and (not question.waited or asked.tick < 0):
            return own
        if decision is not None and (decision.plan is None or len(decision.plan.calls) < 2):
            return own
        if not question.waited or (own is None and self._awaited(question, now_ns)):
            return None
        plan = self._plan
        i = None if plan is None else self._due(plan, question, now_ns)
        if plan is None or i is None:
            if own is None or decision is None:
                return own
            return replace(own, decision=None, error="the plan was over, or too old, before it came")
        reply = own if own is not None and plan.request is asked else DecisionReply(asked.tick, None, None, 0)
        older = None if plan.request is asked else plan.request
        made = replace(plan.decision, call=plan.plan.calls[i], plan=None)
        steps = i, len(plan.plan.calls)
        return replace(reply, decision=made, answers=older, steps=steps, ahead_ns=i * plan.plan.step_ns)

    def _due(self, plan: PlanInForce, question: OpenTick, now_ns: int) -> int | None:
        """Which step of the plan is due for this tick."""
        if not question.due_ns:
            return 0 if plan.request is question.request else None
        return plan.step(question.request, self._terms, now_ns)

    def _awaited(self, question: OpenTick, now_ns: int) -> bool:
        """Whether the tick's own plan is waited for still."""
        punctual = 2 * sum(self._punctual) >= len(self._punctual)
        return question.request.tick in self._asked and (not question.due_ns or (punctual and now_ns < question.due_ns))
