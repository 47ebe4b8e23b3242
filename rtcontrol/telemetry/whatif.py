"""Estimate the misses at another rate, by replaying the times of a run through the rules of the loop."""

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
# A release gets the times of a random tick among so many recorded ticks before and after it. So slow periods keep their
# place and length, and neighbours do not repeat.
AROUND = 16
# Outages are replayed at their own time; a tick that misses at any rate misses again.
OUTAGES, NEVER = ([cause for cause, entry in CAUSES.items() if entry.replayed == kind] for kind in ("outage", "always"))
Outages = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Step:
    """The working times of a tick in ms, without waiting: on the loop's thread before the request, in the decoder, on
    the way back, and in the executor. `fails`: the tick misses at any rate. `t_s`: the time of the tick."""

    prepare: float = 0.0
    decide: float = 0.0
    reply: float = 0.0
    execute: float = 0.0
    fails: bool = False
    t_s: float = 0.0


def replay(
    steps: Sequence[Step], hz: float, seconds: float, deadline_ms: float | None = None, outages: Outages = ()
) -> MissRuns:
    """Return the missed releases among `seconds * hz` releases.

    The rules: releases are on a grid, and a release is skipped if the loop's thread is late by whole periods. Decisions
    run one at a time; a started decision is not interrupted, and one that has not started by its deadline never starts.
    A call that cannot start by its deadline is dropped. A tick is on time if its call acted by the deadline (the period
    by default). Nothing runs during `outages`, which are (start, end) in ms, in order. The steps have times from the
    same start, in order.
    """
    period, releases = 1e3 / hz, int(seconds * hz)
    random_, missed = random.Random(0), MissRuns()
    times = [step.t_s for step in steps]
    reach_s = AROUND * (times[-1] - times[0]) / len(times) if times else 0.0
    loop = decoder = actuator = 0.0  # when each of these is free again
    k = 0
    while k < releases and steps:
        woke = _after(outages, max(k * period, loop))
        if (skipped := min(int((woke - k * period) / period + 1e-9), releases - k)) > 0:
            missed.add(k, k + skipped)
            k += skipped
            continue
        deadline = k * period + (period if deadline_ms is None else deadline_ms)
        first, last = bisect_left(times, k * period / 1e3 - reach_s), bisect_right(times, k * period / 1e3 + reach_s)
        step = steps[random_.randrange(first, last) if first < last else min(first, len(steps) - 1)]
        loop = submitted = _after(outages, woke, step.prepare)
        ended, started = math.inf, _after(outages, max(submitted, decoder))
        if started < deadline:
            decoder = decided = _after(outages, started, step.decide)
            ready = _after(outages, max(_after(outages, decided, step.reply), actuator))
            if not step.fails and ready <= deadline:
                actuator = ended = _after(outages, ready, step.execute)
        if ended > deadline:
            missed.add(k)
        k += 1
    return missed


def _after(outages: Outages, t: float, work: float = 0.0) -> float:
    """Return when work that starts at `t` ends, with outages included."""
    end = t + work
    for start, stop in outages[bisect_right(outages, t, key=lambda outage: outage[1]) :]:
        if start > end:
            break
        end += stop - max(t, start)
    return end


def steps_of(timeline: Timeline) -> list[Step]:
    """Return the steps of a finished timeline's ticks. An unmeasured time (such as the execution of a dropped call)
    equals the last measured one. Ticks with an outage are left out, since their working times are not known."""
    steps: list[Step] = []
    numbers, words = timeline.numbers, timeline.words
    prepare = reply = execute = 0.0
    for row in range(len(timeline.k)):
        decide, t_s = numbers["decide_ms"][row], numbers["t_s"][row] - numbers["t_s"][0]
        cause, subcause = words["cause"][row], words["subcause"][row]
        if cause in NEVER or (cause == "decide" and subcause in ("error", *LOSSES)):
            steps.append(Step(decide=_known(decide), fails=True, t_s=t_s))
        elif cause not in OUTAGES and not math.isnan(decide):
            submitted, decided = numbers["submitted"][row], numbers["decided"][row]
            if math.isnan(decided):  # for a remote decoder, the way there and back
                decided = submitted + decide
            prepare = _known(submitted, prepare)
            reply = _known(numbers["executing"][row] - decided, reply)
            execute = _known(numbers["execute_ms"][row], execute)
            steps.append(Step(prepare, decide, reply, execute, t_s=t_s))
    return steps


def outages_of(timeline: Timeline) -> list[tuple[float, float]]:
    """Return the outages in ms from the first tick in the record. An outage is at a tick that was stopped, including
    skipped releases before it, and lasts as long as the cause explains."""
    outages: list[tuple[float, float]] = []
    numbers, words, header = timeline.numbers, timeline.words, timeline.header
    for row, k in enumerate(timeline.k):
        lost = 0.0
        if words["cause"][row] in OUTAGES:
            evidence = timeline.details.get(k, {}).get("evidence", {})
            lost = evidence.get("explained_ms") or float(header["deadline_ms"])
        elif words["skip_cause"][row] in OUTAGES:
            lost = _known(numbers["wake_ms"][row])
        t_ms = 1e3 * (numbers["t_s"][row] - numbers["t_s"][0])
        start, end = t_ms - _known(numbers["skipped"][row]) * float(header["period_ms"]), t_ms + lost
        if lost and outages and start <= outages[-1][1]:
            outages[-1] = outages[-1][0], max(outages[-1][1], end)
        elif lost:
            outages.append((start, end))
    return outages


def table(timeline: Timeline, rates_hz: Sequence[float] = RATES_HZ) -> list[dict[str, Any]]:
    """Return a line for each rate, including the run's own: {hz, deadline_ms, miss_rate, longest_miss_run, own}. A run
    without a measured decision has no lines. A deadline that was not the period stays, within the limit of the
    pipeline."""
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
        missed = replay(steps, hz, seconds, deadline, outages)
        rate = sum(end - start for start, end in missed) / max(1, int(seconds * hz))
        line = {"hz": hz, "deadline_ms": round(deadline, 4), "miss_rate": round(rate, 6)}
        lines.append(line | {"longest_miss_run": missed.longest, "own": hz == own_hz})
    return lines


def _known(value: float, otherwise: float = 0.0) -> float:
    return otherwise if math.isnan(value) else value
