"""Several calls a tick: each one decided with those before it, by the tick's one deadline; none acts late, and the safe
call wins over all of them."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from arm import MOVE, OPEN, PERIOD_S, STOP, Arm, arm_agent, beside, failing, flight, until
from cart import CartWorld, Flight, cart_agent
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.loop.config import RunConfig
from rtcontrol.loop.operator import check_named
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.channels import schema
from rtcontrol.telemetry.record_reader import rows

pytestmark = pytest.mark.realtime
CLOSE = Call("grip", {"closed": 1})
FURTHER = Draft202012Validator({**schema("/further"), "additionalProperties": False})
Decide = Callable[[DecisionRequest], Decision]


def of(flown: Flight, k: int) -> list[tuple[int, str]]:
    """What became of the tick's further calls."""
    return [(line["n"], line["outcome"]) for line in flown.lines if line.get("further") == k]


def by_count(*decide: Decide) -> Decide:
    """The n-th decision of each tick is the n-th of these's, the last one's from there on. In-process alone."""
    counts: dict[int, int] = {}

    def decided(request: DecisionRequest) -> Decision:
        n = counts[request.tick] = counts.get(request.tick, -1) + 1
        return decide[min(n, len(decide) - 1)](request)

    return decided


def to(call: Call | None, after_s: float = 0.0, sure: float = 1.0) -> Decide:
    def decide(request: DecisionRequest) -> Decision:
        if request.tick >= 0 and after_s:
            time.sleep(after_s)
        return Decision(call, {"function": sure})

    return decide


def several(out: Path, arm: Arm, decide: Decide, calls: int = 4, *safe: Call, **more: Any) -> Flight:
    """A run of the arm; no tick of it waits long for its first call."""
    agent = replace(arm_agent(*safe, hold_ms=more.pop("hold_ms", 500.0)), history=6)
    return flight(out, arm, decide, agent=agent, calls_per_tick=calls, **{"duration_s": 8 * PERIOD_S, **more})


def acts(arm: Arm, flown: Flight, k: int) -> list[Call]:
    """What acted between the tick's release and the next."""
    begin = flown.loop._outcomes.t0_ns + round(k * PERIOD_S * 1e9)
    return [call for t, call in arm.acts if begin <= t < begin + round(PERIOD_S * 1e9)]


@settings(max_examples=8, deadline=None)
@example(7, 2, 0.0)
@example(7, 4, 0.0)
@given(st.integers(0, 1 << 30), st.integers(1, 7), st.floats(0, 0.3))
def test_the_calls_of_a_tick_are_so_many_decisions_each_with_those_before_in_its_history(
    seed: int, most: int, quiet: float
) -> None:
    history = 6

    def decide(request: DecisionRequest) -> Decision:
        chance = random.Random(f"{seed} {request.observation} {request.instruction} {request.history}")
        call = None if chance.random() < quiet else Call("push", {"force": chance.randint(-2, 2)})
        return Decision(call, {"function": 0.9}, 1, 20, 5)

    with TemporaryDirectory() as folder:
        flown = Flight(
            Path(folder),
            decide,
            world=CartWorld(5.0),
            agent=replace(cart_agent(history), allow_null=True),
            clock="lockstep",
            duration_s=None,
            episodes=2,
            hz=4.0,  # a deadline that a busy machine keeps, too: what it would cut acts here, and is counted
            calls_per_tick=most,
        ).run()
        lines = flown.lines
    asked = {line["k"]: line for line in lines if "observation" in line}
    expected: list[tuple[int, Call]] = []
    known: dict[int, list[str]] = {}
    for k, seen in asked.items():
        made: list[Call] = []
        while len(made) < most:
            before = (*seen["history"], *(call.text() for call in made))[-history:]
            call = decide(DecisionRequest(k, 0, seen["observation"], seen["instruction"], before)).call
            if call is None or call in made:
                break
            made.append(call)
        expected += [(k, call) for call in made]
        known[k] = [call.text() for call in made]
    called = [line for line in lines if "called" in line and line["why"] != "safe"]
    assert [(line["k"], Call(line["called"], line["arguments"])) for line in called] == expected
    assert [call for _, call, _ in flown.world.executed[: len(expected)]] == [call for _, call in expected]
    # They are in the next tick's history, but where a new episode began.
    epochs = {k: seen["epoch"] for k, seen in asked.items()}
    for k in asked:
        if epochs.get(k - 1) == epochs[k]:
            assert asked[k]["history"] == [*asked[k - 1]["history"], *known[k - 1]][-history:]
    account = flown.loop.account
    assert account.calls.summary()["total"] == len(expected)
    assert account.calls.most == max(map(len, known.values()), default=0)
    assert account.ticks == len(asked) and account.calls_cut == 0
    # Each is a row, with those before it in its history; so is the decision that nothing more is to be done.
    taught = [(row["history"], row["call"]) for row in rows(lines)]
    for k, seen in asked.items():
        shown = list(seen["history"])
        for text in known[k]:
            assert any(history == shown and Call.from_dict(call).text() == text for history, call in taught if call)
            shown = [*shown, text][-history:]
    for line in (line for line in lines if "further" in line):
        FURTHER.validate(line)


def test_what_is_decided_by_the_deadline_acts_and_what_comes_later_is_dropped_and_counted(tmp_path: Path) -> None:
    arm = Arm()
    late = by_count(to(MOVE), to(OPEN), to(CLOSE, 2.6 * PERIOD_S))
    flown = several(tmp_path, arm, lambda r: late(r) if r.tick == 2 else Decision(MOVE)).run()
    tick = next(t for t in flown.ticks if t["k"] == 2)
    assert "cause" not in tick and tick["kind"] == "call"
    assert of(flown, 2) == [(1, "acted"), (2, "cut")]
    assert acts(arm, flown, 2) == [MOVE, OPEN] and CLOSE not in [call for _, call in arm.acts]
    # It is no late decision of the tick's, which had its call; what it kept the decoder from is queued.
    assert not any(line.get("late") == 2 for line in flown.lines)
    assert next(t for t in flown.ticks if t["k"] == 3)["subcause"] == "queued", flown.dump()
    account = flown.loop.account
    assert account.calls_cut == sum(line.get("outcome") == "cut" for line in flown.lines) > 0
    assert account.calls.most == 2 and account.late_used == 0


def test_no_further_call_is_decided_where_less_time_is_left_than_the_last_one_took(tmp_path: Path) -> None:
    arm, asked = Arm(), list[int]()

    def decide(request: DecisionRequest) -> Decision:
        asked.append(request.tick)
        return to([MOVE, OPEN, CLOSE, STOP][asked.count(request.tick) - 1], 0.4 * PERIOD_S)(request)

    flown = several(tmp_path, arm, decide, duration_s=12 * PERIOD_S).run()
    ticks = [t["k"] for t in flown.ticks if t["kind"] == "call" and "cause" not in t]
    assert len(ticks) >= 8, flown.dump()  # nothing that was cut kept the next tick waiting
    assert sum(of(flown, k) == [(1, "acted"), (2, "cut")] and asked.count(k) == 2 for k in ticks) >= 6


def test_a_further_call_that_waits_for_the_world_does_not_act_after_the_deadline(tmp_path: Path) -> None:
    arm = Arm()

    def hang(request: DecisionRequest) -> Decision:
        arm.hang()
        return Decision(OPEN)

    of_tick = by_count(to(MOVE), hang)
    flown = several(tmp_path, arm, lambda r: of_tick(r) if r.tick == 2 else Decision(MOVE))

    def person() -> None:
        until(lambda: flown.loop._outcomes.newest_k >= 4)
        arm.let_go()

    beside(person, flown.run)
    # Nobody can tell it from one that acts: it is over at its deadline, and what is known later says that it never did.
    line = next(line for line in flown.lines if line.get("further") == 2)
    assert (line["outcome"], line.get("subcause")) == ("failed", "slow")
    assert [line["effect"] for line in flown.lines if line.get("overran") == 2] == ["too_late"]
    assert OPEN not in [call for _, call in arm.tries]
    assert "cause" not in next(t for t in flown.ticks if t["k"] == 2)


@pytest.mark.parametrize("on_miss", ["hold", "safe"])
def test_a_further_call_that_raises_is_followed_by_what_follows_a_miss_and_no_more(
    tmp_path: Path, on_miss: str
) -> None:
    arm = Arm()
    arm.refuse = failing(1, OPEN)
    of_tick = by_count(to(MOVE), to(OPEN), to(CLOSE))
    flown = several(tmp_path, arm, lambda r: of_tick(r) if r.tick == 2 else Decision(MOVE), on_miss=on_miss).run()
    assert of(flown, 2) == [(1, "failed")]
    line = next(line for line in flown.lines if line.get("further") == 2)
    assert (line["cause"], line["subcause"], line["action"]) == ("execute", "raised", on_miss)
    assert "the drive does not answer" in line["error"] and line["error"] in str(flown.loop.account.errors)
    assert acts(arm, flown, 2) == ([MOVE, STOP] if on_miss == "safe" else [MOVE])
    assert flown.loop.account.on_time == flown.loop.account.ticks, flown.dump()


def test_a_pause_while_a_further_call_is_decided_lets_the_safe_call_act_alone(tmp_path: Path) -> None:
    arm, deciding, go = Arm(), threading.Event(), threading.Event()

    def wait(request: DecisionRequest) -> Decision:
        deciding.set()
        go.wait(10)
        return Decision(OPEN)

    of_tick = by_count(to(MOVE), wait, to(CLOSE))
    # A deadline that is far off: nothing but the person's word keeps the call from acting.
    slow = {"hz": 2, "duration_s": 0.9}
    flown = several(tmp_path, arm, lambda r: of_tick(r) if r.tick == 0 else Decision(MOVE), **slow)
    at: list[int] = []

    def person() -> None:
        deciding.wait(10)
        flown.loop.operator.say("pause", "keyboard")
        until(lambda: STOP in [call for _, call in arm.acts])
        flown.loop.operator.say("resume", "keyboard")  # what was asked for before never acts
        at.append(time.monotonic_ns())
        go.set()

    beside(person, flown.run)
    assert of(flown, 0) == [(1, "held")] and OPEN not in [call for _, call in arm.tries]
    line = next(line for line in flown.lines if line.get("further") == 0)
    assert line["why"] == "paused"
    assert [call for t, call in arm.acts if t < at[0]] == [MOVE, STOP]


def test_calls_that_a_prompt_would_not_show_are_refused_before_the_run() -> None:
    config = RunConfig(env="cart", calls_per_tick=4)
    check_named(config, cart_agent(history=3))
    with pytest.raises(UserError, match="is shown its last 2 calls") as caught:
        check_named(config, cart_agent(history=2))
    assert "history=3" in caught.value.remedy
    for wrong in (0, 8):
        with pytest.raises(UserError, match="--calls-per-tick"):
            RunConfig(env="cart", calls_per_tick=wrong)
