"""Would another rate have held? A run's own times, replayed through the loop's law at that rate."""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rtcontrol.hosts.protocol import LOSSES
from rtcontrol.telemetry.causes import replayed_as
from rtcontrol.telemetry.timeline import Timeline

RATES_HZ = (10.0, 12.0, 16.0, 20.0, 30.0)
# Times are drawn from those recorded as long around as so many took: slow spells stay where they were, and as long
# (decisions that began are fewer there), neighbours do not repeat.
AROUND = 16
# A short record is replayed several times.
STEPS, MOST_PASSES = 40_000, 8
# What is work beside the decision and the call, by the spans.
AROUND_STAGES = ("observe", "send", "queue", "deliver", "wait")
# What stops everything, whatever the rate, and when: it is replayed in its own place.
OUTAGES = replayed_as("outage")
# What misses at any rate: it is no question of time.
NEVER = replayed_as("always")


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


@dataclass
class Replayed:
    """What a replay comes to: `misses` of the ticks that began, and `skipped` releases that did not."""

    releases: int = 0
    misses: int = 0
    skipped: int = 0
    missed: list[int] = field(default_factory=list)  # releases, in order

    @property
    def miss_rate(self) -> float:
        return (self.misses + self.skipped) / self.releases if self.releases else 0.0


def replay(
    steps: Sequence[Step],
    hz: float,
    seconds: float,
    deadline_ms: float | None = None,
    outages: Sequence[tuple[float, float]] = (),
    seed: int = 0,
) -> Replayed:
    """The law: releases on a grid, those that the loop's thread is late for by whole periods are skipped; one decision
    at a time, one that has begun is not broken off, one that has not by its deadline never begins; a call that cannot
    begin by its deadline is dropped. On time is what has acted by the deadline (the period by default). `outages` are
    (begin, end) in ms, in order: nothing goes on in them. The steps' times are from the same beginning, in order."""
    period, draw, found = 1e3 / hz, random.Random(seed), Replayed(max(0, int(seconds * hz)))
    deadline_after = period if deadline_ms is None else deadline_ms
    loop = decoder = actuator = 0.0  # free from then on
    halts, times = _Halts(outages), [step.t_s for step in steps]
    reach_s = AROUND * (times[-1] - times[0]) / len(times) if times else 0.0
    k = 0
    while k < found.releases and steps:
        woke = halts.over(max(k * period, loop))
        if (skipped := min(int((woke - k * period) / period + 1e-9), found.releases - k)) > 0:
            found.skipped += skipped
            found.missed.extend(range(k, k + skipped))
            k += skipped
            if k >= found.releases:
                break
        deadline = k * period + deadline_after
        first, last = bisect_left(times, k * period / 1e3 - reach_s), bisect_right(times, k * period / 1e3 + reach_s)
        step = steps[draw.randrange(first, last) if first < last else min(first, len(steps) - 1)]
        loop = submitted = halts.after(woke, step.prepare)
        ended, begun = math.inf, halts.over(max(submitted, decoder))
        if begun < deadline:
            decoder = decided = halts.after(begun, step.decide)
            ready = halts.over(max(halts.after(decided, step.reply), actuator))
            if not step.fails and ready <= deadline:
                actuator = ended = halts.after(ready, step.execute)
        if ended > deadline:
            found.misses += 1
            found.missed.append(k)
        k += 1
    return found


class _Halts:
    """When work ends that outages interrupt."""

    def __init__(self, outages: Sequence[tuple[float, float]]) -> None:
        self._outages = [o for o in outages if o[1] > o[0]]
        self._stops = [stop for _, stop in self._outages]

    def over(self, t: float) -> float:
        """`t`, or the end of the outage that it lies in."""
        return self.after(t, 0.0)

    def after(self, t: float, work: float) -> float:
        """When work that begins at `t` is done."""
        end = t + work
        for i in range(bisect_right(self._stops, t), len(self._stops)):
            begin, stop = self._outages[i]
            if begin > end:
                break
            end += stop - max(t, begin)
        return end


def steps_of(timeline: Timeline, least_ms: float = 0.0) -> list[Step]:
    """The work of a finished timeline's ticks, as far as it was measured; a stage that was not (a call that was dropped
    had no execution) took what it took the last time. What waiting is in a latency is told by the spans; without them
    the time around a decision is known only where nothing came before it. A call that could not begin waited until its
    deadline. An outage of less than `least_ms` is work that came before its tick's request."""
    found: list[Step] = []
    numbers, causes = timeline.numbers, timeline.words["cause"]
    stages, around, executed, idle = dict.fromkeys(AROUND_STAGES, 0.0), 0.0, 0.0, True
    deadline, free, usual = timeline.header.get("deadline_ms", 0.0), -math.inf, 0.0
    _, first_ms = _first(timeline)
    for row in range(len(timeline.k)):
        cause, decide = causes[row], numbers["decide_ms"][row]
        wake, latency, execute = _known(numbers["wake_ms"][row]), numbers["latency_ms"][row], numbers["execute_ms"][row]
        executed = executed if math.isnan(execute) else execute
        t_s = numbers["t_s"][row] - first_ms / 1e3
        if cause in NEVER or (cause == "decide" and timeline.words["subcause"][row] in ("error", *LOSSES)):
            found.append(Step(decide=_known(decide), fails=True, t_s=t_s))
        elif cause in OUTAGES:
            # What was lost may lie in the decision, in the way back or before both.
            begin, end = _outage(timeline, row) or (0.0, 0.0)
            lost = _lost_ms(timeline, row)
            before = around / 2 + stages["observe"] + stages["send"] + stages["queue"]
            after, short = around / 2 + stages["deliver"] + stages["wait"], end - begin < least_ms
            left = usual if math.isnan(decide) else decide
            if not math.isnan(latency):
                left = min(left, max(0.0, latency - lost - before - after - executed))
            if short or not math.isnan(decide):
                found.append(Step(before + (lost if short else 0.0), left, after, executed, t_s=t_s))
        elif math.isnan(decide):
            pass
        elif took := _took(timeline, row, free):
            stages |= took
            before, after = wake + stages["observe"] + stages["send"] + stages["queue"], stages["wait"]
            if cause == "execute" and "wait" not in took:
                after = max(after, deadline - numbers["replied"][row])
            usual = decide
            found.append(Step(before, decide, stages["deliver"] + after, executed, t_s=t_s))
        else:
            if idle and not cause and not math.isnan(latency):
                around = max(0.0, latency - wake - decide - _known(execute))
            usual = decide
            found.append(Step(wake + around / 2, decide, around / 2, executed, t_s=t_s))
        idle = not cause
        free = max(free, 1e3 * numbers["t_s"][row] + _known(numbers["decided"][row]))
    return found


def _took(timeline: Timeline, row: int, free_ms: float) -> dict[str, float]:
    """The stages that are work beside decision and call, as far as they were measured: the way to a decoder that is
    busy, until `free_ms`, is not told from waiting for it."""
    took = {name: timeline.stage_ms(row, name) for name in AROUND_STAGES}
    if 1e3 * timeline.numbers["t_s"][row] + timeline.numbers["submitted"][row] < free_ms:
        del took["queue"]
    return {name: ms for name, ms in took.items() if not math.isnan(ms)}


def outages_of(timeline: Timeline, least_ms: float = 0.0) -> list[tuple[float, float]]:
    """When nothing went on for at least so long, in ms from the first release that the record holds: at a tick that was
    stopped, as long as the cause accounts for."""
    found: list[tuple[float, float]] = []
    _, first_ms = _first(timeline)
    for row in range(len(timeline.k)):
        if (outage := _outage(timeline, row)) is None or outage[1] - outage[0] < least_ms:
            continue
        begin, end = outage[0] - first_ms, outage[1] - first_ms
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif end > begin:
            found.append((begin, end))
    return found


def _outage(timeline: Timeline, row: int) -> tuple[float, float] | None:
    """Of a tick that was stopped, with the releases that were skipped before it."""
    numbers, words = timeline.numbers, timeline.words
    if words["cause"][row] not in OUTAGES and words["skip_cause"][row] not in OUTAGES:
        return None
    begin = 1e3 * numbers["t_s"][row]
    lost = _lost_ms(timeline, row) if words["cause"][row] in OUTAGES else _known(numbers["wake_ms"][row])
    return begin - _known(numbers["skipped"][row]) * timeline.header.get("period_ms", 0.0), begin + lost


def _lost_ms(timeline: Timeline, row: int) -> float:
    """By a tick that was stopped: what its evidence says; without any, its latency but for the decision, or up to its
    deadline."""
    numbers, told = timeline.numbers, timeline.details.get(timeline.k[row], {}).get("evidence", {})
    if (explained := told.get("explained_ms")) is not None:
        return float(explained)
    if math.isnan(latency := numbers["latency_ms"][row]):
        return float(timeline.header.get("deadline_ms", 0.0))
    return max(0.0, latency - _known(numbers["decide_ms"][row]))


def table(timeline: Timeline, rates_hz: Sequence[float] = RATES_HZ) -> list[dict[str, Any]]:
    """A line for each rate, and for the run's own: {hz, deadline_ms, miss_rate, longest_miss_run, own}. None of a run
    that measured no decision. A deadline that was not the period stays, up to the decisions in flight."""
    header, own = timeline.header, float(timeline.header.get("hz") or 0.0)
    if not len(timeline.k) or own <= 0 or header.get("clock") == "lockstep":
        return []
    period_ms = float(header["period_ms"])
    seconds = (timeline.k[-1] + 1 - _first(timeline)[0]) * period_ms / 1e3
    given = header.get("deadline_ms")
    if given is not None and math.isclose(given, period_ms, rel_tol=1e-6):
        given = None
    # A short outage between a deadline and the next release was seen by nobody: those that were are of so many ticks.
    least_ms = 0.0 if given is None else period_ms
    steps, outages = steps_of(timeline, least_ms), outages_of(timeline, least_ms)
    if not steps:
        return []
    lines = []
    for hz in sorted({*rates_hz, own}):
        deadline_ms = 1e3 / hz if given is None else min(given, header.get("pipeline", 1) * 1e3 / hz)
        passes = max(1, min(MOST_PASSES, int(STEPS / max(1.0, seconds * hz))))
        found = [replay(steps, hz, seconds, deadline_ms, outages, seed) for seed in range(passes)]
        lines.append(
            {
                "hz": hz,
                "deadline_ms": round(deadline_ms, 4),
                "miss_rate": round(sum(one.miss_rate for one in found) / passes, 6),
                "longest_miss_run": max(_longest(one.missed) for one in found),
                "own": hz == own,
            }
        )
    return lines


def _longest(missed: Sequence[int]) -> int:
    longest = run = int(bool(missed))
    for before, after in pairwise(missed):
        run = run + 1 if after == before + 1 else 1
        longest = max(longest, run)
    return longest


def _first(timeline: Timeline) -> tuple[int, float]:
    """The first release that the record still holds, and when it was, in ms from the run's first."""
    if not len(timeline.k):
        return 0, 0.0
    skipped = int(_known(timeline.numbers["skipped"][0]))
    begin_ms = 1e3 * timeline.numbers["t_s"][0] - skipped * float(timeline.header.get("period_ms") or 0.0)
    return timeline.k[0] - skipped, begin_ms


def _known(value: float) -> float:
    return 0.0 if math.isnan(value) else value
