"""What hysteresis compares with is what is in force in the world, of this session, epoch and instruction alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cart import Flight
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
