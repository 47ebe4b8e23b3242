"""Schedule and verdict of a drill: who is blamed for which miss, and what does not count as attributed."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from rtcontrol.drill.faults import ENDINGS, FAULTS, TIMES, schedule
from rtcontrol.drill.injector import Injection
from rtcontrol.drill.switches import Switches
from rtcontrol.drill.verdict import SeenTick, ticks_of, verdict
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.causes import CAUSES
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


def test_a_fault_is_attributed_when_each_of_its_misses_has_one_of_its_causes() -> None:
    result = judged(
        "frozen", events(40, k12=miss("stale_observation", "frozen"), k14=miss("stale_observation", "frozen"))
    )
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
        ({"k12": miss("stale_observation", "frozen") | {"evidence": {}}}, "stale_observation.frozen: no evidence"),
        ({}, "it cost no tick"),
        ({"k12": miss("stale_observation", "frozen", **SKIPPED)}, "wake.scheduler is none of its causes"),
        (
            {"k12": miss("stale_observation", "frozen", **SKIPPED | {"skip_evidence": {}})},
            "wake.scheduler: no evidence",
        ),
        ({f"k{k}": miss("stale_observation", "frozen") for k in range(12, 40, 5)}, "no recovery before the next fault"),
    ],
)
def test_a_fault_is_not_attributed_where(missed: dict[str, Any], why: str) -> None:
    result = judged("frozen", events(40, **missed))
    assert result["attributed"] == 0 and result["faults"][0]["why"] == [why]


def test_a_signal_that_found_no_process_is_not_attributed() -> None:
    injection = Injection(FAULTS["kill_decoder"], ORIGIN + 10 * PERIOD, ORIGIN + 10 * PERIOD, hit=False)
    fault = verdict([injection], seen(events(40)), [], 7)["faults"][0]
    assert fault["why"] == ["there was nothing to inject it into"] and not fault["attributed"]


def test_an_error_is_the_evidence_of_what_raised_and_invalid_has_no_subcause() -> None:
    raised = {"cause": "execute", "subcause": "raised", "error": "OSError: no"}
    assert judged("execute_raises", events(40, k12=raised))["attributed"] == 1
    assert judged("invalid_call", events(40, k12={"cause": "invalid", "error": "no such value"}))["attributed"] == 1


def test_a_later_event_revises_what_a_miss_is_called() -> None:
    first = miss("unknown")
    late = {"late": 12, "used": False, **miss("decide", "decoder_slow")}
    revised = {"revised": 12, "t_s": 1.0, **miss("decide", "decoder_stopped")}
    assert judged("slow_decoder", [*events(40, k12=first), late])["attributed"] == 1
    assert judged("stop_decoder", [*events(40, k12=first), late, revised])["attributed"] == 1
    assert judged("slow_decoder", [*events(40, k12=first), late, revised])["attributed"] == 0


def test_a_miss_outside_of_all_faults_is_uninjected_and_needs_evidence() -> None:
    happened = events(40, k12=miss("stale_observation", "frozen"), k30=miss("wake", "scheduler"), k32=miss("unknown"))
    result = judged("frozen", happened)
    assert (result["attributed"], result["uninjected"], result["unknown"]) == (1, 2, 1)
    assert [m["k"] for m in result["uninjected_misses"]] == [30, 32]


def test_a_miss_between_injection_and_recovery_is_the_faults_also_after_its_end() -> None:
    result = judged("frozen", events(40, k12=miss("stale_observation", "frozen"), k16=miss("wake", "scheduler")))
    assert (result["attributed"], result["uninjected"]) == (0, 0)


def test_a_schedule_depends_on_its_seed_alone_and_has_each_fault_at_least_three_times() -> None:
    plan = schedule(list(FAULTS), 600.0, 7)
    assert plan == schedule(list(FAULTS), 600.0, 7) != schedule(list(FAULTS), 600.0, 8)
    assert min(Counter(p.fault.name for p in plan).values()) >= TIMES and {p.fault.name for p in plan} == set(FAULTS)
    assert max(p.at_s + p.fault.seconds + p.fault.rest_s for p in plan) <= 600.0
    for one, other in pairwise(plan):
        assert other.at_s >= one.at_s + one.fault.seconds + one.fault.rest_s - 1e-6
    raylets = [p.at_s for p in plan if p.fault.name == "kill_raylet"]
    assert all(b - a >= 60.0 for a, b in pairwise(raylets))


def test_a_drill_that_is_too_short_says_how_long_it_takes() -> None:
    with pytest.raises(UserError, match=r"takes 4\.\d minutes") as refused:
        schedule(list(FAULTS), 60.0, 0)
    minutes = float(refused.value.remedy.split("--minutes ")[1].split(",")[0])
    assert len(schedule(list(FAULTS), 60 * minutes, 0)) == TIMES * len(FAULTS)


def test_the_causes_that_faults_may_have_are_published() -> None:
    published = {(cause.value, sub) for cause, entry in CAUSES.items() for sub in entry.subcauses or (None,)}
    assert {pair for fault in FAULTS.values() for pair in fault.allowed} <= published
    assert not set(FAULTS) & set(ENDINGS)


def test_the_page_has_each_fault_with_its_causes() -> None:
    page = (ROOT / "docs/drill.md").read_text()
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    assert set(rows) == set(FAULTS) and all(name in page for name in ENDINGS)
    for name, fault in FAULTS.items():
        _, about, called = rows[name].strip("| ").split(" | ")
        named = {word.strip("`") for word in called.split(", ") if word.startswith("`")}
        assert about == fault.about
        assert named == {cause if sub is None else f"{cause}.{sub}" for cause, sub in fault.allowed}


def test_a_switch_is_on_until_its_instant_and_seen_by_another_mapping(tmp_path: Any) -> None:
    ours = Switches(tmp_path / "switches", new=True)
    theirs = Switches(tmp_path / "switches")
    assert not theirs.on("frozen")
    ours["frozen"], ours["decoder"] = 1e18, 4711.0
    assert theirs.on("frozen") and not theirs.on("hang") and int(theirs["decoder"]) == 4711
    ours.off()
    assert not theirs.on("frozen") and theirs["decoder"] == 4711.0
