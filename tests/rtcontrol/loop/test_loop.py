"""The control loop over a real small world and in-process deciders: against the wall clock, and in lockstep."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cart import CartWorld, Flight, Scripted, cart_agent, good
from hypothesis import given
from hypothesis import strategies as st
from linked import LinkedHost

from rtcontrol.hosts.backup_core import BACKUP, FIRST, Handover
from rtcontrol.hosts.failover import BackupHost
from rtcontrol.hosts.inprocess import InProcessHost
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.loop.call_in_force import FallbackPolicy
from rtcontrol.loop.config import RunConfig
from rtcontrol.loop.grid import RateClock
from rtcontrol.loop.warmup import Warmup
from rtcontrol.models.call import Decision
from rtcontrol.telemetry import report
from rtcontrol.telemetry.record_reader import teacher_rows


def failing(error: Exception) -> Callable[[], Any]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.realtime
def test_on_time_run_counts_every_release(tmp_path: Path) -> None:
    flight = Flight(tmp_path).run()
    account = flight.loop.account
    assert account.releases == 25
    assert account.on_time >= 21, flight.dump()
    assert flight.loop.ended_by == "duration"
    assert flight.world.closed
    # The world makes 100 observations a second, the loop takes 50.
    assert 20 <= account.superseded <= 30
    assert flight.world.executed[-1][1] == flight.agent.fallback.safe_call
    assert [t["k"] for t in flight.ticks] == list(range(25))


@pytest.mark.realtime
def test_world_that_never_speaks_is_flown_without(tmp_path: Path) -> None:
    world = CartWorld()
    world.silent = True
    flight = Flight(tmp_path, world=world, first_observation_s=0.1, duration_s=0.2).run()
    flight.blames("no_observation", 8, 10)
    assert "no observation within 0.1 s" in flight.said[0]


@pytest.mark.realtime
def test_executor_that_overruns_is_blamed_and_stops_no_release(tmp_path: Path) -> None:
    world = CartWorld()

    world.on_execute = lambda call: time.sleep(0.25 if len(world.executed) == 5 else 0)  # 5 periods
    flight = Flight(tmp_path, world=world, hz=20, duration_s=1.0).run()
    flight.blames("execute", 4, 6)
    assert flight.loop.account.releases == 20
    overran = next(line for line in flight.lines if "overran" in line)
    assert overran["effect"] == "acted" and overran["execute_ms"] >= 250
    # Its tick was settled at its deadline, and those after it could not begin.
    missed = [t for t in flight.ticks if t.get("cause") == "execute"]
    assert missed[0]["k"] == overran["overran"] and "has not ended" in missed[0]["error"]
    assert all("could not begin" in t["error"] for t in missed[1:])
    # The phase is kept: every release is a whole number of periods after the first.
    for tick in flight.ticks:
        assert tick["t_s"] == pytest.approx(tick["k"] * 0.05, abs=2e-6)


@pytest.mark.realtime
def test_the_worlds_error_still_ends_safely(tmp_path: Path) -> None:
    world = CartWorld()
    flight = Flight(tmp_path, world=world)

    flight.after(10, lambda: setattr(world, "latest", failing(ConnectionError("simulator is gone"))))
    with pytest.raises(ConnectionError):
        flight.run()
    assert flight.loop.ended_by == "error"
    assert world.closed
    assert flight.lines[-1]["end"] == "error"


def calls(flight: Flight) -> list[tuple[int, str]]:
    return [(t["k"], t["call"]) for t in flight.ticks]


def test_two_runs_are_equal_and_fast(tmp_path: Path) -> None:
    runs = [
        Flight(
            tmp_path / str(i), good, world=CartWorld(2.0), clock="lockstep", duration_s=None, episodes=4, hz=16
        ).run()
        for i in range(2)
    ]
    assert calls(runs[0]) == calls(runs[1])
    assert [e.ret for e in runs[0].world.episodes] == [e.ret for e in runs[1].world.episodes]
    assert len(runs[0].world.episodes) == 4
    account = runs[0].loop.account
    assert account.skipped_releases == 0
    assert account.ticks >= 4 * 2.0 * 16 - 4


def test_hold_is_limited_in_the_worlds_time() -> None:
    ms = 1_000_000
    policy = FallbackPolicy("hold", 100 * ms)
    policy.epoch(0)
    policy.fresh_call(50 * ms)
    assert policy.expires_ns is None
    assert policy.miss(100 * ms) == "hold"
    assert policy.expires_ns == 150 * ms
    assert policy.expire(149 * ms) == "none"
    assert policy.expire(150 * ms) == "safe"
    assert policy.miss(200 * ms) == "none"  # the safe call is in force already
    policy.fresh_call(210 * ms)
    assert policy.miss(400 * ms) == "safe"
    policy.epoch(500 * ms)
    assert policy.miss(550 * ms) == "hold"


@given(
    period=st.integers(1_000, 10**9),
    t0=st.integers(0, 2**62),
    busy=st.lists(st.integers(0, 10**10), min_size=1, max_size=30),
)
def test_every_release_is_started_or_skipped_and_stays_on_the_grid(period: int, t0: int, busy: list[int]) -> None:
    clock = RateClock(period)
    clock.begin(t0)
    now, started, skipped_in_all, last = t0, 0, 0, -1
    for work in busy:
        now = max(now, clock.next_release_ns)
        k, release, skipped = clock.take(now)
        assert release == t0 + k * period
        assert release <= now < release + period
        assert k == last + 1 + skipped
        last, started, skipped_in_all = k, started + 1, skipped_in_all + skipped
        assert k + 1 == started + skipped_in_all
        now += work


def test_a_release_that_is_not_due_cannot_be_taken() -> None:
    clock = RateClock(1_000)
    clock.begin(10_000)
    with pytest.raises(ValueError, match="ahead"):
        clock.take(9_999)


@pytest.mark.realtime
def test_ending_does_not_wait_for_a_slow_rate(tmp_path: Path) -> None:
    flight = Flight(tmp_path, hz=0.2, duration_s=None, max_age_ms=10_000)
    began = time.monotonic()
    threading.Timer(0.2, lambda: flight.loop.stop("SIGTERM")).start()
    flight.run()
    assert time.monotonic() - began < 4.0  # a period is 5 s


# One decision in five takes 8.3 ms: 120 a second.
MIXED = [40.0] + [4.0, 4.0, 4.0, 4.0, 8.3] * 8


@pytest.mark.parametrize(
    ("times", "lanes", "settings", "word"),
    [
        (MIXED, 1, {"hz": 200}, "--hz 200"),
        (MIXED, 1, {"hz": 100}, "--hz 100"),
        (MIXED, 1, {"hz": 96}, None),
        (MIXED, 1, {"hz": 16}, None),
        (MIXED, 1, {"hz": 16, "deadline_ms": 9}, "--deadline-ms 9"),
        (MIXED, 1, {"hz": 16, "deadline_ms": 11}, None),
        (MIXED, 2, {"hz": 190, "pipeline": 2, "deadline_ms": 10.5}, None),
        (MIXED, 2, {"hz": 200, "pipeline": 2}, "--hz 200"),
        (MIXED, 1, {"hz": 200, "clock": "lockstep"}, None),
        ([40.0], 1, {"hz": 200}, None),
        ([], 1, {"hz": 200}, None),
    ],
)
def test_a_rate_or_deadline_within_a_margin_of_the_p90_is_warned_of(
    times: list[float], lanes: int, settings: dict[str, float], word: str | None
) -> None:
    warning = Warmup(lanes, times).warning(RunConfig(env="cart", **settings))  # type: ignore[arg-type]
    assert (warning is None) if word is None else (warning is not None and warning.startswith(f"{word} is "))


HZ = 10.0


Decide = Callable[[DecisionRequest], Decision]
PERIOD_NS = 20_000_000


def slowly(least: float, most: float, loss: float = 0.0, sure: float = 0.9, decide: Decide = good) -> Decide:
    """As an endpoint far away: it answers after so many seconds, and loses some."""
    chance = random.Random(3)

    def answer(request: DecisionRequest) -> Decision:
        time.sleep(chance.uniform(least, most))
        if chance.random() < loss:
            raise ConnectionError("the endpoint hung up")
        return replace(decide(request), confidence={"function": sure})

    return answer


def backed(first: Any, backup: Decide = good, in_flight: int = 4) -> BackupHost:
    host = InProcessHost(Scripted(first), in_flight) if callable(first) else first
    terms = Handover(0.5, PERIOD_NS, in_flight)
    return BackupHost(host, InProcessHost(Scripted(backup), 1), terms)


def fly(out: Path, host: BackupHost, **more: Any) -> Flight:
    settings = {"backup": "local", "duration_s": 1.0, **more}
    return Flight(out, host=host, **settings).run()


def is_exact(flown: Flight) -> Counter[str]:
    """Each tick has one decision at most, and the account counts what the record says."""
    account, ticks, answers = flown.loop.account, flown.ticks, [e for e in flown.lines if "first" in e]
    assert len({tick["k"] for tick in ticks}) == len(ticks) == account.ticks
    assert len([e for e in flown.lines if e.get("why") == "fresh"]) <= account.ticks
    by = Counter(tick["decided_by"] for tick in ticks if "decided_by" in tick)
    assert (by["first"], by["backup"]) == (account.decided_by_first, account.decided_by_backup)
    assert by.total() >= account.on_time
    outcomes = Counter(event["outcome"] for event in answers)
    told = report.of_record(flown.path)
    assert told["decided_by"] == {"first": by["first"], "backup": by["backup"]}
    assert {name: n for name, n in told["first_answers"].items() if n} == dict(outcomes)
    assert told["answer_ms"]["max"] is None or told["answer_ms"]["max"] >= max(e["answer_ms"] for e in answers) * 0.99
    return outcomes


@pytest.mark.realtime
def test_a_slow_first_decider_costs_no_tick_and_all_that_it_answers_is_kept(tmp_path: Path) -> None:
    flown = fly(tmp_path, backed(slowly(0.06, 0.2, loss=0.1)))
    outcomes, account = is_exact(flown), flown.loop.account
    assert account.decided_by_first == 0 and account.decided_by_backup >= account.on_time
    flown.blames("decide", 0, 3)
    assert outcomes["late"] >= 20 and outcomes["failed"] >= 1 and outcomes["in_time"] == 0
    assert any("the endpoint hung up" in error["error"] for error in report.of_record(flown.path)["errors"])


def test_rows_of_unsure_illegal_and_further_answers_are_not_made() -> None:
    tool = {"type": "function", "function": {"name": "push", "parameters": {"type": "object", "properties": {}}}}
    events: list[dict[str, Any]] = [{"header": {"tools": [tool], "model": "m", "allow_null": False}}]
    events += [{"observation": str(k), "instruction": "go", "history": [], "k": k} for k in range(6)]
    call = {"name": "push", "arguments": {}}
    answer = {"outcome": "late", "answer": call}
    events += [
        {"first": 0, **answer},
        {"first": 1, **answer, "outcome": "unsure"},
        {"first": 2, **answer, "answer": {"name": "pull", "arguments": {}}},
        {"first": 3, **answer, "answer": None},
        {"first": 4, **answer, "n": 1},
        {"first": 5, "outcome": "failed", "error": "lost"},
        {"first": 99, **answer},
    ]
    assert [row["observation"] for row in teacher_rows(events)] == ["0"]
    events[0]["header"]["allow_null"] = True
    assert [(row["observation"], row["call"]) for row in teacher_rows(events)] == [("0", call), ("3", None)]


@pytest.mark.realtime
def test_a_first_decider_that_is_killed_is_told_and_the_backup_goes_on(tmp_path: Path) -> None:
    linked = LinkedHost(tmp_path)
    flown = Flight(tmp_path, host=backed(linked, in_flight=1), duration_s=3.5, backup="local")
    flown.after(20, lambda: os.kill(linked.pid, signal.SIGKILL))
    flown.run()
    outcomes, account = is_exact(flown), flown.loop.account
    assert account.decided_by_first >= 5 and account.decided_by_backup >= 40
    assert outcomes["in_time"] >= 5 and outcomes["lost"] >= 1
    flown.blames("decide", 0, 4)


@pytest.mark.realtime
def test_where_both_fail_the_loops_own_fallback_acts(tmp_path: Path) -> None:
    def broken(request: DecisionRequest) -> Decision:
        if request.tick >= 10:
            raise RuntimeError("no backup any more")
        return good(request)

    flown = fly(tmp_path, backed(slowly(0.1, 0.2), broken), agent=cart_agent(hold_ms=100.0), duration_s=0.8)
    is_exact(flown)
    missed = [tick for tick in flown.ticks if tick["k"] >= 10 and tick.get("cause") == "decide"]
    assert len(missed) >= 20 and {tick["subcause"] for tick in missed} <= {"error", "decoder_slow", "queued"}
    assert not any("decided_by" in tick for tick in missed)
    # The hold ends where tick 14 begins. Whoever is first: the safe call acts once, not before; nothing is held after.
    order = ("hold", "safe", "none")
    # While the safe call is on its way, it is pending.
    actions = [tick["action"].replace("pending", "none") for tick in missed]
    assert actions[0] == "hold" and actions == sorted(actions, key=order.index) and actions.count("safe") <= 1
    acted = [event for event in flown.lines if "safe" in event and event["why"] == "miss"]
    assert len(acted) == 1 and acted[0]["in_force"] and actions[-1] == "none"
    last = max(tick["t_s"] for tick in flown.ticks if "cause" not in tick)
    assert acted[0]["t_s"] >= last + 0.0999 and flown.loop.account.safe_calls >= 1
    assert any("no backup any more" in line for line in flown.said)


@pytest.mark.realtime
def test_both_lost_for_good_end_the_run_and_one_alone_does_not(tmp_path: Path) -> None:
    host = backed(slowly(0.001, 0.002))
    first, backup = host.inner[FIRST], host.inner[BACKUP]
    flight = Flight(tmp_path, host=host, duration_s=20.0, backup="local")
    flight.after(10, lambda: setattr(first, "gave_up", "out of memory"))
    flight.after(30, lambda: setattr(backup, "gave_up", "out of luck"))
    flight.run()
    assert flight.loop.ended_by == "host" and flight.loop.account.ticks >= 30
    told = [line for line in flight.said if "lost for good" in line]
    assert told == [
        "the first decider is lost for good (out of memory): from now on the backup alone decides",
        "the backup is lost for good (out of luck): from now on the first decider alone decides",
    ]
    assert flight.said[-1] == "no more decisions: out of luck"


@pytest.mark.realtime
def test_in_lockstep_the_backup_decides_and_the_accounts_are_exact(tmp_path: Path) -> None:
    flown = fly(tmp_path, backed(slowly(0.02, 0.05)), clock="lockstep", duration_s=20.0)
    is_exact(flown)
    account = flown.loop.account
    assert account.ticks == 1000 and account.decided_by_backup > 0.9 * account.ticks
