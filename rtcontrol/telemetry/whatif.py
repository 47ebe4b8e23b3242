"""Would another rate have held? A run's own times, replayed through the loop's law at that rate."""

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
# A release has the times of one of the recorded ticks around it, sampled from so many before and after: slow spells
# stay where they were, and as long, and neighbours do not repeat.
AROUND = 16
# What stops everything, whatever the rate, is replayed in its own place; what misses at any rate does so again.
OUTAGES, NEVER = ([cause for cause, entry in CAUSES.items() if entry.replayed == kind] for kind in ("outage", "always"))
Outages = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Step:
    """What a tick's work took, in ms, waiting left out: on the loop's thread before the request, in the decoder, on
    the way back, in the executor. `fails`: it misses at any rate. `t_s`: when it was."""

    prepare: float = 0.0
    decide: float = 0.0
    reply: float = 0.0
    execute: float = 0.0
    fails: bool = False
    t_s: float = 0.0


def replay(
    steps: Sequence[Step], hz: float, seconds: float, deadline_ms: float | None = None, outages: Outages = ()
) -> MissRuns:
    """Return the missed ones of `seconds * hz` releases.

    The law: releases are on a grid, those that the loop's thread is late for by whole periods are skipped; one decision
    at a time, one that has started is not broken off, one that has not by its deadline never starts; a call that cannot
    start by its deadline is dropped. On time is what has acted by the deadline (the period by default). `outages` are
    (start, end) in ms, in order: nothing runs in them. The steps' times are from the same start, in order.
    """
    period, releases = 1e3 / hz, int(seconds * hz)
    random_, missed = random.Random(0), MissRuns()
    times = [step.t_s for step in steps]
    reach_s = AROUND * (times[-1] - times[0]) / len(times) if times else 0.0
    loop = decoder = actuator = 0.0  # free from then on
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
    """Return when work that starts at `t` is done."""
    end = t + work
    for start, stop in outages[bisect_right(outages, t, key=lambda outage: outage[1]) :]:
        if start > end:
            break
        end += stop - max(t, start)
    return end


def steps_of(timeline: Timeline) -> list[Step]:
    """Return the work of a finished timeline's ticks, as far as it was measured; what was not (a call that was dropped
    had no execution) took what it took the last time. How long a tick that was stopped worked is not known."""
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
            if math.isnan(decided):  # of a decoder elsewhere the way there and back
                decided = submitted + decide
            prepare = _known(submitted, prepare)
            reply = _known(numbers["executing"][row] - decided, reply)
            execute = _known(numbers["execute_ms"][row], execute)
            steps.append(Step(prepare, decide, reply, execute, t_s=t_s))
    return steps


def outages_of(timeline: Timeline) -> list[tuple[float, float]]:
    """Return when nothing ran, in ms from the first tick in the record: at a tick that was stopped, with the releases
    that were skipped before it, as long as the cause accounts for."""
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
    """Return a line for each rate, and for the run's own: {hz, deadline_ms, miss_rate, longest_miss_run, own}. Nothing
    of a run that measured no decision. A deadline that was not the period stays, up to the decisions in flight."""
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
