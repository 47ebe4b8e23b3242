"""Plans of several calls: which step acts when, where two meet, and what of a plan never acts.

Peers' users met these: a chunk is replayed from its start however late it comes (huggingface/lerobot#4580), averaging
two chunks that call for opposite things does neither (SpatialVLA/SpatialVLA#52), a robot goes on by an old chunk while
its policy stands still (strands-labs/robots#3321).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from cart import Scripted
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.hosts.inprocess import InProcessHost
from rtcontrol.hosts.plan_host import PlanHost, PlanTerms
from rtcontrol.hosts.protocol import DecisionLost, DecisionReply, DecisionRequest
from rtcontrol.models.call import Call, Decision, Plan
from tests.helpers.processes import until

MS = 1_000_000
STEP_NS = 40 * MS
Asked = Callable[[DecisionRequest], Decision]


def planned(*values: float, step_ns: int = STEP_NS, of: str = "move") -> Decision:
    calls = tuple(Call(of, {"x": value}) for value in values)
    return Decision(calls[0], {"function": 0.8}, plan=Plan(calls, step_ns))


class Flight:
    """The host under test over a planner on a thread: `plan` answers it, once `open` lets it."""

    def __init__(self, plan: Asked, **terms: Any) -> None:
        self.open = lambda request: True
        self.asked: list[int] = []

        def decide(request: DecisionRequest) -> Decision:
            self.asked.append(request.tick)
            until(lambda: self.open(request), "nobody let it answer", 20, every=0.0005)
            return plan(request)

        terms = {"max_age_ns": 2_000 * MS, **terms}
        legal = terms.pop("legal", lambda call: True)
        self.host = PlanHost(InProcessHost(Scripted(decide), terms.get("in_flight", 1)), PlanTerms(**terms), legal)
        self.told: list[dict[str, Any]] = []
        self.host.emit = lambda t_ns, event: self.told.append(event)
        self.host.start()

    def ask(self, tick: int, age_ms: float = 0.0, within_ms: float = 400.0, **more: Any) -> DecisionRequest:
        captured_ns = time.monotonic_ns() - round(age_ms * MS)
        fields = {"epoch": 1, "instruction": "go", "within_ns": round(within_ms * MS), "seq": tick, **more}
        request = DecisionRequest(tick, observation="", captured_ns=captured_ns, **fields)
        self.host.submit(request)
        return request

    def reply(self, seconds: float = 10.0) -> DecisionReply:
        found: list[DecisionReply | None] = [None]
        until(lambda: found.append(self.host.wait(10 * MS)) or found[-1], "no reply", seconds, every=0.0)
        assert found[-1] is not None
        return found[-1]

    def silent(self, ms: float = 60) -> bool:
        ends_ns = time.monotonic_ns() + round(ms * MS)
        while time.monotonic_ns() < ends_ns:
            if self.host.wait(5 * MS) is not None:
                return False
        return True

    def close(self) -> None:
        self.open = lambda request: True
        self.host.close()


@pytest.fixture
def fly(request: pytest.FixtureRequest) -> Callable[..., Flight]:
    def make(*given_: Any, **terms: Any) -> Flight:
        flight = Flight(*given_, **terms)
        request.addfinalizer(flight.close)
        return flight

    return make


def x(reply: DecisionReply) -> float:
    assert reply.decision is not None and reply.decision.call is not None, reply
    assert reply.decision.plan is None, "the loop is told of a call"
    value: float = reply.decision.call.arguments["x"]
    return value


def test_steps_of_the_plan_in_force_act_at_their_instants_while_the_next_is_made(fly: Callable[..., Flight]) -> None:
    flight = fly(lambda request: planned(*range(40), step_ns=50 * MS), max_age_ns=10_000 * MS)
    asked = flight.ask(0)
    first = flight.reply()
    assert (x(first), first.steps, first.ahead_ns, first.answers) == (0.0, (0, 40), 0, None)
    flight.open = lambda request: False
    for tick in range(1, 4):
        time.sleep(0.06)
        asked_ns = time.monotonic_ns()
        flight.ask(tick, within_ms=20)
        later = flight.reply()
        i = round(x(later))
        assert (
            (asked_ns - asked.captured_ns) // (50 * MS) <= i <= (time.monotonic_ns() - asked.captured_ns) // (50 * MS)
        )
        assert (later.steps, later.ahead_ns, later.tick) == ((i, 40), i * 50 * MS, tick)
        assert later.answers is not None and later.answers.tick == 0
    assert flight.asked == [0, 1], "one plan is made at once"


def test_plan_that_comes_late_begins_in_its_midst_and_never_with_what_is_past(fly: Callable[..., Flight]) -> None:
    flight = fly(lambda request: planned(*range(100), step_ns=10 * MS))
    flight.ask(0, age_ms=300)
    reply = flight.reply()
    assert x(reply) >= 30 and reply.steps is not None and reply.ahead_ns >= 300 * MS
    assert flight.told[0]["outcome"] == "in_force"


def test_plan_that_is_over_when_it_comes_or_of_too_old_an_observation_never_acts(fly: Callable[..., Flight]) -> None:
    for made, age_ms in ((planned(1.0, 2.0, step_ns=10 * MS), 300), (planned(*range(99)), 2_500)):
        flight = fly(lambda request, made=made: made)
        flight.ask(0, age_ms=age_ms)
        reply = flight.reply()
        assert reply.decision is None and reply.error is not None and "before it came" in reply.error
        assert [event["outcome"] for event in flight.told] == ["over"]
        flight.open = lambda request: False
        flight.ask(1, within_ms=30)
        assert flight.silent(), "the tick misses: nothing acts"


def test_frozen_planner_ends_with_its_last_plan(fly: Callable[..., Flight]) -> None:
    flight = fly(lambda request: planned(0.0, 1.0, step_ns=150 * MS))
    flight.ask(0)
    assert x(flight.reply()) == 0.0
    flight.open = lambda request: request.tick < 1
    flight.ask(1, within_ms=20)
    assert x(flight.reply()) in (0.0, 1.0)
    time.sleep(0.35)
    flight.ask(2, within_ms=30)
    assert flight.silent()
    assert flight.asked == [0, 1], "nothing more is asked of a planner that does not answer"


def test_new_epoch_and_new_instruction_end_the_plan(fly: Callable[..., Flight]) -> None:
    for changed in ({"epoch": 2}, {"instruction": "stop there"}):
        flight = fly(lambda request: planned(*range(50)))
        flight.ask(0)
        flight.reply()
        flight.open = lambda request: False
        flight.ask(1, within_ms=30, **changed)
        assert flight.silent()


def test_failed_plan_leaves_the_one_before_in_force_and_is_told(fly: Callable[..., Flight]) -> None:
    def plan(request: DecisionRequest) -> Decision:
        if request.tick:
            raise DecisionLost("timeout", "nothing came")
        return planned(*range(50))

    flight = fly(plan)
    flight.ask(0)
    flight.reply()
    flight.ask(1)
    reply = flight.reply()
    assert reply.answers is not None and reply.answers.tick == 0 and reply.loss is None
    assert [(e["outcome"], e.get("loss")) for e in flight.told] == [("in_force", None), ("failed", "timeout")]


def test_planner_that_fails_where_nothing_is_in_force_is_the_ticks_error(fly: Callable[..., Flight]) -> None:
    def plan(request: DecisionRequest) -> Decision:
        raise DecisionLost("connection", "refused")

    flight = fly(plan)
    flight.ask(0)
    reply = flight.reply()
    assert reply.decision is None and reply.loss == "connection"


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=12))
def test_plans_of_one_step_are_the_calls_that_they_hold(course: list[tuple[int, bool]]) -> None:
    """Whatever is asked: the same replies as of a planner that gives calls."""

    def call(request: DecisionRequest) -> Decision:
        value, fails = course[request.tick]
        if fails:
            raise DecisionLost("http", "no")
        return Decision(Call("move", {"x": value}), {"function": 0.8}, forward_passes=value)

    def plan(request: DecisionRequest) -> Decision:
        made = call(request)
        assert made.call is not None
        return Decision(made.call, made.confidence, made.forward_passes, plan=Plan((made.call,), STEP_NS))

    replies = []
    for asked in (call, plan):
        flight = Flight(asked)
        try:
            told = []
            for tick in range(len(course)):
                flight.ask(tick, within_ms=10_000)
                reply = flight.reply()
                decided = None if reply.decision is None else (reply.decision.call, reply.decision.forward_passes)
                told.append((reply.tick, decided, reply.loss, reply.error, reply.answers, reply.steps))
            replies.append(told)
        finally:
            flight.close()
    assert replies[0] == replies[1]


def test_world_that_waits_has_a_plan_of_its_own_for_each_tick(fly: Callable[..., Flight]) -> None:
    flight = fly(lambda request: planned(request.tick, 50.0, step_ns=MS), waits=True)
    for tick in range(4):
        flight.ask(tick, age_ms=1_900, within_ms=1)
        assert x(flight.reply()) == tick


def test_new_scope_does_not_wait_for_the_plan_of_the_one_before(fly: Callable[..., Flight]) -> None:
    flight = fly(lambda request: planned(*[float(request.tick)] * 200))
    flight.open = lambda request: request.tick > 0
    flight.ask(0, within_ms=20)
    assert flight.silent(30)
    flight.ask(1, epoch=2, within_ms=10_000)
    flight.open = lambda request: True
    reply = flight.reply()
    while reply.tick == 0:  # the plan of the epoch before came after all, for its own tick alone
        reply = flight.reply()
    assert (reply.tick, x(reply)) == (1, 1.0)
    assert [(e["plan"], e["outcome"]) for e in flight.told] == [(0, "over"), (1, "in_force")]


def test_wake_ends_a_wait_and_a_cancelled_tick_is_answered_late(fly: Callable[..., Flight]) -> None:
    flight = fly(lambda request: planned(*range(500)))
    flight.open = lambda request: False
    flight.ask(0, within_ms=20)
    flight.host.wake()
    assert flight.host.wait(60_000 * MS) is None
    flight.host.cancel(0)
    flight.open = lambda request: True
    late = flight.reply()
    assert late.tick == 0 and late.decision is not None
    flight.ask(1)
    reply = flight.reply()
    assert reply.decision is not None and reply.steps is not None
