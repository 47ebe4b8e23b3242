"""What is not understood is told, once for each instruction; who is in doubt at times only is not blamed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from cart import Flight, cart_agent, good
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.loop.confidence_monitor import ConfidenceMonitor
from rtcontrol.models.call import Call, Decision

PUSH = Call("push", {"force": 1})
HZ = 10.0


def told(heard: list[tuple[str, bool]]) -> list[str]:
    lines: list[str] = []
    one = ConfidenceMonitor(HZ, lines.append)
    for instruction, unsure in heard:
        one.heard(instruction, unsure)
    return lines


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=60))
def test_nothing_is_told_twice_in_a_row_nor_of_what_is_sure_most_of_the_time(heard: list[tuple[str, bool]]) -> None:
    lines = told(heard)
    changes = sum(a != b for (a, _), (b, _) in pairwise(heard))
    assert len(lines) <= changes + 1
    assert len(lines) * 5 <= sum(unsure for _, unsure in heard)


def test_half_a_second_of_doubt_is_told_once_and_each_instruction_anew() -> None:
    assert told([("asdf", True)] * 4) == [] != told([("asdf", True)] * 5)
    assert len(told([("asdf", True)] * 30 + [("land", False)] * 9 + [("qwer", True)] * 30)) == 2
    assert told([("land", True), ("land", False)] * 50) == []


def test_the_words_that_were_never_taught_are_named() -> None:
    lines: list[str] = []
    one = ConfidenceMonitor(HZ, lines.append)
    for unknown in (("both",), ("both", "of"), tuple("abcde")):
        for _ in range(6):
            one.heard(f"go {len(unknown)}", True, unknown)
    assert '"both" is a word that it was never taught; its calls are unsure' in lines[0]
    assert '"both", "of" are words that it was never taught' in lines[1]
    assert '"a", "b", "c" and 2 more are words that' in lines[2]


@pytest.mark.parametrize("null", [False, True])
def test_a_run_holds_what_is_not_understood_and_says_so_once(tmp_path: Path, null: bool) -> None:
    def decide(request: DecisionRequest) -> Decision:
        if request.instruction != "asdf":
            return good(request)
        return Decision(None, {"function": 0.95}) if null else Decision(PUSH, {"function": 0.4})

    agent = replace(cart_agent(hold_ms=200.0), allow_null=null, null_is_doubt=null)
    floor = {} if null else {"min_confidence": {"function": 0.5}}
    flown = Flight(tmp_path, decide, agent=agent, instruction="asdf", clock="lockstep", duration_s=2.0, **floor).run()
    assert {(tick["kind"], tick.get("why")) for tick in flown.ticks} == {("held", "confidence")}
    assert all(call == agent.fallback.safe_call for _, call, _ in flown.world.executed)
    said = '"asdf" is not understood: its calls are unsure, and held back. Say it in other words.'
    assert [line for line in flown.said if "not understood" in line] == [said]
    assert [line["log"] for line in flown.lines if "not understood" in line.get("log", "")] == [said]
