"""People over the loop: nothing acts while it is paused, or after a stop; named tools wait for a yes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from arm import MOVE, STOP, Arm, arm_agent, failing, on
from cart import CartWorld, Flight, good

from rtcontrol.agents import Agent
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.loop import tick as ticks
from rtcontrol.loop.config import RunConfig, confidence
from rtcontrol.loop.operator import check_named
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.errors import UserError
from rtcontrol.run import assembly
from rtcontrol.telemetry.channels import schema, topic_of
from tests.helpers.processes import until

pytestmark = pytest.mark.realtime
HZ, PERIOD_S = 20, 0.05
CLOSE = Call("grip", {"closed": 1})


def flown(out: Path, person: Callable[[Flight, Arm], Any], decide: Any = on, **more: Any) -> tuple[Flight, Arm]:
    """A run of the arm beside which a person does something, and which ends with it."""
    arm = Arm()
    settings = {"hz": HZ, "duration_s": None, "hold_ms": 60_000.0, "agent": arm_agent(), **more}
    flight = Flight(out, decide, world=arm.world(), **settings)  # type: ignore[arg-type]

    def beside() -> None:
        until(lambda: flight.loop.account.ticks >= 5)
        person(flight, arm)

    flight.run_beside(beside)
    return flight, arm


def acted(arm: Arm, call: Call, since_ns: int, until_ns: int) -> int:
    return sum(one == call and since_ns < t < until_ns for t, one in arm.acts)


def people(flight: Flight) -> list[str]:
    return [line["people"] for line in flight.lines if "people" in line]


def asked_for(flight: Flight) -> list[float]:
    """When the decisions were asked for whose calls acted after the run was resumed."""
    lines = flight.lines
    resumed_s = next(line["t_s"] for line in lines if line.get("people") == "resume")
    ticks = {t["k"]: t["t_s"] + t["wake_ms"] / 1e3 for t in lines if "kind" in t}
    acted = [line for line in lines if "called" in line and line["why"] != "safe" and line["t_s"] > resumed_s]
    return [ticks[line["k"]] - resumed_s for line in acted if line["k"] in ticks]


def hanging() -> tuple[threading.Event, Agent]:
    """An agent whose own code keeps the loop's thread while the event is not set."""
    free = threading.Event()
    free.set()

    def observe(data: Any) -> str:
        free.wait(20)
        return "-"

    return free, replace(arm_agent(), observe=observe)


def test_no_call_acts_while_it_is_paused_and_they_do_again_after(tmp_path: Path) -> None:
    at: dict[str, int] = {}

    def person(flight: Flight, arm: Arm) -> None:
        assert "paused" in flight.loop.operator.say("pause", "keyboard")
        at["paused"] = time.monotonic_ns()
        time.sleep(8 * PERIOD_S)
        at["resuming"] = time.monotonic_ns()
        flight.loop.operator.say("resume", "page")
        until(lambda: acted(arm, MOVE, at["resuming"], time.monotonic_ns()) >= 3)

    flight, arm = flown(tmp_path, person)
    # One that was being executed at that instant ends before the safe call; after that, none.
    assert acted(arm, MOVE, at["paused"] + 5_000_000, at["resuming"]) == 0
    assert acted(arm, STOP, at["paused"] - 20_000_000, at["resuming"]) in (1, 2)
    held = [t for t in flight.ticks if t.get("why") == "paused"]
    assert len(held) >= 5 and all(t["kind"] == "held" and "cause" not in t for t in held)
    assert people(flight) == ["pause", "resume"]
    assert [line["by"] for line in flight.lines if "people" in line] == ["keyboard", "page"]
    assert any(line.get("safe") and line["why"] == "pause" and line["in_force"] for line in flight.lines)
    for line in flight.lines:
        jsonschema.validate(line, schema(topic_of(line)))


def test_process_stops_once_the_safe_call_is_active(tmp_path: Path) -> None:
    at: dict[str, Any] = {}

    def person(flight: Flight, arm: Arm) -> None:
        halted, continued = threading.Event(), threading.Event()

        def halt() -> None:
            at["halted"], at["last"] = time.monotonic_ns(), arm.acts[-1][1]
            halted.set()
            continued.wait(20)
            at["continued"] = time.monotonic_ns()

        flight.loop.suspend(halt)
        assert halted.wait(20)
        time.sleep(3 * PERIOD_S)
        continued.set()
        until(lambda: any(call == MOVE and t > at.get("continued", t) for t, call in arm.acts))

    flight, arm = flown(tmp_path, person)
    assert at["last"] == STOP
    assert not [call for t, call in arm.acts if at["halted"] < t < at["continued"] and call != STOP]
    assert people(flight) == ["pause", "resume"]
    # As after a pause: nothing that was decided before acts.
    assert min(asked_for(flight)) >= 0


def test_process_does_not_stop_while_the_safe_call_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticks, "HALT_WAIT_S", 0.2)
    halts: list[int] = []

    def person(flight: Flight, arm: Arm) -> None:
        arm.refuse = failing(1000)
        flight.loop.suspend(lambda: halts.append(1))
        until(lambda: any("Not stopped" in line for line in flight.said))
        assert flight.loop.operator.state == "paused"
        arm.refuse = lambda call: None

    flown(tmp_path, person)
    assert not halts


@pytest.mark.parametrize("fails", [False, True])
def test_in_an_episode_that_begins_while_it_is_paused_the_safe_call_acts_alone(tmp_path: Path, fails: bool) -> None:
    paused = threading.Event()

    def decide(request: DecisionRequest) -> Decision:
        if fails and paused.is_set():
            raise RuntimeError("no idea")
        return good(request)

    world = CartWorld(episode_s=0.4)
    flight = Flight(tmp_path, decide, world=world, duration_s=1.4)
    flight.after(5, lambda: (flight.loop.operator.say("pause", "wire"), paused.set()))
    flight.run()
    paused_s = next(line["t_s"] for line in flight.lines if "people" in line) + flight.loop._outcomes.t0_ns / 1e9
    after = [(call, epoch) for t, call, epoch in world.executed if t > paused_s + 0.02]
    assert all(call == Call("push", {"force": 0}) for call, _ in after)
    assert len({epoch for _, epoch in after}) >= 3, after


@pytest.mark.parametrize("said", ["pause", "stop"])
def test_a_call_that_waits_for_the_world_does_not_act_after_a_pause_or_a_stop(tmp_path: Path, said: str) -> None:
    at: dict[str, int] = {}

    def person(flight: Flight, arm: Arm) -> None:
        arm.hang()
        time.sleep(2.5 * PERIOD_S)  # a call is in the world's hands now, and has its deadline before it
        flight.loop.operator.say(said, "wire")
        at["said"] = time.monotonic_ns()
        arm.let_go()
        until(lambda: acted(arm, STOP, at["said"], time.monotonic_ns()) >= 1)
        time.sleep(4 * PERIOD_S)
        at["end"] = time.monotonic_ns()

    # A deadline that is far off: nothing but the person's word keeps the call from acting.
    flight, arm = flown(tmp_path, person, pipeline=20, deadline_ms=900.0)
    assert acted(arm, MOVE, at["said"], at["end"]) == 0
    assert flight.loop.safe_in_force


def test_a_call_that_waits_for_the_world_does_not_act_after_a_pause_that_is_over_by_then(tmp_path: Path) -> None:
    def person(flight: Flight, arm: Arm) -> None:
        arm.hang()
        time.sleep(2.5 * PERIOD_S)
        flight.loop.operator.say("pause", "page")
        flight.loop.operator.say("resume", "page")
        since = arm.let_go()
        until(lambda: acted(arm, MOVE, since, time.monotonic_ns()) >= 4)

    flight, _ = flown(tmp_path, person, pipeline=20, deadline_ms=900.0)
    asked = asked_for(flight)
    assert len(asked) >= 3 and min(asked) > -1e-5, asked


def test_a_decision_that_was_asked_for_before_the_resume_does_not_act(tmp_path: Path) -> None:
    asked, answer = threading.Event(), threading.Event()
    wait = threading.Event()

    def decide(request: DecisionRequest) -> Decision:
        if wait.is_set():
            asked.set()
            answer.wait(10)
        return Decision(MOVE)

    def person(flight: Flight, arm: Arm) -> None:
        flight.loop.operator.say("pause", "page")
        wait.set()
        assert asked.wait(10)
        flight.loop.operator.say("resume", "page")
        since = time.monotonic_ns()
        answer.set()
        until(lambda: acted(arm, MOVE, since, time.monotonic_ns()) >= 4)

    flight, _ = flown(tmp_path, person, decide, pipeline=20, deadline_ms=900.0)
    asked_s = asked_for(flight)
    assert len(asked_s) >= 3 and min(asked_s) > -1e-5, asked_s
    # Such a tick is held, and no miss.
    assert not any(t["kind"] == "miss" and t["cause"] == "execute" for t in flight.ticks)


def test_a_run_that_is_paused_before_it_begins_begins_paused_and_one_that_is_stopped_never_does(tmp_path: Path) -> None:
    for said, kinds in (("pause", {"held"}), ("stop", set())):
        arm = Arm()
        flight = Flight(tmp_path / said, on, world=arm.world(), agent=arm_agent(), hz=HZ, duration_s=0.5)  # type: ignore[arg-type]
        flight.loop.operator.say(said, "keyboard")
        flight.run()
        assert {t["kind"] for t in flight.ticks} == kinds
        assert {call.text() for _, call in arm.acts} == ({STOP.text()} if kinds else set())


@pytest.mark.parametrize("said", ["pause", "stop"])
def test_the_safe_call_acts_at_a_word_though_the_loop_hangs(tmp_path: Path, said: str) -> None:
    free, agent = hanging()

    def person(flight: Flight, arm: Arm) -> None:
        free.clear()
        time.sleep(2 * PERIOD_S)  # the loop is in the agent's code now
        try:
            since = time.monotonic_ns()
            flight.loop.operator.say(said, "keyboard")
            until(lambda: acted(arm, STOP, since, time.monotonic_ns()) >= 1, seconds=5)
        finally:
            free.set()

    flown(tmp_path, person, agent=agent)


def test_a_stop_is_final_and_ends_the_run_with_the_safe_call(tmp_path: Path) -> None:
    at: dict[str, Any] = {}

    def person(flight: Flight, arm: Arm) -> None:
        flight.loop.operator.say("stop", "keyboard")
        at["said"] = time.monotonic_ns()
        at["answer"] = flight.loop.operator.say("resume", "page")

    flight, arm = flown(tmp_path, person)
    assert flight.loop.ended_by == "stop" and flight.loop.safe_in_force
    assert "final" in at["answer"] and flight.loop.operator.state == "stopped"
    assert arm.acts[-1][1] == STOP and acted(arm, MOVE, at["said"] + 5_000_000, time.monotonic_ns()) == 0
    # What is ordered later still finds it shut: by a loop that did not hear of it, say.
    actuator = flight.loop._ticks.actuator
    assert actuator.shut == "stopped"


def closing(request: DecisionRequest) -> Decision:
    """Wants to close the gripper at every third tick."""
    return Decision(CLOSE if request.tick % 3 == 0 else MOVE)


def test_a_named_tool_acts_after_a_yes_and_only_that_once(tmp_path: Path) -> None:
    at: dict[str, Any] = {}

    def person(flight: Flight, arm: Arm) -> None:
        until(lambda: flight.loop.operator.asking is not None)
        time.sleep(4 * PERIOD_S)
        at["before"] = sum(call == CLOSE for _, call in arm.acts)
        at["others"] = sum(call == MOVE for _, call in arm.acts)
        assert "No call" in flight.loop.operator.say("confirm", "page", 10_000)
        flight.loop.operator.say("confirm", "page")
        until(lambda: any(call == CLOSE for _, call in arm.acts))

    flight, arm = flown(tmp_path, person, closing, confirm=("grip",))
    assert at["before"] == 0 and at["others"] >= 4
    assert sum(call == CLOSE for _, call in arm.acts) == 1
    said = people(flight)
    assert said[:2] == ["ask", "confirm"]
    held = [t for t in flight.ticks if t.get("why") == "confirm"]
    assert held and all(t["kind"] == "held" and t["call"] == CLOSE.text() for t in held)
    assert any(line.get("used") for line in flight.lines if "late" in line)


def test_a_call_that_nobody_confirms_in_time_is_refused_and_recorded(tmp_path: Path) -> None:
    at: dict[str, Any] = {}

    def person(flight: Flight, arm: Arm) -> None:
        until(lambda: "unanswered" in people_so_far(flight))
        at["answer"] = None

    def people_so_far(flight: Flight) -> list[str]:
        return [event["people"] for event in flight.loop.account.people]

    flight, arm = flown(tmp_path, person, closing, confirm=("grip",), confirm_s=3 * PERIOD_S)
    assert not any(call == CLOSE for _, call in arm.acts)
    assert any("nobody said yes or no to" in said for said in flight.said)
    unanswered = next(line for line in flight.lines if line.get("people") == "unanswered")
    assert unanswered["call"] == CLOSE.text()


def test_a_no_is_kept_until_the_questions_time_is_over_and_a_pause_ends_it(tmp_path: Path) -> None:
    def person(flight: Flight, arm: Arm) -> None:
        until(lambda: flight.loop.operator.asking is not None)
        flight.loop.operator.say("deny", "keyboard")
        until(lambda: "deny" in [event["people"] for event in flight.loop.account.people])
        assert "No call" in flight.loop.operator.say("confirm", "keyboard")
        time.sleep(6 * PERIOD_S)
        flight.loop.operator.say("pause", "keyboard")
        until(lambda: flight.loop.operator.asking is None)

    flight, arm = flown(tmp_path, person, closing, confirm=("grip",))
    assert not any(call == CLOSE for _, call in arm.acts)
    assert people(flight)[:3] == ["ask", "deny", "pause"]


def test_a_no_is_not_overtaken_by_a_yes_that_the_loop_hears_with_it(tmp_path: Path) -> None:
    free, agent = hanging()

    def person(flight: Flight, arm: Arm) -> None:
        until(lambda: flight.loop.operator.asking is not None)
        free.clear()
        time.sleep(2 * PERIOD_S)  # the loop is in the agent's code now
        for word in ("deny", "confirm"):
            flight.loop.operator.say(word, "keyboard")
        free.set()
        until(lambda: "confirm" in [event["people"] for event in flight.loop.account.people])
        time.sleep(4 * PERIOD_S)

    flight, arm = flown(tmp_path, person, closing, confirm=("grip",), agent=agent)
    assert not any(call == CLOSE for _, call in arm.acts)
    assert people(flight)[:3] == ["ask", "deny", "confirm"]


def test_a_head_that_is_less_sure_than_its_own_floor_holds_the_call_back(tmp_path: Path) -> None:
    sure = {"function": 0.9, "arg1": 0.4}

    def decide(request: DecisionRequest) -> Decision:
        return Decision(MOVE, sure)

    held, arm = flown(tmp_path / "a", lambda flight, arm: None, decide, min_confidence={"speed": 0.5})
    assert {t.get("why") for t in held.ticks if t["kind"] == "held"} == {"confidence"}
    assert not any(call == MOVE for _, call in arm.acts)
    free, arm = flown(tmp_path / "b", lambda flight, arm: None, decide, min_confidence={"function": 0.8, "arg1": 0.3})
    assert any(call == MOVE for _, call in arm.acts) and free.loop.account.held == 0


def test_an_unsure_null_does_not_renew_the_call_in_force(tmp_path: Path) -> None:
    def decide(request: DecisionRequest) -> Decision:
        return Decision(MOVE, {"function": 0.9}) if request.tick < 5 else Decision(None, {"function": 0.4})

    def person(flight: Flight, arm: Arm) -> None:
        until(lambda: arm.acts and arm.acts[-1][1] == STOP)

    agent = replace(arm_agent(), allow_null=True)
    floor = {"function": 0.5}
    flight, arm = flown(tmp_path, person, decide, agent=agent, min_confidence=floor, hold_ms=4e3 * PERIOD_S)
    assert any(call == MOVE for _, call in arm.acts)
    assert any(t["kind"] == "held" and "call" not in t for t in flight.ticks)


def test_confidence_is_a_number_or_one_a_head_and_what_the_agent_lacks_is_named() -> None:
    assert confidence("0.5") == 0.5
    assert confidence("0.2, function=0.6,main=0.3") == {"": 0.2, "function": 0.6, "main": 0.3}
    for wrong in ("sure", "main=", "=0.3", "main=0.3,main=0.4"):
        with pytest.raises(UserError, match="no list of probabilities"):
            confidence(wrong)
    lander = assembly.agent("lander")
    check_named(RunConfig(env="lander", min_confidence={"function": 0.6, "main": 0.3}, confirm=("engines",)), lander)
    with pytest.raises(UserError, match="no such head"):
        check_named(RunConfig(env="lander", min_confidence={"wheel": 0.6}), lander)
    with pytest.raises(UserError, match="no tool"):
        check_named(RunConfig(env="lander", confirm=("launch",)), lander)
    with pytest.raises(UserError, match="no probability"):
        RunConfig(env="lander", min_confidence={"main": 1.5})
