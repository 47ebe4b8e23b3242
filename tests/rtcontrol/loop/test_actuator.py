"""What reaches the environment, where something breaks: real threads, a real paced world, real time."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import pytest
from arm import HZ, MOVE, OPEN, PERIOD_S, STOP, Arm, arm_agent, beside, failing, flight, held, on, safes, until
from cart import CartWorld, Flight
from hypothesis import given, settings
from hypothesis import strategies as st

from rtcontrol.agents import Agent, Fallback, OneOf, Tools, tool
from rtcontrol.envs.base import Emission
from rtcontrol.envs.paced import PacedEnvironment
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.loop import actuator as actuators
from rtcontrol.loop import loop as loops
from rtcontrol.loop.actuator import Actuator
from rtcontrol.models.call import Call, Decision
from rtcontrol.records import Command, Completion, SafeAttempt
from rtcontrol.telemetry import report

pytestmark = pytest.mark.realtime
BROKEN = """
from rtcontrol.agents import Agent, Fallback, Tools, tool
from rtcontrol.models.call import Call

class World:
    step_s = 0.01
    def __init__(self): self.bindings, self.steps = {"go": self.go}, 0
    def go(self): print("went")
    def reset(self, seed): pass
    def step(self):
        self.steps += 1
        if self.steps == 30:
            raise LookupError("lost my way")
    def observe(self): return {}
    def outcome(self): return None
    def instruct(self, text): pass

@tool
def go() -> None:
    "Go."

agent = Agent("goer", "Goes.", Tools([go]), lambda data: "-", "go", Fallback(Call("go", {})), "noop")
"""


@contextmanager
def acting(agent: Agent, world: PacedEnvironment | None = None, period_ns: int | None = None) -> Iterator[Actuator]:
    """An actuator under way, of a world in real time; closed at the end, which its `effects` outlast."""
    world = world or Arm().world()
    world.start("wall")
    actuator = Actuator(agent, world, period_ns, lambda: None)
    actuator.start()
    yield actuator
    actuator.close()


def silent_from(tick: int) -> Any:
    """Decides until this tick, then takes too long."""

    def decide(request: DecisionRequest) -> Decision:
        if request.tick >= tick:
            time.sleep(10)
        return Decision(MOVE)

    return decide


def test_a_safe_call_that_raises_is_tried_again_each_period_until_in_force(tmp_path: Path) -> None:
    arm = Arm()
    arm.refuse = failing(3)
    flown = flight(tmp_path, arm, silent_from(4), duration_s=1.0).run()
    attempts = safes(flown)
    assert [(a["attempt"], "error" in a, a["in_force"]) for a in attempts] == [
        (1, True, False),
        (2, True, False),
        (3, True, False),
        (4, False, True),
    ]
    gaps = [b["t_s"] - a["t_s"] for a, b in pairwise(attempts)]
    assert min(gaps) >= 0.9 * PERIOD_S, gaps
    assert flown.loop.account.safe_calls == 1 and flown.loop.account.fallback_errors == 3
    # While it is not in force, no tick says that it is.
    bringing = [t for t in flown.ticks if t["kind"] == "miss" and t["action"] == "none"]
    assert all(t["t_s"] + PERIOD_S >= attempts[-1]["t_s"] for t in bringing)
    assert "pending" in {t.get("action") for t in flown.ticks}
    # Said once, with the place; the report made from the record counts the same.
    assert sum("does not answer" in line for line in flown.said) == 1
    made = report.of_record(flown.path)
    assert (made["safe_calls"], made["fallback_errors"]) == (1, 3)
    assert any(e["count"] == 3 and "arm.py:" in e["where"] for e in made["errors"])


def test_a_world_that_hangs_stops_neither_clock_nor_record_and_nothing_old_acts(tmp_path: Path) -> None:
    arm = Arm()
    flown = flight(tmp_path, arm, hold_ms=4e3 * PERIOD_S)
    found: dict[str, Any] = {}

    def trouble() -> None:
        until(lambda: flown.loop.account.ticks >= 5)
        arm.hang()
        time.sleep(2.5 * PERIOD_S)  # from here on a call waits for the world
        found["lines"], found["acts"] = len(flown.ticks), len(arm.acts)
        time.sleep(1.5 - 2.5 * PERIOD_S)
        found["later"] = len(flown.ticks)
        found["free"] = arm.let_go()
        until(lambda: len(arm.acts) > found["acts"] + 1)
        flown.loop.stop("enough")

    beside(trouble, flown.run)
    # Releases, misses and their lines went on, at the rate.
    assert found["later"] - found["lines"] >= HZ
    assert flown.loop.account.skipped_releases <= 2
    assert {"hold", "pending"} <= {t["action"] for t in flown.ticks if t["kind"] == "miss"}
    # The safe call is the first thing that acts, within a period of the world's yielding.
    when, call = arm.acts[found["acts"]]
    assert call == STOP and 0 < when - found["free"] <= PERIOD_S * 1e9
    taken = next(s for s in safes(flown) if s["in_force"])
    assert taken["attempt"] == 1 and flown.loop.account.safe_calls == 1
    # None acted after its deadline, and the fresh calls came back.
    assert not [line for line in flown.lines if line.get("effect") == "acted"]
    assert arm.acts[found["acts"] + 1][1] == MOVE


def test_a_call_that_acts_and_then_raises_is_followed_by_the_safe_call_that_was_in_force(tmp_path: Path) -> None:
    arm = Arm()

    def decide(request: DecisionRequest) -> Decision:
        if request.tick == 3:
            raise ValueError("misses, so that it is safe")
        return Decision(MOVE if request.tick <= 4 else None)

    def half(call: Call) -> None:
        if call == MOVE and any(call == STOP for _, call in arm.acts):
            arm.acts.append((time.monotonic_ns(), call))
            raise OSError("no acknowledgement")

    arm.refuse = half
    flown = flight(tmp_path, arm, decide, on_miss="safe", duration_s=0.5).run()
    assert [call for _, call in arm.acts][-4:] == [STOP, MOVE, STOP, STOP], flown.dump()
    assert [a["in_force"] for a in safes(flown)] == [True, True]


def three_tools() -> tuple[Agent, dict[str, Any], list[str]]:
    """An agent whose tools are its own functions, and do what the dictionary says of them."""
    does: dict[str, Any] = {}
    acts: list[str] = []

    @tool
    def arm(go: bool) -> None:
        """Moves the arm."""
        acts.append(f"arm {go}")
        does["arm"]()

    @tool
    def claw(go: bool) -> None:
        """Grips."""
        does["claw"]()
        acts.append(f"claw {go}")

    @tool
    def base(go: bool) -> None:
        """Drives."""
        does["base"]()
        acts.append(f"base {go}")

    calls = [Call(name, {"go": False}) for name in ("arm", "claw", "base")]
    return replace(arm_agent(), tools=Tools([arm, claw, base]), fallback=Fallback(calls=calls)), does, acts


@pytest.mark.parametrize("why", ["miss", "exit"])
def test_a_safe_call_that_hangs_or_raises_holds_up_no_other(why: str) -> None:
    agent, does, acts = three_tools()
    free, refusing = threading.Event(), threading.Event()
    refusing.set()

    def refuse() -> None:
        if refusing.is_set():
            raise OSError("no claw")

    does |= {"arm": free.wait, "claw": refuse, "base": lambda: None}
    with acting(agent, period_ns=50_000_000) as actuator:
        demanded_s = time.monotonic()
        actuator.safe(why)
        until(lambda: "base False" in acts)
        assert time.monotonic() - demanded_s < 1.0 and actuator.pending
        attempts = actuator.effects
        until(lambda: sum(e.error is not None for e in attempts if isinstance(e, SafeAttempt)) == 3)
        refusing.clear()
        until(lambda: "claw False" in acts)
        # A fresh call waits, as what hangs would act after it.
        actuator.execute(Command(0, Call("base", {"go": True}), 1, None))
        assert not actuator.wait_safe(0.12) and acts == ["arm False", "base False", "claw False"]
        free.set()
        assert actuator.wait_safe(5)
        until(lambda: acts[3:] == ["base True"])
    done = [(e.call.name, e.error is None, e.in_force) for e in attempts if isinstance(e, SafeAttempt) and e.call]
    refused = [("claw", False, False)]
    assert sorted(done) == sorted(
        [*refused * (len(done) - 3), ("base", True, False), ("claw", True, False), ("arm", True, True)]
    )


def test_a_safe_call_demanded_again_while_it_hangs_is_made_again_for_the_newer_demand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(actuators, "PATIENCE_LOCKSTEP_S", 0.02)
    agent, does, acts = three_tools()
    free = threading.Event()
    does |= {"arm": free.wait, "claw": lambda: None, "base": lambda: None}
    with acting(agent) as actuator:
        actuator.safe("miss")
        until(lambda: "base False" in acts)
        actuator.safe("miss")
        until(lambda: acts.count("base False") == 2)
        assert acts.count("arm False") == 1
        free.set()
        until(lambda: actuator.retry() and actuator.wait_safe(0.02))
    first = agent.fallback.safe_calls[0]
    attempts = [e for e in actuator.effects if isinstance(e, SafeAttempt)]
    assert [e.attempt for e in attempts if e.call == first] == [1, 2] and acts.count("arm False") == 2
    assert [e.in_force for e in attempts].index(True) == len(attempts) - 1


def test_a_call_that_waits_for_its_turn_when_people_stop_does_not_act() -> None:
    arm = Arm()
    world = arm.world()
    world.start("lockstep")
    actuator = Actuator(arm_agent(), world, None, lambda: None)
    actuator.execute(Command(0, MOVE, 1, None))
    actuator.bar("stopped")
    actuator.start()
    until(lambda: actuator.effects)
    done = actuator.effects.popleft()
    assert isinstance(done, Completion) and done.effect == "refused" and arm.acts == []
    actuator.close()


def test_an_interrupt_of_a_run_that_is_ending_waits_for_nothing(tmp_path: Path) -> None:
    world = CartWorld()
    world.on_execute = lambda call: time.sleep(2.0) if call.arguments["force"] == 0 else None
    flown = Flight(tmp_path, lambda request: Decision(Call("push", {"force": 1})), world=world, duration_s=None)

    def third() -> None:
        flown.loop.stop("SIGTERM")
        raise KeyboardInterrupt

    flown.after(5, lambda: setattr(world, "latest", third))
    began = []
    with pytest.raises(KeyboardInterrupt):
        try:
            flown.run()
        finally:
            began.append(flown.loop.t_end_ns)
    assert time.monotonic_ns() - began[0] < 1.5e9
    assert not flown.loop.safe_in_force and flown.lines[-1]["end"] == "SIGTERM"


def owner(log: list[str]) -> Agent:
    """An agent whose tool is its own function, and takes 20 ms."""

    @tool
    def nudge(by: Annotated[int, OneOf(0, 1)]) -> None:
        """Nudge."""
        log.append("begin")
        time.sleep(0.02)
        log.append("end")

    return replace(arm_agent(), tools=Tools([nudge]), fallback=Fallback())


NUDGE = Call("nudge", {"by": 1})


def test_a_tools_own_function_is_not_called_after_the_deadline() -> None:
    log: list[str] = []
    with acting(owner(log)) as actuator:
        actuator.execute(Command(0, NUDGE, 1, time.monotonic_ns() - 1))
        until(lambda: actuator.effects)
        actuator.execute(Command(1, NUDGE, 2, None))
        actuator.safe("exit")
        assert actuator.wait_safe(5)
    effects = [e.effect for e in actuator.effects if isinstance(e, Completion)]
    assert effects[:1] == ["too_late"] and set(effects[1:]) <= {"epoch_over"} and log == []


def test_the_safe_call_goes_first_when_the_world_yields() -> None:
    arm = Arm()
    world = arm.world()
    before: list[list[str]] = []
    arm.refuse = lambda call: before.append(list(arm.instructions))
    later = time.monotonic_ns() + 10**10
    with acting(arm_agent(STOP), world, 1_000_000) as actuator:
        with held(world):  # a call waits for it
            actuator.execute(Command(0, MOVE, 1, time.monotonic_ns() + 1_000_000))
            until(lambda: actuator._order is None)
            assert actuator.execute(Command(1, MOVE, 1, later)) is None
            replaced = actuator.execute(Command(2, MOVE, 1, later))
            assert replaced is not None and replaced.tick == 1
            actuator.instruct("go on")
            cleared = actuator.safe("miss")
            assert cleared is not None and cleared.tick == 2
            time.sleep(0.002)
        assert actuator.wait_safe(5)
        actuator.execute(Command(3, MOVE, 1, later))
        until(lambda: len(arm.acts) == 2)
    assert [call for _, call in arm.acts] == [STOP, MOVE]
    assert before == [[], ["go on"]]


@pytest.mark.parametrize("error", [OSError, SystemExit, KeyboardInterrupt])
def test_a_tool_that_raises_is_told_once_with_its_line(tmp_path: Path, error: type[BaseException]) -> None:
    arm = Arm()
    arm.refuse = failing(5, MOVE, error)
    flown = flight(tmp_path, arm, duration_s=0.6).run()
    flown.blames("execute", 5)  # on a busy machine a call may give way to the safe call as well
    assert [tick.get("subcause") for tick in flown.ticks].count("raised") == 5
    told = [line for line in flown.said if "does not answer" in line]
    assert len(told) == 1 and "tests/rtcontrol/arm.py:" in told[0]
    entry = report.of_record(flown.path)["errors"][0]
    assert entry["error"] == f"{error.__name__}: the drive does not answer" and entry["count"] == 5
    assert entry["cause"] == "execute" and "tests/rtcontrol/arm.py:" in entry["where"] and entry["first_t_s"] < 0.2


@pytest.mark.parametrize("times", [3, 10**9])
@pytest.mark.parametrize("clock", ["wall", "lockstep"])
def test_a_step_that_raises_ends_the_run_and_the_safe_call_is_in_force_with_the_next_that_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: str, times: int
) -> None:
    monkeypatch.setattr("rtcontrol.loop.loop.LEAVE_S", 1.0)
    arm, left = Arm(), [times]

    def broken() -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise ZeroDivisionError("no wheel left")
        arm.acts.append((time.monotonic_ns(), Call("step")))

    flown = flight(tmp_path, arm, clock=clock)
    flown.after(4, lambda: setattr(arm, "on_step", broken))
    flown.run()
    assert flown.loop.ended_by == "error" and flown.loop.failure is not None
    assert "ZeroDivisionError: no wheel left (tests/rtcontrol/loop/test_actuator.py:" in flown.loop.failure
    ends = times == 3
    assert flown.loop.safe_in_force is flown.lines[-1]["safe_in_force"] is ends is not flown.loop.unsafe
    attempts = safes(flown, "exit")
    assert [a["in_force"] for a in attempts] == [False] * (len(attempts) - 1) + [ends] and len(attempts) >= 3
    assert all("no wheel left" in a["error"] for a in attempts[:-1])
    assert [call.name for _, call in arm.acts if call != MOVE][-2:] == (["move", "step"] if ends else ["move"] * 2)
    assert flown.lines[-1]["end"] == "error" and any("THE SAFE CALL IS NOT" in line for line in flown.said) is not ends
    assert report.of_record(flown.path)["errors"][0]["cause"] == "world"


# -- where the loop itself does not come back --------------------------------------------------------------------------


def hung(seconds: float, look: int = 12) -> tuple[Agent, threading.Event]:
    """Whose `observe` hangs once, at this look (the first five are the warm-up's), and tells so."""
    seen, hangs = [0], threading.Event()

    def observe(data: Any) -> str:
        seen[0] += 1
        if seen[0] == look:
            hangs.set()
            time.sleep(seconds)
        return "-"

    return replace(arm_agent(hold_ms=100.0), observe=observe), hangs


def test_an_observe_that_hangs_brings_the_safe_call_within_the_hold(tmp_path: Path) -> None:
    arm = Arm()
    flown = flight(tmp_path, arm, agent=hung(1.0)[0], duration_s=1.6).run()
    [attempt] = safes(flown, "loop")
    assert attempt["in_force"]
    hangs = max(b["t_s"] - a["t_s"] for a, b in pairwise(flown.ticks))
    assert hangs > 0.8
    before = next(a for a, b in pairwise(flown.ticks) if b["t_s"] - a["t_s"] == hangs)
    assert attempt["t_s"] - before["t_s"] <= 0.1 + 4 * PERIOD_S
    assert flown.ticks[-1]["kind"] == "call"  # it goes on when the loop is back


def test_a_third_signal_while_observe_hangs_still_brings_the_safe_call(tmp_path: Path) -> None:
    arm = Arm()
    agent, hangs = hung(30.0)
    agent = replace(agent, fallback=replace(agent.fallback, hold_ms=60_000.0))
    flown = flight(tmp_path, arm, agent=agent)

    def leave() -> None:
        assert hangs.wait(10)
        time.sleep(0.05)  # a signal just before it sleeps would not wake it
        flown.loop.stop("SIGTERM")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        beside(leave, flown.run)
    assert arm.acts[-1][1] == STOP and flown.loop.safe_in_force


def test_calls_that_a_hung_tool_kept_waiting_are_no_ticks_on_time(tmp_path: Path) -> None:
    arm = Arm()
    arm.refuse = lambda call: time.sleep(1.0 if len(arm.tries) == 6 else 0)
    waits = {"pipeline": 4, "deadline_ms": 4e3 * PERIOD_S, "max_age_ms": 60_000.0}
    flown = flight(tmp_path, arm, hold_ms=60_000.0, duration_s=1.4, **waits).run()
    waited = [t for t in flown.ticks if t["kind"] == "miss" and t["cause"] == "execute"]
    assert len(waited) >= 10, [(t["kind"], t.get("cause")) for t in flown.ticks]


# -- where the world is told, and cannot be --------------------------------------------------------------------------


class Radio(PacedEnvironment):
    """An arm that is told what becomes of each tick. `refuse` is asked before, and may raise."""

    def __init__(self, refuse: Callable[[Emission], object]) -> None:
        super().__init__("arm", Arm())
        self.heard: list[tuple[int, Emission]] = []
        self._refuse = refuse

    def emit(self, emission: Emission) -> None:
        self._refuse(emission)
        self.heard.append((time.monotonic_ns(), emission))


def deaf(times: int, status: str) -> Callable[[Emission], None]:
    refuse = failing(times)
    return lambda emission: refuse(STOP if emission.status == status else MOVE)


@pytest.mark.parametrize("calls", [(), (STOP,), (STOP, OPEN)])
def test_a_safe_call_that_could_not_be_sent_is_not_in_force_and_sent_again(calls: tuple[Call, ...]) -> None:
    world = Radio(deaf(2, "safe"))
    actuator = Actuator(replace(arm_agent(), fallback=Fallback(calls=calls)), world, 50_000_000, lambda: None)
    world.start("wall")
    actuator.start()
    safe = Emission(0, 1, 1, 0, "safe", safe_calls=calls)
    actuator.safe("miss", safe)
    assert not actuator.wait_safe(0.07) and actuator.pending and world.heard == []
    assert actuator.wait_safe(5) and [e for _, e in world.heard] == [safe]
    actuator.close()
    attempts = [e for e in actuator.effects if isinstance(e, SafeAttempt)]
    last = [(3, False, call == (calls or (None,))[-1]) for call in calls or (None,)]
    assert [(a.attempt, isinstance(a.error, OSError), a.in_force) for a in attempts] == [
        *[(1, True, False)] * len(last),
        *[(2, True, False)] * len(last),
        *last,
    ]


def test_a_call_that_could_not_be_sent_is_a_miss_and_a_loop_that_hangs_is_told_to_the_world(tmp_path: Path) -> None:
    world = Radio(deaf(1, "fresh"))
    flown = Flight(tmp_path, on, world=world, agent=hung(0.6)[0], hz=HZ, duration_s=1.4)  # type: ignore[arg-type]
    flown.run()
    flown.blames("execute", 1, 1)
    assert [t["error"] for t in flown.ticks if t.get("cause") == "execute"] == ["OSError: the drive does not answer"]
    [attempt] = safes(flown, "loop")
    assert attempt["in_force"] and report.of_record(flown.path)["safe_calls"] == flown.loop.account.safe_calls >= 1
    # It is told while the loop hangs.
    first = next(number for number, (_, e) in enumerate(world.heard) if e.status == "safe")
    assert world.heard[first][0] - world.heard[first - 1][0] < 0.55e9 and world.heard[first][1].call == STOP
    assert "fresh" in [e.status for _, e in world.heard[first:]], "it went on when the loop was back"


# -- laws of the actuator alone ----------------------------------------------------------------------------------------

steps = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.sampled_from([MOVE, OPEN]), st.integers(-5, 30)),
        st.tuples(st.just("safe"), st.none(), st.just(0)),
        st.tuples(st.just("fail"), st.sampled_from([MOVE, STOP, OPEN]), st.integers(1, 2)),
        st.tuples(st.just("hang"), st.none(), st.just(0)),
        st.tuples(st.just("wait"), st.none(), st.integers(0, 8)),
    ),
    max_size=12,
)


@settings(max_examples=40)
@given(steps)
def test_nothing_late_acts_and_the_safe_calls_come_in_force(story: list[tuple[str, Any, int]]) -> None:
    arm, refusals = Arm(), dict.fromkeys(map(Call.text, (MOVE, STOP, OPEN)), 0)

    def refuse(call: Call) -> None:
        if refusals[call.text()] > 0:
            refusals[call.text()] -= 1
            raise OSError("not now")

    arm.refuse = refuse
    world = arm.world()
    busy, given = ExitStack(), {}
    replaced: list[Command | None] = []
    with acting(arm_agent(STOP, OPEN), world, 5_000_000) as actuator:
        for number, (what, call, ms) in enumerate(story):
            if what == "call":
                given[number] = (call, time.monotonic_ns() + ms * 1_000_000)
                replaced.append(actuator.execute(Command(number, call, 1, given[number][1])))
            elif what == "safe":
                replaced.append(actuator.safe("miss"))
            elif what == "fail":
                refusals[call.text()] = ms
            elif what == "hang":
                busy.close()
                busy.enter_context(held(world))
            else:
                time.sleep(ms / 1e3)
        world.conclude()
        replaced.append(actuator.safe("exit"))
        busy.close()
        assert actuator.wait_safe(5.0)
    dropped = {order.tick for order in replaced if order is not None}
    done = {e.tick: e for e in actuator.effects if isinstance(e, Completion)}
    # Each call has one end: dropped before it began, or told of; and none acted late.
    assert set(done) == set(given) - dropped and not set(done) & dropped
    acted = sorted(done[k].ended_ns for k in done if done[k].effect == "acted")
    slack_ns = 5_000_000  # from the look at the clock to the act itself
    for k in (k for k in done if done[k].effect == "acted"):
        tried = [t for t, c in arm.tries if c == given[k][0] and done[k].began_ns <= t <= done[k].ended_ns]
        assert tried and tried[-1] <= given[k][1] + slack_ns
    assert all(done[k].effect == "failed" for k in done if done[k].error is not None)
    # What was last is safe, both of them, each once.
    attempts = [e for e in actuator.effects if isinstance(e, SafeAttempt) and e.why == "exit"]
    good = [a.call for a in attempts if a.error is None]
    assert sorted(map(Call.text, filter(None, good))) == sorted([STOP.text(), OPEN.text()])
    assert [a.in_force for a in attempts] == [False] * (len(attempts) - 1) + [True]
    assert not acted or acted[-1] <= attempts[-1].ended_ns
    last = {call.name: call for _, call in arm.acts}
    assert last == {"move": STOP, "grip": OPEN}


# What is in force stays so: no miss of a busy machine's brings the safe call before the end does.
PATIENT = {"hold_ms": 60_000.0}


@pytest.mark.parametrize("calls", [(STOP,), (STOP, OPEN)])
def test_the_way_out_waits_until_the_safe_call_is_in_force(tmp_path: Path, calls: tuple[Call, ...]) -> None:
    arm = Arm()
    arm.refuse = failing(3, calls[-1])
    flown = flight(tmp_path, arm, on, *calls, **PATIENT, duration_s=0.3).run()
    assert flown.loop.safe_in_force and arm.acts[-1][1] == calls[-1]
    assert [a["attempt"] for a in safes(flown, "exit") if a["safe"] == calls[-1].text()] == [1, 2, 3, 4]
    assert flown.lines[-1]["safe_in_force"]


def test_a_safe_call_that_never_succeeds_is_told_loudly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "LEAVE_S", 0.3)
    arm = Arm()
    arm.refuse = failing(1000, error=SystemExit)
    flown = flight(tmp_path, arm, **PATIENT, duration_s=0.3).run()
    assert not flown.loop.safe_in_force and not flown.lines[-1]["safe_in_force"]
    assert any("NOT IN FORCE" in line for line in flown.said)
    assert len(safes(flown, "exit")) >= 3 and not any(a["in_force"] for a in safes(flown, "exit"))


@pytest.mark.parametrize("interrupts", [False, True])
def test_only_an_interrupt_on_the_way_out_leaves_a_slow_safe_call(tmp_path: Path, interrupts: bool) -> None:
    arm, ended = Arm(), threading.Event()
    arm.refuse = lambda call: ended.wait(20.0 if interrupts else 0.7) if call == STOP else None
    flown = flight(tmp_path, arm, **PATIENT)
    came: list[int] = []

    def handle(number: int, frame: object) -> None:
        came.append(number)
        if len(came) == 1:
            flown.loop.stop("SIGINT")
        elif len(came) == 3:
            raise KeyboardInterrupt

    def send() -> None:
        until(lambda: flown.loop.account.ticks >= 3)
        os.kill(os.getpid(), signal.SIGINT)
        until(lambda: arm.tries[-1][1] == STOP)
        for number in (2, 3) if interrupts else (2,):
            os.kill(os.getpid(), signal.SIGINT)
            until(lambda n=number: len(came) == n)  # two at once would be one

    before = signal.signal(signal.SIGINT, handle)
    try:
        with pytest.raises(KeyboardInterrupt) if interrupts else nullcontext():
            beside(send, flown.run)
    finally:
        ended.set()
        signal.signal(signal.SIGINT, before)
    assert flown.loop.safe_in_force is not interrupts
    assert flown.lines[-1]["end"] == "SIGINT" and flown.lines[-1]["safe_in_force"] is not interrupts
    if not interrupts:
        assert arm.acts[-1][1] == STOP


@pytest.mark.parametrize("when", ["leave", "wait_safe", "close", "collect_effects"])
def test_an_interrupt_at_any_point_of_the_way_out_leaves_the_records_end(tmp_path: Path, when: str) -> None:
    arm = Arm()
    flown = flight(tmp_path, arm, **PATIENT, duration_s=0.2)
    actuator, outcomes = flown.loop._ticks.actuator, flown.loop._outcomes

    def interrupted(*given: Any) -> bool:
        raise KeyboardInterrupt

    if when == "leave":
        plainly, outcomes.leave = outcomes.leave, lambda: setattr(outcomes, "leave", plainly) or interrupted()  # type: ignore[func-returns-value,method-assign]
    elif when == "collect_effects":
        flown.loop._ticks.collect_effects = (  # type: ignore[method-assign]
            lambda plain=flown.loop._ticks.collect_effects: interrupted() if flown.loop.t_end_ns else plain()
        )
    else:
        setattr(actuator, when, interrupted)
    with pytest.raises(KeyboardInterrupt):
        flown.run()
    assert flown.lines[-1]["end"] == "duration"
    assert flown.lines[-1]["safe_in_force"] is (when not in ("leave", "wait_safe"))
    until(lambda: arm.acts[-1][1] == STOP)


def test_a_world_is_closed_after_an_interrupt_only_once_its_safe_call_was_tried(tmp_path: Path) -> None:
    arm = Arm()
    flown = flight(tmp_path, arm, **PATIENT, duration_s=0.2)
    actuator, plainly = flown.loop._ticks.actuator, flown.loop._ticks.actuator._bring_in_force

    def starved() -> None:
        time.sleep(0.2)  # as on a busy machine: its thread is woken late
        plainly()

    def interrupted(timeout_s: float) -> bool:
        raise KeyboardInterrupt

    actuator._bring_in_force, actuator.wait_safe = starved, interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        flown.run()
    assert arm.acts[-1][1] == STOP


@pytest.mark.parametrize("signalled", [False, True])
def test_what_was_due_while_the_loop_was_away_at_the_end_is_missed(tmp_path: Path, signalled: bool) -> None:
    hangs = threading.Event()

    def observe(data: Any) -> str:
        if flown.loop._outcomes.newest_k >= 5 and not hangs.is_set():
            hangs.set()
            time.sleep(0.8)
        return "-"

    arm = Arm()
    flown = flight(tmp_path, arm, **PATIENT, duration_s=None if signalled else 0.6)
    object.__setattr__(flown.agent, "observe", observe)
    beside(lambda: hangs.wait(20) and signalled and flown.loop.stop("SIGTERM"), flown.run)
    account = flown.loop.account
    assert account.skipped_releases >= 12 and account.releases >= 18
    last = flown.ticks[-1]
    assert last["kind"] == "miss" and last["skipped"] >= 12 and flown.lines[-1]["safe_in_force"]
    assert arm.acts[-1][1] == STOP
