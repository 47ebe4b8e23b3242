"""Plans of several calls: which step acts when, where two meet, and what of a plan never acts.

Users of others met these: huggingface/lerobot#4580, SpatialVLA/SpatialVLA#52, strands-labs/robots#3321.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from simulated import MS, SimulatedHost, Simulation

from rtcontrol.hosts.plans import PLANNER, PlanCore, PlanSettings
from rtcontrol.hosts.protocol import DecisionLost, DecisionReply, DecisionRequest
from rtcontrol.models.call import Call, Decision, Plan

STEP_NS = 40 * MS
MAX_AGE_MS = 2_000
Decide = Callable[[DecisionRequest], Decision]


def planned(*values: float, step_ns: int = STEP_NS, of: str = "move") -> Decision:
    calls = tuple(Call(of, {"x": value}) for value in values)
    return Decision(calls[0], {"function": 0.8}, plan=Plan(calls, step_ns))


def lost(loss: str, why: str) -> Decide:
    def decide(request: DecisionRequest) -> Decision:
        raise DecisionLost(loss, why)

    return decide


class Planned(Simulation):
    """A simulated planner under a `PlanCore`."""

    def __init__(self, plan: Decide, took_ms: float | None = 1.0, **terms: Any) -> None:
        self.planner = SimulatedHost(PLANNER, plan)
        legal = terms.pop("legal", lambda call: True)
        core = PlanCore(PlanSettings(**{"max_age_ns": MAX_AGE_MS * MS, **terms}), legal)
        super().__init__(core, {PLANNER: self.planner})
        self.take_ms(took_ms)

    def take_ms(self, ms: float | None) -> None:
        """Set how many ms an answer takes from now on; None: it never comes."""
        self.planner.after_ms = lambda request: ms

    def answer(self, tick: int, within_ms: float = 400.0, **more: Any) -> DecisionReply | None:
        """Request a decision; return the reply that the loop gets within the time, or None."""
        count = len(self.replies)
        self.ask(tick, within_ms, **more)
        self.run(within_ms)
        plans = self.replies[count:]
        assert len(plans) <= 1
        return plans[0][1] if plans else None

    def outcomes(self) -> list[tuple[int, str]]:
        return [(event["plan"], event["outcome"]) for event in self.reports]


def x(reply: DecisionReply | None) -> float:
    assert reply is not None and reply.decision is not None and reply.decision.call is not None, reply
    assert reply.decision.plan is None, "the loop gets a call"
    value: float = reply.decision.call.arguments["x"]
    return value


def test_plan_steps_act_while_next_plan_is_made() -> None:
    plans = Planned(lambda request: planned(*range(40), step_ns=50 * MS))
    first = plans.answer(0, within_ms=50)
    assert first is not None and (x(first), first.steps, first.ahead_ns, first.older_request) == (0.0, (0, 40), 0, None)
    plans.take_ms(None)
    for tick in range(1, 5):
        began_ms = plans.now_ms
        later = plans.answer(tick, within_ms=60)
        assert later is not None and later.older_request is not None and later.older_request.tick == 0
        given_ms = plans.replies[-1][0]
        # A plan that is made for the tick itself is waited for, until an eighth of the time is left.
        assert given_ms == began_ms + (52.5 if tick == 1 else 0)
        assert (later.steps, later.ahead_ns) == ((given_ms // 50, 40), given_ms // 50 * 50 * MS)
    assert [request.tick for request in plans.planner.requests] == [0, 1], "one plan is made at once"


@pytest.mark.parametrize(
    ("plan", "age_ms", "step"),
    [
        (planned(*range(100), step_ns=10 * MS), 300, 30),
        (planned(1.0, 2.0, step_ns=10 * MS), 300, None),
        (planned(*range(99)), 2_500, None),
    ],
    ids=["late", "over", "too old"],
)
def test_late_plan_starts_at_later_step_or_never_acts(plan: Decision, age_ms: float, step: int | None) -> None:
    course = Planned(lambda request: plan)
    reply = course.answer(0, age_ms=age_ms)
    assert reply is not None
    if step is not None:
        assert x(reply) == step and reply.ahead_ns == age_ms * MS and course.outcomes() == [(0, "in_force")]
        return
    assert reply.decision is None and "when it arrived" in str(reply.error) and course.outcomes() == [(0, "over")]
    course.take_ms(None)
    assert course.answer(1, within_ms=30) is None, "the tick misses: nothing acts"


def test_frozen_planner_stops_after_its_last_plan() -> None:
    course = Planned(lambda request: planned(0.0, 1.0, step_ns=150 * MS))
    assert x(course.answer(0, within_ms=20)) == 0.0
    course.take_ms(None)
    assert [x(course.answer(k, within_ms=100)) for k in (1, 2, 3)] == [0.0, 0.0, 1.0]
    assert course.answer(4, within_ms=30) is None
    assert len(course.planner.requests) == 2, "nothing more is asked of a planner that does not answer"
    course.run(4_000)
    course.answer(5, within_ms=30)
    assert course.planner.cancelled == [1] and len(course.planner.requests) == 3, "but in the end"


@pytest.mark.parametrize("changed", [{"epoch": 2}, {"instruction": "stop there"}], ids=str)
def test_new_epoch_or_instruction_ends_plan(changed: dict[str, Any]) -> None:
    course = Planned(lambda request: planned(*range(50)))
    assert x(course.answer(0)) == 0
    course.take_ms(None)
    assert course.answer(1, within_ms=30, **changed) is None


FAILS = {
    "lost": (lost("timeout", "nothing came"), "timeout", "nothing came"),
    "illegal": (lambda request: Decision(Call("fly", {})), "invalid", "fly()"),
}


@pytest.mark.parametrize(("decide", "loss", "error"), FAILS.values(), ids=FAILS.keys())
def test_failed_plan_is_reported_and_active_plan_continues(decide: Decide, loss: str, error: str) -> None:
    course = Planned(lambda request: planned(*range(50)), legal=lambda call: call.name == "move")
    course.answer(0)
    course.planner.decide = decide
    reply = course.answer(1)
    assert reply is not None
    if loss == "timeout":
        assert reply.older_request is not None and reply.older_request.tick == 0 and reply.loss is None
    assert [(e["outcome"], e.get("loss"), e.get("error")) for e in course.reports] == [
        ("in_force", None, None),
        ("failed", loss, error),
    ]


def test_failure_without_active_plan_is_error_of_tick() -> None:
    course = Planned(lost("connection", "refused"))
    reply = course.answer(0)
    assert reply is not None and reply.decision is None and reply.loss == "connection"
    course.planner.refuses = True
    reply = course.answer(1)
    assert reply is not None and reply.error == "ConnectionError: full"


def test_waiting_world_gets_new_plan_each_tick() -> None:
    course = Planned(lambda request: planned(request.tick, 50.0, step_ns=MS), waits=True)
    assert [x(course.answer(tick, age_ms=1_900, within_ms=1)) for tick in range(4)] == [0, 1, 2, 3]
    course.take_ms(70)
    course.ask(4, within_ms=1)
    course.run(100)
    assert x(course.replies[-1][1]) == 4, "it is waited for as long as it takes"


def test_new_instruction_does_not_wait_for_old_plan() -> None:
    course = Planned(lambda request: planned(*[float(request.tick)] * 200))
    course.planner.after_ms = lambda request: 500.0 if request.tick == 0 else 5.0
    assert course.answer(0, within_ms=20) is None
    assert x(course.answer(1, epoch=2, within_ms=400)) == 1.0
    course.run(1_000)
    assert course.outcomes() == [(1, "in_force"), (0, "over")]
    assert [reply.tick for _, reply in course.replies] == [1, 0], "it came after all, for its own tick alone"


def test_plan_of_cancelled_tick_acts_later() -> None:
    course = Planned(lambda request: planned(*range(500)), took_ms=100)
    assert course.answer(0, within_ms=20) is None
    course.cancel(0)
    course.run(100)
    late = course.replies[-1][1]
    assert late.tick == 0 and late.decision is not None
    reply = course.answer(1, within_ms=20)
    assert reply is not None and reply.steps == (3, 500), "137 ms after its observation"


@pytest.mark.parametrize("seed", range(25))
def test_random_course_keeps_the_rules(seed: int) -> None:
    """Each tick gets one reply; only due steps of the newest plan in scope act, and none whose plan is too old."""
    chance = random.Random(seed)
    course = Planned(lambda request: planned(*range(chance.choice((1, 3, 40)))), in_flight=chance.choice((1, 3)))
    course.planner.after_ms = lambda request: None if chance.random() < 0.05 else chance.choice((5.0, 60.0, 700.0))
    scope: dict[int, DecisionRequest] = {}
    newest = -1
    answered: list[int] = []

    def judged(reply: DecisionReply) -> None:
        nonlocal newest
        answered.append(reply.tick)
        if reply.steps is None or reply.decision is None:
            return
        own = scope[reply.tick]
        of = reply.older_request or own
        age_ns = course.now_ns - of.captured_ns
        assert (of.epoch, of.instruction) == (own.epoch, own.instruction)
        assert 0 <= age_ns <= MAX_AGE_MS * MS and age_ns // STEP_NS == reply.steps[0]
        assert of.tick >= newest, "the newest plan wins"
        newest = of.tick

    course.on_reply = judged
    epoch = 0
    for tick in range(120):
        epoch += chance.random() < 0.05
        if chance.random() < 0.05:
            course.lose(course.planner) if course.planner.up else course.restore(course.planner)
        captured_ns = course.now_ns - chance.choice((0, 10 * MS, 200 * MS))
        scope[tick] = DecisionRequest(tick, epoch, "", "go", captured_ns=captured_ns)
        course.ask(tick, 50.0, (course.now_ns - captured_ns) / MS, epoch=epoch)
        course.run(50)
        if tick not in answered:
            course.cancel(tick)
    course.run(5_000)
    assert len(answered) == len(set(answered)) > 5
    assert len([e for e in course.reports if e["outcome"] != "failed"]) <= len(course.planner.requests)
