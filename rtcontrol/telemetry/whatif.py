"""Estimate how many ticks of a run would miss at other tick rates, by a simulation with the run's durations."""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rtcontrol.hosts.protocol import LOSSES
from rtcontrol.telemetry.account import MissRuns
from rtcontrol.telemetry.causes import CAUSES
from rtcontrol.telemetry.timeline import Timeline

RATES_HZ = (10.0, 12.0, 16.0, 20.0, 30.0)
# A simulated release takes its durations from a random recorded tick at most NEIGHBOURS ticks before or after it. So
# slow phases stay where they were, and no pattern repeats.
NEIGHBOURS = 16
# OUTAGES are causes that stop everything for a time. ALWAYS are causes that make a tick miss at any rate.
OUTAGES, ALWAYS = (
    [cause for cause, entry in CAUSES.items() if entry.replayed == kind] for kind in ("outage", "always")
)
Outages = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class TickWork:
    """The durations of a tick's work in ms: before the request, in the decoder, until the reply, and of the call.
    `fails` is True if the tick misses at any rate. `t_s`: the release of the tick."""

    prepare: float = 0.0
    decide: float = 0.0
    reply: float = 0.0
    execute: float = 0.0
    fails: bool = False
    t_s: float = 0.0


def simulate(
    ticks: Sequence[TickWork], hz: float, seconds: float, deadline_ms: float | None = None, outages: Outages = ()
) -> MissRuns:
    """Simulate `seconds * hz` releases, and return the missed ones.

    Releases have a fixed period. The loop skips a release if it is late by a period or more. The decoder makes one
    decision at a time. A decision or call that cannot start by its deadline is dropped. A tick is on time if its call
    ends by the deadline (default: the next release). Nothing runs during `outages`, a sorted list of (start, end) in ms
    from time 0. `ticks` are sorted by `t_s`, whose time 0 is the same.
    """
    period, releases = 1e3 / hz, int(seconds * hz)
    random_, missed = random.Random(0), MissRuns()
    times = [work.t_s for work in ticks]
    reach_s = NEIGHBOURS * (times[-1] - times[0]) / len(times) if times else 0.0
    loop = decoder = actuator = 0.0  # times in ms at which loop, decoder and actuator become free
    k = 0
    while k < releases and ticks:
        woke = _end_of_work(outages, max(k * period, loop))
        if (skipped := min(int((woke - k * period) / period + 1e-9), releases - k)) > 0:
            missed.add(k, k + skipped)
            k += skipped
            continue
        deadline = k * period + (period if deadline_ms is None else deadline_ms)
        first, last = bisect_left(times, k * period / 1e3 - reach_s), bisect_right(times, k * period / 1e3 + reach_s)
        work = ticks[random_.randrange(first, last) if first < last else min(first, len(ticks) - 1)]
        loop = submitted = _end_of_work(outages, woke, work.prepare)
        ended, started = math.inf, _end_of_work(outages, max(submitted, decoder))
        if started < deadline:
            decoder = decided = _end_of_work(outages, started, work.decide)
            ready = _end_of_work(outages, max(_end_of_work(outages, decided, work.reply), actuator))
            if not work.fails and ready <= deadline:
                actuator = ended = _end_of_work(outages, ready, work.execute)
        if ended > deadline:
            missed.add(k)
        k += 1
    return missed


def _end_of_work(outages: Outages, t: float, work: float = 0.0) -> float:
    """Return when `work` ms of work end that start at `t`, if all work pauses during outages."""
    end = t + work
    for start, stop in outages[bisect_right(outages, t, key=lambda outage: outage[1]) :]:
        if start > end:
            break
        end += stop - max(t, start)
    return end


def measured_work(timeline: Timeline) -> list[TickWork]:
    """Return the work of each tick of a timeline, except for ticks during outages. If a duration was not measured (such
    as the execution of a dropped call), use the duration of the previous tick."""
    ticks: list[TickWork] = []
    numbers, words = timeline.numbers, timeline.words
    prepare = reply = execute = 0.0
    for row in range(len(timeline.k)):
        decide, t_s = numbers["decide_ms"][row], numbers["t_s"][row] - numbers["t_s"][0]
        cause, subcause = words["cause"][row], words["subcause"][row]
        if cause in ALWAYS or (cause == "decide" and subcause in ("error", *LOSSES)):
            ticks.append(TickWork(decide=_or_default(decide), fails=True, t_s=t_s))
        elif cause not in OUTAGES and not math.isnan(decide):
            submitted, decided = numbers["submitted"][row], numbers["decided"][row]
            if math.isnan(decided):  # a remote decoder has no timestamps, so its round trip is the decision
                decided = submitted + decide
            prepare = _or_default(submitted, prepare)
            reply = _or_default(numbers["executing"][row] - decided, reply)
            execute = _or_default(numbers["execute_ms"][row], execute)
            ticks.append(TickWork(prepare, decide, reply, execute, t_s=t_s))
    return ticks


def outages_of(timeline: Timeline) -> list[tuple[float, float]]:
    """Return the outages of a run as (start, end) in ms from the first recorded tick. An outage starts at the first
    skipped release before the stopped tick, and lasts for the time that the evidence explains."""
    outages: list[tuple[float, float]] = []
    numbers, words, header = timeline.numbers, timeline.words, timeline.header
    for row, k in enumerate(timeline.k):
        lost = 0.0
        if words["cause"][row] in OUTAGES:
            evidence = timeline.details.get(k, {}).get("evidence", {})
            lost = evidence.get("explained_ms") or float(header["deadline_ms"])
        elif words["skip_cause"][row] in OUTAGES:
            lost = _or_default(numbers["wake_ms"][row])
        t_ms = 1e3 * (numbers["t_s"][row] - numbers["t_s"][0])
        start, end = t_ms - _or_default(numbers["skipped"][row]) * float(header["period_ms"]), t_ms + lost
        if lost and outages and start <= outages[-1][1]:
            outages[-1] = outages[-1][0], max(outages[-1][1], end)
        elif lost:
            outages.append((start, end))
    return outages


def estimate_rates(timeline: Timeline, rates_hz: Sequence[float] = RATES_HZ) -> list[dict[str, Any]]:
    """Return the estimated misses at each rate: {hz, deadline_ms, miss_rate, longest_miss_run, own}. `own` is True for
    the rate of the run. The list is empty if no decision was measured. If the run's deadline differs from its period,
    all rates have this deadline, limited to `pipeline` periods."""
    header, own_hz = timeline.header, float(timeline.header["hz"])
    if header.get("clock") == "lockstep" or not (ticks := measured_work(timeline)):
        return []
    period_ms, deadline_ms = float(header["period_ms"]), float(header["deadline_ms"])
    seconds = (timeline.k[-1] + 1 - timeline.k[0]) * period_ms / 1e3
    outages, lines = outages_of(timeline), []
    for hz in sorted({*rates_hz, own_hz}):
        deadline = 1e3 / hz
        if not math.isclose(deadline_ms, period_ms, rel_tol=1e-6):
            deadline = min(deadline_ms, header.get("pipeline", 1) * 1e3 / hz)
        missed = simulate(ticks, hz, seconds, deadline, outages)
        rate = sum(end - start for start, end in missed) / max(1, int(seconds * hz))
        line = {"hz": hz, "deadline_ms": round(deadline, 4), "miss_rate": round(rate, 6)}
        lines.append(line | {"longest_miss_run": missed.longest, "own": hz == own_hz})
    return lines


def _or_default(value: float, otherwise: float = 0.0) -> float:
    return otherwise if math.isnan(value) else value
