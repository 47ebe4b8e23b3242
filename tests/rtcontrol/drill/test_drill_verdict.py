"""Tests of a drill's verdict: which fault cost which tick, and which rule was broken."""

from __future__ import annotations

from typing import Any

import pytest

from rtcontrol.drill.faults import FAULTS
from rtcontrol.drill.judge import Injection, RecordedTick, recorded_ticks, verdict, violations
from rtcontrol.telemetry.causes import NAMES
from rtcontrol.telemetry.timeline import Timeline
from tests.helpers.processes import ROOT

PERIOD = 62_500_000
ORIGIN = 5_000_000_000
PROVEN = {"late_ms": 60.0}
SKIPPED = {"skipped": 2, "skip_cause": "wake", "skip_subcause": "scheduler", "skip_evidence": PROVEN}


def events(count: int, **missed: dict[str, Any]) -> list[dict[str, Any]]:
    """Return events of ticks on time, except for the ones named `kN`."""
    plain = {"kind": "call", "call": "go()", "superseded": 0}
    ticks = [{"k": k, "t_s": k * PERIOD / 1e9, **plain} for k in range(count)]
    for name, fields in missed.items():
        ticks[int(name[1:])] |= {"kind": "miss", **fields}
    return ticks


def seen(happened: list[dict[str, Any]]) -> list[RecordedTick]:
    timeline = Timeline()
    for event in ({"origin_ns": ORIGIN}, *happened):
        timeline.add(event)
    return recorded_ticks(timeline.finish(), PERIOD, PERIOD)


def judged(name: str, happened: list[dict[str, Any]]) -> dict[str, Any]:
    injection = Injection(FAULTS[name], ORIGIN + 10 * PERIOD, ORIGIN + 14 * PERIOD)
    return verdict([injection], seen(happened), [], 7)


def miss(cause: str, subcause: str | None = None, **more: Any) -> dict[str, Any]:
    named = {"cause": cause} if subcause is None else {"cause": cause, "subcause": subcause}
    return {**named, "evidence": PROVEN, **more}


FROZEN = miss("stale_observation", "frozen")
WOKE = miss("wake", "scheduler")


@pytest.mark.parametrize(
    ("missed", "why"),
    [
        ({"k12": FROZEN, "k14": FROZEN}, None),
        ({"k12": WOKE}, "wake.scheduler is not a cause of this fault"),
        ({"k12": miss("unknown")}, "unknown is not a cause of this fault"),
        ({"k12": FROZEN | {"evidence": {}}}, "stale_observation.frozen: no evidence"),
        ({}, "the fault caused no miss"),
        ({"k12": FROZEN | SKIPPED}, "wake.scheduler is not a cause of this fault"),
        ({f"k{k}": FROZEN for k in range(12, 40, 5)}, "the run did not recover before the next fault"),
    ],
)
def test_fault_whose_misses_have_causes_is_attributed(missed: dict[str, Any], why: str | None) -> None:
    result = judged("hang", events(40, **missed))
    (fault,) = result["faults"]
    assert result["attributed"] == fault["attributed"] == (why is None) and fault["why"] == ([why] if why else [])
    if why is None:
        assert fault["causes"] == {"stale_observation.frozen": 2}
        assert fault["recovered_s"] == pytest.approx(PERIOD / 1e9)  # tick 15 is the first that stays on time


def test_signal_that_met_no_process_is_not_attributed() -> None:
    injection = Injection(FAULTS["kill_decoder"], ORIGIN + 10 * PERIOD, ORIGIN + 10 * PERIOD, injected=False)
    fault = verdict([injection], seen(events(40)), [], 7)["faults"][0]
    assert fault["why"] == ["the target process did not exist"] and not fault["attributed"]


@pytest.mark.parametrize(
    ("missed", "counts"),
    [
        # Between injection and recovery a miss is the fault's, also after its end.
        ({"k12": FROZEN, "k16": WOKE}, (0, 0, 0)),
        ({"k12": FROZEN, "k30": WOKE, "k32": {"cause": "unknown"}}, (1, 2, 1)),
    ],
)
def test_verdict_counts_misses_by_cause(missed: dict[str, Any], counts: tuple[int, int, int]) -> None:
    result = judged("hang", events(40, **missed))
    assert (result["attributed"], result["uninjected"], result["unknown"]) == counts
    assert {m["k"] for m in result["uninjected_misses"]} == {int(k[1:]) for k in missed if k > "k16"}


def test_page_lists_each_fault_with_its_causes() -> None:
    page = (ROOT / "docs/drill.md").read_text()
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    assert set(rows) == set(FAULTS)
    for name, fault in FAULTS.items():
        _, about, called = rows[name].strip("| ").split(" | ")
        assert about == fault.description
        assert {word.strip("`") for word in called.split(", ")} == set(fault.causes.split()) <= NAMES


MS = 1_000_000
HOLD = 500 * MS
Message = dict[str, Any]


def act(t_ns: int, not_after: int | None, failed: bool = False, took_ns: int = MS) -> Message:
    return {"event": "act", "t": t_ns, "end": t_ns + took_ns, "not_after": not_after, "failed": failed}


def tick(k: int, at_ns: int = 6 * MS, **more: Any) -> Message:
    return act(k * PERIOD + at_ns, (k + 1) * PERIOD, **more)


def broken_rules(*acts: Message, end_ns: int, safe: bool = True, excused: tuple[int, int] = (0, 0)) -> list[str]:
    """Return the rules that a run broke which is stopped then, and whose safe call acts after the stop."""
    last = [act(end_ns + 2 * MS, None)] if safe else []
    happened = [{"event": "reset", "t": 0}, *acts, *last]
    return [law for _, law in violations(happened, end_ns, PERIOD, HOLD, [excused])]


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        ([tick(1)], None),
        ([tick(1, at_ns=PERIOD + 3 * MS)], "3.0 ms after its deadline"),
        ([tick(1), tick(1)], "a call acted after a call with a later deadline"),
    ],
)
def test_call_that_breaks_a_rule_is_violation(broken: list[Message], what: str | None) -> None:
    assert broken_rules(*broken, tick(3), end_ns=4 * PERIOD) == ([what] if what else [])


def test_late_safe_call_is_violation() -> None:
    due = PERIOD + 7 * MS + HOLD
    late = due + 2 * PERIOD + 151 * MS
    assert broken_rules(tick(1), act(late, None), end_ns=late + 9 * MS) == ["no safe call for 276 ms after the hold"]
    assert broken_rules(tick(1), act(due, None), tick(40), end_ns=41 * PERIOD) == []
    # A safe call that failed is none.
    assert len(broken_rules(tick(1), act(due, None, failed=True), end_ns=40 * PERIOD)) == 1
    assert broken_rules(tick(1), act(due, None, failed=True), act(due + PERIOD, None), end_ns=40 * PERIOD) == []
    # A new episode has nothing active.
    reset = {"event": "reset", "t": due + PERIOD}
    assert "no safe call" in broken_rules(tick(1), act(due, None), reset, end_ns=40 * PERIOD)[0]
    # Nor can anything act while a call hangs, or in a span that is excused.
    hangs = tick(2, took_ns=1_900 * MS, failed=True)
    assert broken_rules(tick(1), hangs, act(2 * PERIOD + 1_910 * MS, None), end_ns=40 * PERIOD) == []
    assert broken_rules(tick(1), act(due + 900 * MS, None), end_ns=40 * PERIOD, excused=(due, due + 900 * MS)) == []


def test_call_after_the_stop_is_violation() -> None:
    ticks, end_ns = [tick(k) for k in range(1, 10)], 10 * PERIOD
    assert broken_rules(*ticks, tick(11), end_ns=end_ns) == ["a call acted after the stop"]
    assert broken_rules(*ticks, end_ns=end_ns, safe=False) == ["no safe call acted after the stop"]
    assert broken_rules(end_ns=end_ns, safe=False) == []  # it never began
