"""What hysteresis compares with is what is in force in the world, of this session, epoch and instruction alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cart import CartWorld, Flight
from jsonschema import Draft202012Validator
from linked import LinkedHost

from rtcontrol.envs.base import Acknowledgement
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.loop.call_in_force import CallInForce, FallbackPolicy
from rtcontrol.models.call import Call, Decision
from rtcontrol.records import Tick
from rtcontrol.telemetry import report
from rtcontrol.telemetry.channels import schema

STEADY: dict[str, Any] = {"hysteresis": "margin=0.3", "clock": "lockstep", "duration_s": 0.6}
Made = Callable[[DecisionRequest], Decision]


def push(force: int, sure: float = 0.9, kept: dict[str, str | None] | None = None) -> Decision:
    return Decision(Call("push", {"force": force}), {"function": sure}, kept=kept or {})


def heard(made: Made = lambda request: push(request.tick % 3)) -> tuple[list[DecisionRequest], Made]:
    """A decider, and what it was asked."""
    asked: list[DecisionRequest] = []

    def decide(request: DecisionRequest) -> Decision:
        if request.tick >= 0:
            asked.append(request)
        return made(request)

    return asked, decide


def forces(asked: list[DecisionRequest]) -> list[int | None]:
    return [None if one.standing is None else one.standing.arguments["force"] for one in asked]


def test_the_call_that_acted_last_is_in_force_and_nothing_is_at_first(tmp_path: Path) -> None:
    asked, decide = heard()
    Flight(tmp_path, decide, **STEADY).run()
    assert len(asked) > 20 and forces(asked) == [None, *(one.tick % 3 for one in asked[:-1])]


def test_in_another_epoch_nothing_is_in_force(tmp_path: Path) -> None:
    # Unvanquished/Unvanquished#1619: should it be reset when the action has ended? With its episode, it is.
    asked, decide = heard()
    Flight(tmp_path, decide, world=CartWorld(episode_s=0.2), episodes=3, **{**STEADY, "duration_s": None}).run()
    epochs = [one.epoch for one in asked]
    firsts = [epochs.index(epoch) for epoch in dict.fromkeys(epochs)]
    assert len(firsts) == 3 and [i for i, force in enumerate(forces(asked)) if force is None] == firsts


def test_by_another_instruction_nothing_is_in_force(tmp_path: Path) -> None:
    def made(request: DecisionRequest) -> Decision:
        if request.tick == 10:
            flight.loop.instruct("go to 5")
        return push(1)

    asked, decide = heard(made)
    flight = Flight(tmp_path, decide, **STEADY)
    flight.run()
    by = [one.instruction for one in asked]
    assert by[10] == "go to 0" and by[-1] == "go to 5"
    assert [i for i, force in enumerate(forces(asked)) if force is None] == [0, by.index("go to 5")]


def test_where_the_safe_call_took_over_nothing_is_in_force(tmp_path: Path) -> None:
    def made(request: DecisionRequest) -> Decision:
        if request.tick == 10:
            raise ValueError("no")
        return push(1)

    asked, decide = heard(made)
    flight = Flight(tmp_path, decide, on_miss="safe", **STEADY).run()
    assert Call("push", {"force": 0}) in [call for _, call, _ in flight.world.executed[:-1]]
    assert [i for i, force in enumerate(forces(asked)) if force is None] == [0, 11]


def test_decision_that_is_held_back_is_not_in_force(tmp_path: Path) -> None:
    def made(request: DecisionRequest) -> Decision:
        unsure = request.tick == 5
        return push(2 if unsure else 1, 0.1 if unsure else 0.9)

    asked, decide = heard(made)
    Flight(tmp_path, decide, min_confidence=0.5, **STEADY).run()
    assert forces(asked)[4:8] == [1, 1, 1, 1]


def test_the_record_says_what_was_kept_and_the_report_counts_it(tmp_path: Path) -> None:
    def made(request: DecisionRequest) -> Decision:
        kept = request.standing is not None and request.tick % 4 == 0
        return push(1, kept={"arg1": "2", "function": None} if kept else {})

    flight = Flight(tmp_path, heard(made)[1], **STEADY).run()
    topics = ("/tick", "/observation", "/call")
    judge = {name: Draft202012Validator({**schema(name), "additionalProperties": False}) for name in topics}
    kept = 0
    for line in flight.lines:
        if "kind" in line:
            judge["/tick"].validate(line)
            expected = {"arg1": "2", "function": None} if line["k"] % 4 == 0 and line["k"] else None
            assert line.get("kept") == expected
            kept += "kept" in line
        elif "observation" in line:
            judge["/observation"].validate(line)
            acted = {"call": {"name": "push", "arguments": {"force": 1}}}
            assert line.get("in_force") == (acted if line["k"] else None)
        elif "called" in line:
            judge["/call"].validate(line)
    told = report.build(flight.loop.account, "record.mcap")
    assert kept == told["steadiness"]["kept_by_hysteresis"] > 4
    assert flight.lines[0]["header"]["hysteresis"] == "margin=0.3"


def test_what_is_in_force_goes_to_the_decoders_process_and_what_was_kept_comes_back(tmp_path: Path) -> None:
    host = LinkedHost(tmp_path)
    host.start()
    try:
        for standing in (None, Call("push", {"force": "é"})):
            host.submit(DecisionRequest(0, 1, "x", "go", standing=standing))
            while (reply := host.wait(10_000_000_000)) is None:
                pass
            assert reply.decision is not None
            expected = {} if standing is None else {"arg1": standing.text(), "function": None}
            assert reply.decision.kept == expected
    finally:
        host.close()


@pytest.mark.parametrize(
    ("status", "why", "stands"),
    [("executed", "fresh", True), ("refused", "fresh", False), ("expired", "fresh", False), ("refused", "safe", True)],
)
def test_a_call_that_its_client_did_not_carry_out_is_not_in_force(status: Any, why: Any, stands: bool) -> None:
    steady = CallInForce(FallbackPolicy("hold", 10**9))
    tick = Tick(3, 0, 0, 0, epoch=2, request=DecisionRequest(3, 2, "x", "go"))
    steady.acted(tick, Call("push", {"force": 1}))
    steady.carried_out([Acknowledgement(2, "refused", 0), Acknowledgement(3, status, 0, why)])
    assert (steady.standing(2, "go") is not None) == stands
    assert steady.standing(3, "go") is None and steady.standing(2, "stop") is None


@pytest.mark.parametrize(("called", "action"), [(True, "safe"), (False, "none")])
def test_hold_after_a_safe_call_demands_it_again_where_a_call_was_ordered(called: bool, action: str) -> None:
    policy = FallbackPolicy("hold", 100)
    policy.epoch(0)
    assert policy.miss(100) == "safe"
    policy.renew(110)  # a null decision: the safe call stays, and is held from here
    assert policy.miss(120) == "hold"  # a call failed, and may have acted in part
    assert policy.expire(209, called) == "none"
    assert policy.expire(210, called) == action
