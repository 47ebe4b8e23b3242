"""Tests of the actuator's core with a fake clock: which calls reach the environment, when, and in hostile cases."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from random import Random
from types import FrameType
from typing import Any

import pytest
from worker import CLOSE, MOVE, MS, NAMES, OPEN, PARK, STOP, Worker, emission

from rtcontrol.envs.base import Emission
from rtcontrol.loop.actuator_core import EXIT_RETRY_NS, PATIENCE_LOCKSTEP_NS, Action, Attempt, Emit
from rtcontrol.models.call import Call
from rtcontrol.records import Command

SEVERAL = (STOP, OPEN, PARK)

# -- commands ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tick", "withdrawn"), [(1, True), (0, False), (2, False)])
def test_withdraw_drops_only_the_command_of_its_tick(tick: int, withdrawn: bool) -> None:
    worker = Worker(STOP)
    with worker.performing(0):
        worker.execute(1)
        assert worker.core.withdraw(tick) is withdrawn
        assert not worker.core.withdraw(tick) or not withdrawn
    assert worker.names == ["move:hang", *["move"] * (not withdrawn)]


@pytest.mark.parametrize(("how", "effect"), [("raise", "failed"), ("over", "epoch_over"), ("late", "too_late")])
def test_command_that_fails_completes_once_with_effect(how: str, effect: str) -> None:
    worker = Worker(STOP)
    worker.script(move=how)
    worker.execute(0, void=emission(0, "held"), fresh=emission(0, "fresh"))
    worker.work()
    assert worker.completions == [(0, effect, True)]
    assert worker.names == [f"move:{how}", *["emit 0"] * (how == "over")], "the world receives that its epoch is over"
    assert len(worker.core.call_spans) == 1 and worker.core.call_spans[0][1] == worker.now_ns


# -- the safe calls come first, are tried again, and end ---------------------------------------------------------------


def test_demand_removes_waiting_command_and_acts_first() -> None:
    worker = Worker(STOP)
    with worker.performing(0):
        worker.execute(1)
        worker.core.instruct("go")
        worker.core.instruct("go on")
        cleared = worker.core.demand_safe_calls("miss", None)
        assert cleared is not None and cleared.tick == 1
        worker.execute(2)
    assert worker.names == ["move:hang", "stop", "say go on", "move"]
    assert worker.completions == [(0, "acted", False), (2, "acted", True)], "the first was given before the demand"


def test_failed_safe_call_is_retried_until_active() -> None:
    worker = Worker(STOP)
    worker.script(stop="raise raise raise")
    worker.core.demand_safe_calls("miss", None)
    worker.at(400)
    assert worker.log == [(0, "stop:raise"), (50, "stop:raise"), (100, "stop:raise"), (150, "stop")]
    assert worker.numbers == [("stop!", 1, False), ("stop!", 2, False), ("stop!", 3, False), ("stop", 4, True)]
    assert worker.core.safe.active and not worker.core.state.pending


@pytest.mark.parametrize(
    ("safe_calls", "call", "tried"),
    [((STOP,), MOVE, False), ((STOP,), OPEN, True), (SEVERAL, MOVE, False), (SEVERAL, OPEN, True)],
)
def test_newer_call_of_its_tool_ends_retries(safe_calls: tuple[Call, ...], call: Call, tried: bool) -> None:
    worker = Worker(*safe_calls)
    worker.script(stop="raise raise")
    worker.core.demand_safe_calls("miss", None)
    worker.at(1)
    worker.execute(1, call)
    worker.at(200)
    assert ("stop" in worker.names) is tried is worker.core.safe.active
    assert not worker.core.state.pending and worker.completions == [(1, "acted", True)]


def test_world_without_calls_ends_attempts_and_is_over() -> None:
    worker = Worker(STOP, OPEN)
    worker.script(open="over")
    worker.core.demand_safe_calls("exit", None)
    worker.at(200)
    assert worker.core.safe.world_over and worker.core.safe.active and not worker.core.state.pending
    assert [(one.acted, one.world_over, one.active) for one in worker.attempts] == [
        (True, False, False),
        (False, True, False),
    ]
    worker.core.demand_safe_calls("exit", None)
    worker.work()
    assert not worker.core.safe.world_over and worker.attempts[-1].active


def test_lockstep_retry_comes_when_the_world_moves() -> None:
    worker = Worker(STOP, retry_ms=None)
    worker.script(stop="raise raise")
    worker.core.demand_safe_calls("miss", None)
    assert worker.core.state.attempting
    worker.at(5000)
    assert worker.names == ["stop:raise"] and not worker.core.state.attempting and worker.core.state.pending
    for again in (True, True, False):
        assert worker.core.retry_safe_calls() is again is worker.core.state.attempting
        worker.work()
    assert worker.names == ["stop:raise", "stop:raise", "stop"] and worker.core.safe.active


def test_lockstep_exit_retries_by_the_clock() -> None:
    worker = Worker(STOP, retry_ms=None)
    worker.script(stop="raise")
    worker.core.demand_safe_calls("exit", None)
    worker.at(1000)
    assert worker.log == [(0, "stop:raise"), (EXIT_RETRY_NS / MS, "stop")]


# -- a world that has to step ------------------------------------------------------------------------------------------


def test_acted_call_waits_for_the_worlds_step() -> None:
    worker = Worker(STOP, steps=True)
    worker.script(stop="wait wait")
    worker.core.demand_safe_calls("miss", None)
    worker.at(60)
    assert worker.core.state.pending and worker.attempts == []
    worker.at(200)
    assert worker.log == [(0, "stop:wait"), (50, "look stop:wait"), (100, "look stop")]
    assert worker.numbers == [("stop", 1, True)]


@pytest.mark.parametrize(
    ("looked", "log", "numbers"),
    [
        ("ok", ["look stop", "move"], [("stop", 1, True)]),
        ("wait", ["look stop:wait", "move"], [("stop", 1, False)]),
        ("never", ["look stop:never", "move"], [("stop", 1, False)]),
        ("raise", ["look stop:raise", "move"], [("stop!", 1, False)]),
    ],
)
def test_world_settles_before_a_newer_call(looked: str, log: list[str], numbers: list[tuple[str, int, bool]]) -> None:
    worker = Worker(STOP, steps=True)
    worker.script(stop=f"wait {looked}")
    worker.core.demand_safe_calls("miss", None)
    worker.work()
    worker.execute(1)
    worker.at(300)
    assert worker.names == ["stop:wait", *log] and worker.numbers == numbers
    assert worker.core.safe.world_over is (looked == "never") and not worker.core.state.pending


def test_demand_during_settling_reports_the_act_once() -> None:
    worker = Worker(STOP, OPEN, steps=True)
    worker.script(stop="wait hang", open="wait")
    worker.core.demand_safe_calls("miss", None)
    worker.at(50)
    assert worker.names == ["stop:wait", "open:wait", "look stop:hang"]
    worker.core.demand_safe_calls("exit", None)
    worker.at(60)
    worker.free("stop", "wait")
    worker.at(200)
    assert worker.names[3:] == ["open", "stop"]
    assert worker.numbers == [("stop", 1, False), ("open", 1, False), ("open", 1, False), ("stop", 2, True)]


# -- what the world receives ------------------------------------------------------------------------------------------


def test_emissions_are_sent_in_order_before_calls() -> None:
    worker = Worker(STOP)
    with worker.performing(0, fresh=emission(0, "fresh")):
        worker.core.instruct("go")
        worker.core.emit(emission(1, "held"))
        worker.core.demand_safe_calls("miss", emission(2))
        worker.core.emit(emission(3))
    assert worker.names == ["move:hang", "emit 0", "emit 1", "emit 2", "stop", "say go", "emit 3"]


@pytest.mark.parametrize("calls", [(), (STOP,), (STOP, OPEN)])
def test_unsent_demand_fails_and_is_sent_again(calls: tuple[Call, ...]) -> None:
    worker = Worker(*calls)
    worker.script(emit="raise raise")
    worker.core.demand_safe_calls("miss", emission(0))
    worker.at(70)
    assert worker.core.state.pending and not worker.core.safe.active
    worker.at(400)
    names = [NAMES[call.text()] for call in calls]
    assert worker.names == ["emit 0:raise", *names, "emit 0:raise", *names, "emit 0", *names]
    failed = [(f"{name}!", number, False) for number in (1, 2) for name in names or ["-"]]
    last = [(name, 3, name == (names or ["-"])[-1]) for name in names or ["-"]]
    assert worker.numbers == failed + last and not worker.faults


@pytest.mark.parametrize("what", ["emit", "instruct"])
def test_emission_that_raises_is_a_fault(what: str) -> None:
    worker = Worker(STOP)
    worker.script(**{what: "raise"})
    worker.core.emit(emission(0)) if what == "emit" else worker.core.instruct("go")
    worker.execute(1)
    worker.work()
    assert worker.faults == [what] and worker.completions == [(1, "acted", True)]


def test_call_with_unsent_emission_has_failed() -> None:
    worker = Worker(STOP)
    worker.script(emit="raise")
    worker.execute(0, fresh=emission(0, "fresh"))
    worker.work()
    assert worker.completions == [(0, "failed", True)]


# -- several safe calls ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("retry_ms", "patience_ms"), [(50, 20), (None, PATIENCE_LOCKSTEP_NS / MS)])
@pytest.mark.parametrize("why", ["miss", "exit"])
def test_hung_safe_call_does_not_delay_the_others(why: str, retry_ms: float | None, patience_ms: float) -> None:
    worker = Worker(*SEVERAL, retry_ms=retry_ms)
    worker.script(stop="hang")
    worker.core.demand_safe_calls(why, emission(0))
    worker.at(patience_ms)
    assert worker.log == [(0, "emit 0"), (0, "stop:hang"), (patience_ms, "open"), (patience_ms, "park")]
    worker.execute(1)
    worker.core.emit(emission(2))
    worker.at(10_000)
    assert worker.names[4:] == [] and worker.core.state.attempting, "what hangs would act after it"
    worker.free("stop")
    assert worker.names[4:] == ["move", "emit 2"]
    assert worker.numbers == [("open", 1, False), ("park", 1, False), ("stop", 1, True)]


def test_hung_safe_call_is_repeated_for_newer_demand() -> None:
    worker = Worker(*SEVERAL)
    worker.script(stop="hang")
    worker.core.demand_safe_calls("miss", None)
    worker.at(30)
    worker.core.demand_safe_calls("exit", None)
    worker.at(40)
    assert worker.names == ["stop:hang", "open", "park", "open", "park"]
    worker.free("stop")
    assert worker.names[5:] == ["stop"]
    assert worker.numbers[-2:] == [("stop", 1, False), ("stop", 2, True)]
    assert [one.why for one in worker.attempts[-2:]] == ["miss", "exit"]


# -- the guard ---------------------------------------------------------------------------------------------------------


def test_absent_loop_brings_the_safe_call() -> None:
    worker = Worker(STOP)
    worker.arm(100 * MS, emission(7))
    worker.at(50)
    worker.arm(150 * MS, emission(8))
    worker.at(400)
    assert worker.log == [(150, "emit 8"), (150, "stop")]
    assert [(one.why, one.active) for one in worker.attempts] == [("loop", True)]


# -- people ------------------------------------------------------------------------------------------------------------


def test_bar_refuses_commands_requested_before_its_end() -> None:
    worker = Worker(STOP)
    worker.execute(0)
    worker.core.block("paused", 0)
    worker.work()
    worker.execute(1)
    worker.now_ns = 9 * MS
    worker.work()
    worker.core.block(None, 10 * MS)
    worker.execute(2)  # asked for before the resume
    worker.work()
    worker.now_ns = 10 * MS
    worker.execute(3)
    worker.work()
    assert worker.names == ["move"]
    assert worker.completions == [*((tick, "refused", True) for tick in range(3)), (3, "acted", True)]


def test_bar_before_the_emission_sends_nothing() -> None:
    worker = Worker(STOP)
    with worker.performing(0, fresh=emission(0, "fresh")):
        worker.core.block("stopped", 0)
    assert worker.names == ["move:hang"] and worker.completions == [(0, "refused", True)]


# -- the end -----------------------------------------------------------------------------------------------------------


def test_close_tries_only_demanded_safe_calls_once() -> None:
    worker = Worker(*SEVERAL)
    worker.script(stop="hang", open="raise")
    worker.core.instruct("go")
    worker.core.emit(emission(0))
    worker.core.demand_safe_calls("exit", emission(1))
    worker.execute(2)
    worker.core.emit(emission(3))
    worker.core.closed = True
    worker.at(500)
    assert worker.log == [(0, "emit 0"), (0, "emit 1"), (0, "stop:hang"), (20, "open:raise"), (20, "park")]
    assert worker.core.done


# -- a hostile mind's cases --------------------------------------------------------------------------------------------


def test_doings_have_start_and_end_of_calls() -> None:
    worker = Worker(STOP, OPEN)
    worker.script(stop="hang", open="raise raise")
    worker.at(10)
    worker.core.demand_safe_calls("miss", None)
    worker.at(150)
    assert list(worker.core.call_spans) == [[10 * MS, 0]], "one that hangs is at work until its end"
    worker.free("stop")
    worker.execute(0)
    worker.at(200)
    assert [tuple(doing) for doing in worker.core.call_spans] == [(10 * MS, 150 * MS), (150 * MS, 150 * MS)]


def interrupted(order: Callable[[], Any], line: int) -> bool:
    """Run an order with a KeyboardInterrupt at one of its lines. Return whether the interrupt came out of the order."""
    left = [line]

    def trace(frame: FrameType, event: str, given: Any) -> Any:
        if "rtcontrol/loop/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        order()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


ORDERS: dict[str, Callable[[Worker], Any]] = {
    "execute": lambda worker: worker.execute(1),
    "withdraw": lambda worker: worker.core.withdraw(0),
    "instruct": lambda worker: worker.core.instruct("go on"),
    "block": lambda worker: worker.core.block("stopped", 1),
    "demand": lambda worker: worker.core.demand_safe_calls("exit", emission(3)),
    "retry": lambda worker: worker.core.retry_safe_calls(),
}


@pytest.mark.parametrize("name", ORDERS)
def test_interrupt_of_an_order_loses_no_safe_call(name: str) -> None:
    for line in range(1, 200):
        worker = Worker(STOP, OPEN)
        worker.script(stop="raise", emit="raise")
        worker.core.demand_safe_calls("miss", emission(0))
        worker.work()
        worker.core.instruct("go")
        worker.execute(0)
        came = interrupted(lambda worker=worker: ORDERS[name](worker), line)  # type: ignore[misc]
        worker.core.demand_safe_calls("exit", emission(4))
        worker.core.closed = True
        worker.at(500)
        assert worker.names[-3:] == ["emit 4", "stop", "open"] and worker.core.safe.active, line
        if not came:
            break
    assert 2 < line < 190, "every line had its turn"


# -- a random walk -----------------------------------------------------------------------------------------------------


PARTING = 999
TOOL = {"move": "stop", "close": "open"}  # a call, and the safe call of its tool
KINDS = ("execute", "execute", "demand", "bar", "open", "tell", "instruct", "retry", "guard", "withdraw")


class Walk(Worker):
    """A random walk of orders to a worker in a random world, which checks the laws after each order."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        safe_calls = SEVERAL[: random.choice([0, 1, 1, 2, 3])]
        super().__init__(*safe_calls, retry_ms=random.choice([5, 50, None]), steps=random.random() < 0.5)
        self.fails = random.choice([0.0, 0.2, 0.6])
        self.ends: Counter[int] = Counter()  # of each command: completions, and times it was dropped
        self.given = self.emitted = 0
        self.told: list[int] = []
        self.tried: dict[int, set[str]] = defaultdict(set)  # of each demand: the safe calls that were attempted
        self.good: dict[int, set[str]] = defaultdict(set)  # and that are in force, or that the world is over for

    def does(self, name: str) -> str:
        if self.random.random() >= self.fails:
            return "ok"
        if name in ("emit", "instruct"):
            return "raise"
        return self.random.choice(
            ["raise", "hang", "over", *(["late"] if name in ("move", "close") else ["wait", "never"])]
        )

    # Laws of what reaches the world.

    def begin(self, action: Command | Attempt) -> None:
        core = self.core
        if isinstance(action, Command):
            assert core.block_reason is None and action.requested_ns >= core.open_ns, (
                "a call while people hold calls back"
            )
            assert not any(one.running for one in core.safe.calls), "a call while a safe call is under way"
            wanted = {NAMES[one.call.text()] for one in core.safe.calls if one.call}
            assert not core.safe.demand or self.tried[core.safe.demand] == wanted, (
                "a call before the safe calls that were demanded"
            )
        else:
            assert action.demand == core.safe.demand, "an attempt for an older demand"
            assert action.safe.call is not None
            self.tried[action.demand].add(NAMES[action.safe.call.text()])
        super().begin(action)

    def do(self, action: Action) -> None:
        if isinstance(action, Emit) and action.emission.tick not in (PARTING, *self.told):
            assert action.emission.tick >= 1000, "a fresh call's emission is sent with its act"
            self.told.append(action.emission.tick)
        super().do(action)

    def end(self, action: Command | Attempt, how: str = "ok") -> None:
        if isinstance(action, Attempt) and action.error is None and how not in ("raise", "wait" if self.steps else ""):
            assert action.safe.call is not None
            self.good[action.demand].add(NAMES[action.safe.call.text()])
        super().end(action, how)
        if isinstance(action, Command) and self.completions[-1][1:] == ("acted", True):
            self.good[action.demand].add(TOOL[NAMES[action.call.text()]])

    # Orders.

    def emission(self) -> Emission:
        self.emitted += 1
        return emission(1000 + self.emitted)

    def drop(self, command: Command | None) -> None:
        if command is not None:
            self.ends[command.tick] += 1

    def require(self) -> None:
        self.drop(self.core.demand_safe_calls(self.random.choice(["miss", "pause", "exit"]), self.emission()))

    def order(self) -> None:
        core, random = self.core, self.random
        match random.choice(KINDS):
            case "execute":
                self.given += 1
                requested_ns = max(0, self.now_ns - random.choice([0, 0, 30 * MS]))
                command = Command(self.given, random.choice([MOVE, CLOSE]), 1, None, requested_ns=requested_ns)
                command.fresh = random.choice([None, emission(self.given, "fresh")])
                self.drop(core.execute(command))
            case "demand":
                self.require()
            case "bar":
                core.block(random.choice(["paused", "stopped"]), self.now_ns)
            case "open" if core.block_reason is not None:
                core.block(None, self.now_ns)
            case "tell":
                core.emit(self.emission())
            case "instruct":
                core.instruct("go")
            case "retry":
                core.retry_safe_calls()
            case "guard":
                self.arm(random.choice([None, self.now_ns + 20 * MS]), emission(PARTING))
            case _ if (waiting := core.waiting) is not None and core.withdraw(waiting.tick):
                self.drop(waiting)

    def step(self) -> None:
        for _ in range(self.random.choice([1, 1, 2, 4])):  # several before the worker is back
            self.order()
        if self.random.random() < 0.5:
            self.now_ns += self.random.choice([0, 1, 5, 25, 60]) * MS
        if self.random.random() < 0.3:
            self.free()
        for name in [NAMES[one.safe.call.text()] for one in self.hung if one.safe.call and self.random.random() < 0.3]:
            self.free(name, self.random.choice(["ok", "raise", "wait", "over"]))
        self.work()
        self.judge()

    def judge(self) -> None:
        core, safe = self.core, self.core.safe
        assert sum(isinstance(job, Command) for job in core.jobs) <= 1, "two commands wait"
        assert self.told == sorted(self.told), "emissions out of order"
        if self.blocked is None:
            now = safe.due_ns is not None and safe.due_ns <= self.now_ns
            assert not now, "a safe call is due and not attempted"
            for one in safe.calls if core.safe.round is None else []:
                later = safe.due_ns is not None or self.core.safe.number or not one.wanted
                assert one.running or later, "a safe call is wanted that is never attempted"
            assert safe._retry_ns is None or not safe.wanted or safe.busy or safe.due_ns is not None, "no retry"
        if safe.active:
            names = {NAMES[one.call.text()] for one in safe.calls if one.call}
            assert not core.state.pending and names <= self.good[safe.demand], "not all of them are in force"
        in_force = Counter(one.active for one in self.attempts)
        assert in_force[True] <= safe.demand

    def finish(self) -> None:
        """End all hung calls without further failures, and check that the last demand is active and nothing is lost."""
        self.fails = 0.0
        self.free()
        for one in list(self.hung):
            self.free(NAMES[one.safe.call.text()] if one.safe.call else "")
        self.arm(None, None)
        self.require()
        self.at(self.now_ns / MS + 2000)
        self.judge()
        assert self.core.safe.active and not self.core.safe.world_over and not self.core.state.pending
        assert not self.core.jobs and self.blocked is None
        ends = self.ends + Counter(tick for tick, _, _ in self.completions)
        assert ends == Counter(range(1, self.given + 1)), "a command without an end, or with two"
        self.core.closed = True
        assert self.core.done


def walk(seed: int, steps: int = 60) -> Walk:
    """Run a random walk, and show the seed if a law is broken."""
    one = Walk(seed)
    try:
        for _ in range(steps):
            one.step()
        one.finish()
    except Exception as error:
        log = "\n".join(f"{ms:8.3f} {what}" for ms, what in one.log[-25:])
        raise AssertionError(f"walk({seed}): {error}\n{log}") from error
    return one


def test_random_walk_keeps_the_laws() -> None:
    reached: Counter[str] = Counter()
    for seed in range(400):
        reached.update(name for _, name in walk(seed).log)
    assert all(reached[name] > 20 for name in ("stop:hang", "stop:wait", "look stop", "emit 1001:raise", "move:hang"))
