"""Estimate the misses of a run at other tick rates, by simulating the loop with the durations of the run."""

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
# Each simulated release has the durations of a random recorded tick, at most this many ticks earlier or later. So slow
# phases stay where they were, and no pattern repeats.
NEIGHBOURS = 16
# Causes that stop everything for a time, and causes for which a tick misses at any rate.
OUTAGES, ALWAYS = (
    [cause for cause, entry in CAUSES.items() if entry.replayed == kind] for kind in ("outage", "always")
)
Outages = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Step:
    """The durations in ms of a tick's work, without waiting: on the loop's thread before the request, in the decoder,
    from the decoder to the loop, and in the environment. If `fails` is true, the tick misses at any rate."""

    prepare: float = 0.0
    decide: float = 0.0
    reply: float = 0.0
    execute: float = 0.0
    fails: bool = False
    t_s: float = 0.0


def simulate(
    steps: Sequence[Step], hz: float, seconds: float, deadline_ms: float | None = None, outages: Outages = ()
) -> MissRuns:
    """Simulate `seconds * hz` releases, and return the missed ones.

    Releases are on a fixed grid. A release is skipped if the loop's thread is late by a period or more. The decoder
    makes one decision at a time, and is not interrupted. A decision or call that cannot start by its deadline is
    dropped. A tick is on time if its call has ended by the deadline (by default the next release). Nothing runs during
    `outages`, a sorted list of (start, end) in ms. `steps` are sorted by `t_s`, and have the same time origin.
    """
    period, releases = 1e3 / hz, int(seconds * hz)
    random_, missed = random.Random(0), MissRuns()
    times = [step.t_s for step in steps]
    reach_s = NEIGHBOURS * (times[-1] - times[0]) / len(times) if times else 0.0
    loop = decoder = actuator = 0.0  # the times at which they are free, in ms
    k = 0
    while k < releases and steps:
        woke = _end_of_work(outages, max(k * period, loop))
        if (skipped := min(int((woke - k * period) / period + 1e-9), releases - k)) > 0:
            missed.add(k, k + skipped)
            k += skipped
            continue
        deadline = k * period + (period if deadline_ms is None else deadline_ms)
        first, last = bisect_left(times, k * period / 1e3 - reach_s), bisect_right(times, k * period / 1e3 + reach_s)
        step = steps[random_.randrange(first, last) if first < last else min(first, len(steps) - 1)]
        loop = submitted = _end_of_work(outages, woke, step.prepare)
        ended, started = math.inf, _end_of_work(outages, max(submitted, decoder))
        if started < deadline:
            decoder = decided = _end_of_work(outages, started, step.decide)
            ready = _end_of_work(outages, max(_end_of_work(outages, decided, step.reply), actuator))
            if not step.fails and ready <= deadline:
                actuator = ended = _end_of_work(outages, ready, step.execute)
        if ended > deadline:
            missed.add(k)
        k += 1
    return missed


def _end_of_work(outages: Outages, t: float, work: float = 0.0) -> float:
    """Return the time at which `work` ms of work that start at `t` end, if all work pauses during outages."""
    end = t + work
    for start, stop in outages[bisect_right(outages, t, key=lambda outage: outage[1]) :]:
        if start > end:
            break
        end += stop - max(t, start)
    return end


def steps_of(timeline: Timeline) -> list[Step]:
    """Return the durations of a finished timeline's ticks. If a duration was not measured (such as the execution of a
    dropped call), that of the previous tick is used. Ticks during an outage are left out."""
    steps: list[Step] = []
    numbers, words = timeline.numbers, timeline.words
    prepare = reply = execute = 0.0
    for row in range(len(timeline.k)):
        decide, t_s = numbers["decide_ms"][row], numbers["t_s"][row] - numbers["t_s"][0]
        cause, subcause = words["cause"][row], words["subcause"][row]
        if cause in ALWAYS or (cause == "decide" and subcause in ("error", *LOSSES)):
            steps.append(Step(decide=_or_default(decide), fails=True, t_s=t_s))
        elif cause not in OUTAGES and not math.isnan(decide):
            submitted, decided = numbers["submitted"][row], numbers["decided"][row]
            if math.isnan(decided):  # a remote decoder takes no stamps: its round trip counts as the decision
                decided = submitted + decide
            prepare = _or_default(submitted, prepare)
            reply = _or_default(numbers["executing"][row] - decided, reply)
            execute = _or_default(numbers["execute_ms"][row], execute)
            steps.append(Step(prepare, decide, reply, execute, t_s=t_s))
    return steps


def outages_of(timeline: Timeline) -> list[tuple[float, float]]:
    """Return the outages of a run as (start, end) in ms from the first recorded tick. An outage starts with the skipped
    releases before the stopped tick, and lasts as long as the evidence explains."""
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


def rates_table(timeline: Timeline, rates_hz: Sequence[float] = RATES_HZ) -> list[dict[str, Any]]:
    """Return the estimated misses at each rate: {hz, deadline_ms, miss_rate, longest_miss_run, own}. `own` marks the
    rate of the run. A run without measured decisions gives an empty list. A deadline that differs from the period is
    kept, up to `pipeline` periods."""
    header, own_hz = timeline.header, float(timeline.header["hz"])
    if header.get("clock") == "lockstep" or not (steps := steps_of(timeline)):
        return []
    period_ms, deadline_ms = float(header["period_ms"]), float(header["deadline_ms"])
    seconds = (timeline.k[-1] + 1 - timeline.k[0]) * period_ms / 1e3
    outages, lines = outages_of(timeline), []
    for hz in sorted({*rates_hz, own_hz}):
        deadline = 1e3 / hz
        if not math.isclose(deadline_ms, period_ms, rel_tol=1e-6):
            deadline = min(deadline_ms, header.get("pipeline", 1) * 1e3 / hz)
        missed = simulate(steps, hz, seconds, deadline, outages)
        rate = sum(end - start for start, end in missed) / max(1, int(seconds * hz))
        line = {"hz": hz, "deadline_ms": round(deadline, 4), "miss_rate": round(rate, 6)}
        lines.append(line | {"longest_miss_run": missed.longest, "own": hz == own_hz})
    return lines


def _or_default(value: float, otherwise: float = 0.0) -> float:
    return otherwise if math.isnan(value) else value
