"""The judge at the actuator's side: each rule broken on purpose, in messages such as the world sends."""

from __future__ import annotations

from typing import Any

import pytest

from rtcontrol.agents.lander import agent
from rtcontrol.drill.judge import Judge, Rules

MS = 1_000_000
PERIOD, HOLD = 62_500_000, 500 * MS
SAFE = {"main": 0, "side": 0}
RULES = Rules(PERIOD, PERIOD, HOLD, 250 * MS, [["engines", SAFE]], agent.tools.openai())
Message = dict[str, Any]


def act(t_ns: int, not_after: int | None, failed: bool = False, took_ns: int = MS, **told: Any) -> list[Message]:
    begun = {"act": "engines", "arguments": SAFE, "t": t_ns, "not_after": not_after, **told}
    return [begun, {"end": t_ns + took_ns, "failed": failed}]


def tick(k: int, age_ns: int = 5 * MS, at_ns: int = 6 * MS, **told: Any) -> list[Message]:
    release = k * PERIOD
    saw = {"saw": release + MS, "captured": release - age_ns}
    told = {"arguments": {"main": 50, "side": 0}, **told}
    return [saw, *act(release + at_ns, release + PERIOD, **told)]


def safe(t_ns: int, **told: Any) -> list[Message]:
    return act(t_ns, None, **told)


BEGIN: list[Message] = [{"started": 0}, {"reset": 0}]


def end(t_ns: int) -> list[Message]:
    return [{"asked": t_ns}, *safe(t_ns + 2 * MS), {"closed": t_ns + 20 * MS}]


def judged(*parts: list[Message]) -> list[str]:
    judge = Judge(RULES)
    for part in parts:
        for message in part:
            judge.take(message)
    return [violation["what"] for violation in judge.verdict()["violations"]]


def test_a_run_on_time_violates_nothing_in_whatever_order_it_is_told() -> None:
    flight = [BEGIN, *(tick(k) for k in range(1, 20)), end(20 * PERIOD)]
    assert judged(*flight) == []
    assert judged(*(part[::-1] for part in flight[::-1])) == []


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        (tick(1, at_ns=PERIOD + 3 * MS), "3.0 ms after its deadline"),
        (tick(1, age_ns=400 * MS), "its observation was 406.0 ms old"),
        (tick(1)[1:], "no observation was read since its release"),
        (tick(1, arguments={"main": 55, "side": 0}), "illegal value: engines({'main': 55, 'side': 0})"),
        (tick(1, arguments={"main": 50}), "illegal value: engines({'main': 50})"),
        (
            tick(1, arguments={"main": 50, "side": 0, "up": 1}),
            "illegal value: engines({'main': 50, 'side': 0, 'up': 1})",
        ),
        (tick(1, act="stop"), "illegal value: stop({'main': 50, 'side': 0})"),
        (safe(70 * MS, arguments={"main": 50, "side": 0}), "no deadline, and not the safe call"),
        ([*tick(1), *tick(1)], "its deadline is no later than that of the call before it"),
    ],
)
def test_a_call_that_breaks_a_rule_is_a_violation(broken: list[Message], what: str) -> None:
    said = judged(BEGIN, broken, tick(3), end(4 * PERIOD))
    assert len(said) == 1 and what in said[0]


def test_a_safe_call_that_does_not_come_by_its_bound_is_a_violation() -> None:
    acted = PERIOD + 7 * MS
    late = acted + HOLD + 2 * PERIOD + 151 * MS
    assert judged(BEGIN, tick(1), safe(late), end(late + MS)) == ["no safe call for 276 ms after the hold"]
    assert judged(BEGIN, tick(1), safe(acted + HOLD), tick(40), end(41 * PERIOD)) == []
    assert "no safe call" in judged(BEGIN, tick(1), end(40 * PERIOD))[0]


def test_a_safe_call_that_failed_is_none() -> None:
    due = PERIOD + 7 * MS + HOLD
    assert judged(BEGIN, tick(1), safe(due, failed=True), safe(due + PERIOD), end(40 * PERIOD)) == []
    assert "no safe call" in judged(BEGIN, tick(1), safe(due, failed=True), end(40 * PERIOD))[0]


def test_a_new_episode_has_nothing_in_force() -> None:
    due = PERIOD + 7 * MS + HOLD
    left = [*end(20 * PERIOD)[:-1], {"reset": 21 * PERIOD}, {"closed": 60 * PERIOD}]
    assert judged(BEGIN, tick(1), safe(due), left) == []  # the world may go on for a while when the run is over
    said = judged(BEGIN, tick(1), safe(due), [{"reset": due + PERIOD}], end(40 * PERIOD))
    assert len(said) == 1 and "no safe call" in said[0]


def test_what_could_not_act_is_excused_and_nothing_else() -> None:
    acted, late = PERIOD + 7 * MS, PERIOD + 2_000 * MS
    assert judged(BEGIN, tick(1), [{"excused": [acted, late]}], safe(late), end(late + MS)) == []
    assert len(judged(BEGIN, tick(1), [{"excused": [late - 900 * MS, late]}], safe(late), end(late + MS))) == 1
    # A call that hangs keeps all others away, the safe call too.
    hangs = tick(2, took_ns=1_900 * MS, failed=True)
    assert judged(BEGIN, tick(1), hangs, safe(2 * PERIOD + 1_910 * MS), end(40 * PERIOD)) == []


def test_nothing_acts_after_the_stop() -> None:
    stopped = 10 * PERIOD
    flight = [BEGIN, *(tick(k) for k in range(1, 10))]
    assert judged(*flight, end(stopped), tick(11)) == [
        "a call acted after the stop",
        "a call acted after the world was closed",
    ]
    assert judged(*flight, [{"asked": stopped}, {"closed": stopped + 9 * MS}]) == ["no safe call acted after the stop"]
    assert judged([{"asked": stopped}, {"closed": stopped + 9 * MS}]) == []  # it never began
    # One that was under way when the stop was asked for may still act: the safe call comes after it.
    assert judged(*flight, [{"asked": stopped}], tick(10), safe(stopped + 30 * MS)) == []
