"""Counting relations, precedence of causes, and pauses that really happen."""

from __future__ import annotations

import gc
import os
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cart import Flight
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.hosts.base import DecisionReply
from rtcontrol.loop.deadline import Cause, Tick, attribute
from rtcontrol.loop.pause import PauseWatch
from rtcontrol.models.call import Decision
from rtcontrol.report.account import Account
from tests.helpers.processes import until

events = st.lists(
    st.one_of(
        st.just(("hit", 0, None)),
        st.tuples(st.just("miss"), st.just(0), st.sampled_from(list(Cause))),
        st.tuples(st.just("skip"), st.integers(1, 5), st.sampled_from(list(Cause))),
    )
)


@given(events)
def test_counts_add_up(story: list[tuple[str, int, Cause]]) -> None:
    account = Account()
    k, bad = 0, []
    for what, n, cause in story:
        event = {"kind": "call", "call": "push()", "t_s": float(k), "superseded": 0}
        if what == "miss":
            event |= {"kind": "miss", "cause": cause.value}
        elif what == "skip":
            event |= {"skipped": n, "skip_cause": cause.value}
            bad += range(k, k + n)
            k += n
        if what == "miss":
            bad.append(k)
        account.add({**event, "k": k})
        k += 1
        account.check()
    assert account.releases == account.ticks + account.skipped_releases == k
    assert account.miss_rate == (len(bad) / k if k else 0.0)
    longest = run = 0
    for i in range(k):
        run = run + 1 if i in bad else 0
        longest = max(longest, run)
    assert longest == account.longest_miss_run
    assert account.miss_runs.worst(4) == max(
        (sum(b in bad for b in range(i, i + 4)) for i in range(max(1, k - 3))), default=0
    )


def host(up: bool = True, incarnation: int = 0) -> Any:
    """Only what attribution asks of one."""
    return SimpleNamespace(alive=lambda: up, incarnation=incarnation)


D = 60_000_000


def tick_at(wake_ns: int = 0) -> Tick:
    now = time.monotonic_ns()
    tick = Tick(0, now - D - 5_000_000, now - 5_000_000, now - D - 5_000_000 + wake_ns)
    tick.submitted_ns = tick.woke_ns
    return tick


def cause_of(tick: Tick, host: Any, fault: Cause | None = None, reply: DecisionReply | None = None) -> Cause:
    return attribute(tick, time.monotonic_ns(), PauseWatch(62_500_000), host, fault, reply)


def test_precedence_without_a_pause() -> None:
    stale = Cause.STALE_OBSERVATION
    assert cause_of(tick_at(D // 2), host(up=False), stale) is Cause.HOST
    assert cause_of(tick_at(D // 2), host(), stale) is Cause.WAKE
    assert cause_of(tick_at(), host(), stale) is stale
    assert cause_of(tick_at(), host()) is Cause.DECIDE
    quick = DecisionReply(0, Decision(None), None, 1_000_000)
    assert cause_of(tick_at(), host(), None, quick) is Cause.WAKE
    assert cause_of(tick_at(), host(), None, DecisionReply(0, Decision(None), None, 2 * D)) is Cause.DECIDE
    assert cause_of(tick_at(), host(incarnation=1)) is Cause.HOST


def test_a_fault_in_time_is_not_blamed_on_the_machine() -> None:
    now = time.monotonic_ns()
    tick = Tick(0, now, now + D, now + D // 2)
    assert cause_of(tick, host(up=False), Cause.INVALID) is Cause.INVALID
    assert cause_of(tick, host(up=False), Cause.EXECUTE) is Cause.EXECUTE


def test_garbage_collection_that_stops_everything_is_pause(tmp_path: Path) -> None:
    flight = Flight(tmp_path, hz=50, duration_s=1.5)
    junk: list[Any] = []

    def litter() -> None:
        junk.extend([] for _ in range(2_000_000))
        gc.collect()

    flight.after(5, litter)
    flight.run()
    account = flight.loop.account
    assert account.misses_by_cause["pause"] + account.skipped_by_cause["pause"] >= 1, flight.dump()


def test_a_machine_that_stood_still_is_pause(tmp_path: Path) -> None:
    flight = Flight(tmp_path, hz=50, duration_s=2.0)
    account = flight.loop.account

    def stop() -> None:
        # In flight, however long its start took: a full collection of a long test run's heap comes before release 0.
        until(lambda: account.ticks >= 10, seconds=30.0)
        us = os.getpid()
        # A shell, not Python: an interpreter may take longer to start than the flight lasts.
        subprocess.run(["sh", "-c", f"kill -STOP {us}; sleep 0.15; kill -CONT {us}"], check=True)

    stopper = threading.Thread(target=stop)
    stopper.start()
    flight.run()
    stopper.join()
    assert account.skipped_by_cause["pause"] >= 5, flight.dump()
    assert set(account.skipped_by_cause) == {"pause"}


def test_paused_time_is_a_union_of_what_overlaps() -> None:
    watch = PauseWatch(62_500_000)
    base = time.monotonic_ns()
    watch._pauses.extend([(base, base + 20, "gc"), (base + 10, base + 40, "stall"), (base + 100, base + 110, "gc")])
    assert watch.paused_ns(base - 5, base + 105) == 45


def test_no_collection_runs_inside_a_tick(tmp_path: Path) -> None:
    collected: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        collected.append(threading.get_ident())

    flight = Flight(tmp_path, duration_s=1.0)
    gc.callbacks.append(note)
    try:
        flight.run()
    finally:
        gc.callbacks.remove(note)
    assert gc.isenabled()
    assert set(collected) <= {threading.get_ident()}
