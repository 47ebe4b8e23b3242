"""Counting relations, and pauses that really happen."""

from __future__ import annotations

import gc
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from cart import Flight
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.loop.evidence import PauseWatch
from rtcontrol.telemetry.account import Account
from rtcontrol.telemetry.causes import Cause
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


def test_garbage_collection_that_stops_everything_is_pause(tmp_path: Path) -> None:
    flight = Flight(tmp_path, hz=50, duration_s=1.5)
    junk: list[Any] = []

    def litter() -> None:
        junk.extend([] for _ in range(2_000_000))
        gc.collect()

    flight.after(5, litter)
    flight.run()
    account = flight.loop.account
    assert account.misses_by_subcause["pause.gc"] + account.skipped_by_cause["pause"] >= 1, flight.dump()
    told = [t for t in flight.ticks if "gc" in (t.get("subcause"), t.get("skip_subcause"))]
    assert told, flight.dump()
    for pauses in (t["evidence"]["pauses"] for t in told if t.get("subcause") == "gc"):
        assert any(kind == "gc" and end - begin > 5 for begin, end, kind in pauses)


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
    # A busy machine may add some that are its own.
    assert set(account.skipped_by_cause) <= {"pause", "wake"}
    longest = max((t for t in flight.ticks if "skipped" in t), key=lambda t: int(t["skipped"]))
    assert (longest["skip_cause"], longest["skip_subcause"]) == ("pause", "stall")


def test_pauses_are_clipped_to_the_time_that_is_asked_for() -> None:
    watch = PauseWatch(62_500_000)
    base = time.monotonic_ns()
    watch._collections.extend([(base, base + 20), (base + 100, base + 110)])
    watch._gaps.append((base + 10, base + 40))
    assert watch.pauses(base + 5, base + 105) == [
        (base + 5, base + 20, "gc"),
        (base + 10, base + 40, "stall"),
        (base + 100, base + 105, "gc"),
    ]


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
