"""What the drill says of a flight: which fault cost which tick, and which rule was broken."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.agents.lander import agent
from rtcontrol.drill.faults import FAULTS, TIMES, Switches, schedule
from rtcontrol.drill.flight import Injection
from rtcontrol.drill.judge import NAMES, Judge, Rules, SeenTick, ticks_of, verdict
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.timeline import Timeline
from tests.helpers.processes import ROOT

PERIOD = 62_500_000
ORIGIN = 5_000_000_000
PROVEN = {"late_ms": 60.0}
SKIPPED = {"skipped": 2, "skip_cause": "wake", "skip_subcause": "scheduler", "skip_evidence": PROVEN}


def events(count: int, **missed: dict[str, Any]) -> list[dict[str, Any]]:
    """Ticks on time, but for those named `kN`."""
    plain = {"kind": "call", "call": "go()", "superseded": 0}
    ticks = [{"k": k, "t_s": k * PERIOD / 1e9, **plain} for k in range(count)]
    for name, fields in missed.items():
        ticks[int(name[1:])] |= {"kind": "miss", **fields}
    return ticks


def seen(happened: list[dict[str, Any]]) -> list[SeenTick]:
    timeline = Timeline()
    for event in ({"origin_ns": ORIGIN}, *happened):
        timeline.add(event)
    return ticks_of(timeline.finish(), PERIOD, PERIOD)


def judged(name: str, happened: list[dict[str, Any]], begin_k: int = 10, end_k: int = 14) -> dict[str, Any]:
    injection = Injection(FAULTS[name], ORIGIN + begin_k * PERIOD, ORIGIN + end_k * PERIOD)
    return verdict([injection], seen(happened), [], 7)


def miss(cause: str, subcause: str | None = None, **more: Any) -> dict[str, Any]:
    named = {"cause": cause} if subcause is None else {"cause": cause, "subcause": subcause}
    return {**named, "evidence": PROVEN, **more}


FROZEN = miss("stale_observation", "frozen")
WOKE = miss("wake", "scheduler")


def test_a_fault_is_attributed_when_each_of_its_misses_has_one_of_its_causes() -> None:
    result = judged("frozen", events(40, k12=FROZEN, k14=FROZEN))
    assert (result["injected"], result["attributed"], result["unknown"], result["uninjected"]) == (1, 1, 0, 0)
    fault = result["faults"][0]
    assert fault["misses"] == 2 and fault["causes"] == {"stale_observation.frozen": 2}
    assert fault["recovered_s"] == pytest.approx(PERIOD / 1e9)  # tick 15 is the first that stays on time


@pytest.mark.parametrize(
    ("missed", "why"),
    [
        ({"k12": miss("stale_observation", "late")}, "stale_observation.late is none of its causes"),
        ({"k12": miss("unknown")}, "unknown"),
        ({"k12": miss("stale_observation")}, "stale_observation: no evidence"),
        ({"k12": FROZEN | {"evidence": {}}}, "stale_observation.frozen: no evidence"),
        ({}, "it cost no tick"),
        ({"k12": FROZEN | SKIPPED}, "wake.scheduler is none of its causes"),
        ({"k12": FROZEN | SKIPPED | {"skip_evidence": {}}}, "wake.scheduler: no evidence"),
        ({f"k{k}": FROZEN for k in range(12, 40, 5)}, "no recovery before the next fault"),
    ],
)
def test_a_fault_is_not_attributed_where(missed: dict[str, Any], why: str) -> None:
    result = judged("frozen", events(40, **missed))
    assert result["attributed"] == 0 and result["faults"][0]["why"] == [why]


def test_signal_that_met_no_process_is_not_attributed() -> None:
    injection = Injection(FAULTS["kill_decoder"], ORIGIN + 10 * PERIOD, ORIGIN + 10 * PERIOD, hit=False)
    fault = verdict([injection], seen(events(40)), [], 7)["faults"][0]
    assert fault["why"] == ["there was nothing to inject it into"] and not fault["attributed"]


@pytest.mark.parametrize(
    ("name", "missed", "counts"),
    [
        ("execute_raises", {"k12": {"cause": "execute", "subcause": "raised", "error": "OSError: no"}}, (1, 0, 0)),
        ("invalid_call", {"k12": {"cause": "invalid", "error": "no such value"}}, (1, 0, 0)),
        # Between injection and recovery a miss is the fault's, also after its end.
        ("frozen", {"k12": FROZEN, "k16": WOKE}, (0, 0, 0)),
        ("frozen", {"k12": FROZEN, "k30": WOKE, "k32": {"cause": "unknown"}}, (1, 2, 1)),
    ],
)
def test_misses_are_counted(name: str, missed: dict[str, Any], counts: tuple[int, int, int]) -> None:
    result = judged(name, events(40, **missed))
    assert (result["attributed"], result["uninjected"], result["unknown"]) == counts
    assert {m["k"] for m in result["uninjected_misses"]} == {int(k[1:]) for k in missed if k > "k16"}


def test_a_later_event_revises_what_a_miss_is_called() -> None:
    first = miss("unknown")
    late = {"late": 12, "used": False, **miss("decide", "decoder_slow")}
    revised = {"revised": 12, "t_s": 1.0, **miss("decide", "decoder_stopped")}
    assert judged("slow_decoder", [*events(40, k12=first), late])["attributed"] == 1
    assert judged("stop_decoder", [*events(40, k12=first), late, revised])["attributed"] == 1
    assert judged("slow_decoder", [*events(40, k12=first), late, revised])["attributed"] == 0


def test_a_schedule_depends_on_its_seed_alone_and_has_each_fault_at_least_three_times() -> None:
    plan = schedule(list(FAULTS), 600.0, 7)
    assert plan == schedule(list(FAULTS), 600.0, 7) != schedule(list(FAULTS), 600.0, 8)
    assert min(Counter(p.fault.name for p in plan).values()) >= TIMES and {p.fault.name for p in plan} == set(FAULTS)
    assert max(p.at_s + p.fault.seconds + p.fault.rest_s for p in plan) <= 600.0
    for one, other in pairwise(plan):
        assert other.at_s >= one.at_s + one.fault.seconds + one.fault.rest_s - 1e-6


def test_a_drill_that_is_too_short_says_how_long_it_takes() -> None:
    with pytest.raises(UserError, match=r"takes 2\.\d minutes") as refused:
        schedule(list(FAULTS), 60.0, 0)
    minutes = float(refused.value.remedy.split("--minutes ")[1].split(",")[0])
    assert len(schedule(list(FAULTS), 60 * minutes, 0)) == TIMES * len(FAULTS)


def test_the_page_has_each_fault_with_its_causes() -> None:
    page = (ROOT / "docs/drill.md").read_text()
    assert {name for fault in FAULTS.values() for name in fault.causes.split()} <= NAMES
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    assert set(rows) == set(FAULTS)
    for name, fault in FAULTS.items():
        _, about, called = rows[name].strip("| ").split(" | ")
        named = {word.strip("`") for word in called.split(", ") if word.startswith("`")}
        assert about == fault.about
        assert named == set(fault.causes.split())


def test_switch_is_on_until_its_instant_in_another_mapping(tmp_path: Path) -> None:
    ours, theirs = Switches(tmp_path / "switches", new=True), Switches(tmp_path / "switches")
    assert not theirs.on("frozen")
    ours["frozen"] = 1e18
    assert theirs.on("frozen") and not theirs.on("hang")


MS = 1_000_000
HOLD = 500 * MS
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


def broken_rules(*parts: list[Message]) -> list[str]:
    judge = Judge(RULES, [message for part in parts for message in part])
    return [violation["what"] for violation in judge.verdict()]


def test_a_run_on_time_violates_nothing_in_whatever_order_it_is_told() -> None:
    flight = [BEGIN, *(tick(k) for k in range(1, 20)), end(20 * PERIOD)]
    assert broken_rules(*flight) == []
    assert broken_rules(*(part[::-1] for part in flight[::-1])) == []


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        (tick(1, at_ns=PERIOD + 3 * MS), "3.0 ms after its deadline"),
        (tick(1, age_ns=400 * MS), "its observation was 406.0 ms old"),
        (tick(1)[1:], "no observation was read since its release"),
        (tick(1, arguments={"main": 55, "side": 0}), "illegal value: engines({'main': 55, 'side': 0})"),
        (tick(1, act="stop"), "illegal value: stop({'main': 50, 'side': 0})"),
        (safe(70 * MS, arguments={"main": 50, "side": 0}), "no deadline, and not the safe call"),
        ([*tick(1), *tick(1)], "its deadline is no later than that of the call before it"),
    ],
)
def test_a_call_that_breaks_a_rule_is_a_violation(broken: list[Message], what: str) -> None:
    said = broken_rules(BEGIN, broken, tick(3), end(4 * PERIOD))
    assert len(said) == 1 and what in said[0]


def test_a_safe_call_that_does_not_come_by_its_bound_is_a_violation() -> None:
    acted = PERIOD + 7 * MS
    late = acted + HOLD + 2 * PERIOD + 151 * MS
    assert broken_rules(BEGIN, tick(1), safe(late), end(late + MS)) == ["no safe call for 276 ms after the hold"]
    assert broken_rules(BEGIN, tick(1), safe(acted + HOLD), tick(40), end(41 * PERIOD)) == []
    assert "no safe call" in broken_rules(BEGIN, tick(1), end(40 * PERIOD))[0]
    # A safe call that failed is none.
    due = PERIOD + 7 * MS + HOLD
    assert broken_rules(BEGIN, tick(1), safe(due, failed=True), safe(due + PERIOD), end(40 * PERIOD)) == []
    assert "no safe call" in broken_rules(BEGIN, tick(1), safe(due, failed=True), end(40 * PERIOD))[0]


def test_a_new_episode_has_nothing_in_force() -> None:
    due = PERIOD + 7 * MS + HOLD
    left = [*end(20 * PERIOD)[:-1], {"reset": 21 * PERIOD}, {"closed": 60 * PERIOD}]
    assert broken_rules(BEGIN, tick(1), safe(due), left) == []  # the world may go on for a while when the run is over
    said = broken_rules(BEGIN, tick(1), safe(due), [{"reset": due + PERIOD}], end(40 * PERIOD))
    assert len(said) == 1 and "no safe call" in said[0]


def test_what_could_not_act_is_excused_and_nothing_else() -> None:
    acted, late = PERIOD + 7 * MS, PERIOD + 2_000 * MS
    assert broken_rules(BEGIN, tick(1), [{"excused": [acted, late]}], safe(late), end(late + MS)) == []
    assert len(broken_rules(BEGIN, tick(1), [{"excused": [late - 900 * MS, late]}], safe(late), end(late + MS))) == 1
    # A call that hangs keeps all others away, the safe call too.
    hangs = tick(2, took_ns=1_900 * MS, failed=True)
    assert broken_rules(BEGIN, tick(1), hangs, safe(2 * PERIOD + 1_910 * MS), end(40 * PERIOD)) == []


def test_nothing_acts_after_the_stop() -> None:
    stopped = 10 * PERIOD
    flight = [BEGIN, *(tick(k) for k in range(1, 10))]
    assert broken_rules(*flight, end(stopped), tick(11)) == [
        "a call acted after the stop",
        "a call acted after the world was closed",
    ]
    assert broken_rules(*flight, [{"asked": stopped}, {"closed": stopped + 9 * MS}]) == [
        "no safe call acted after the stop"
    ]
    assert broken_rules([{"asked": stopped}, {"closed": stopped + 9 * MS}]) == []  # it never began
    # One that was under way when the stop was asked for may still act: the safe call comes after it.
    assert broken_rules(*flight, [{"asked": stopped}], tick(10), safe(stopped + 30 * MS)) == []
