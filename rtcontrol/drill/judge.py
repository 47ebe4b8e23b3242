"""What a drill comes to.

The judge at the actuator's side receives each call that acts, knows nothing of what the run says of itself, and checks
what must hold whatever breaks. The verdict has each injected fault beside the misses that the record has of its time.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema

from rtcontrol.agents import Agent
from rtcontrol.drill.flight import Injection
from rtcontrol.run.options import RunOptions
from rtcontrol.telemetry.causes import CAUSES, Cause
from rtcontrol.telemetry.timeline import Timeline

# Between the last look at the deadline and the instant that is told lie some lines of Python.
LATE_NS = 2_000_000
# The safe call is due at the end of the hold; two periods later, and so much for a busy machine, it has no excuse.
SLACK_NS = 150_000_000
# What has an instant of its own: a call that acts (`t`), and what is in `Judge`.
INSTANTS = ("t", "saw", "end", "reset", "started", "asked", "closed")
# After the run was asked to end, the safe call acts within so long.
END_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Rules:
    """What is known beforehand: the run's times in nanoseconds, its safe calls (name, arguments), its tools as OpenAI's
    list has them."""

    period_ns: int
    deadline_ns: int
    hold_ns: int
    max_age_ns: int
    safe: Sequence[Sequence[Any]]
    tools: Sequence[Mapping[str, Any]]


class Judge:
    """Takes messages in any order, and goes through them in the order of their instants (CLOCK_MONOTONIC).

    From the world: `started`; `act` (a call begins to act: `arguments`, `t`, `not_after`), `end` of it (`failed`);
    `reset` (a new episode); `saw` (an observation of the instant `captured` became text); `closed`. From the injector:
    `asked` (the run was asked to end) and `excused` (begin and end of a time in which nothing could act).
    """

    def __init__(self, rules: Rules, messages: Sequence[Mapping[str, Any]]) -> None:
        self.rules = rules
        self._schemas = {t["function"]["name"]: t["function"]["parameters"] for t in rules.tools}
        self._excused = [(m["excused"][0], m["excused"][1]) for m in messages if "excused" in m]
        instants = ((m[kind], m) for m in messages for kind in INSTANTS if kind in m)
        self._messages = sorted(instants, key=lambda entry: entry[0])
        saw = [(t_ns, m["captured"]) for t_ns, m in self._messages if "saw" in m]
        self._saw, self._captured = [t for t, _ in saw], [captured for _, captured in saw]
        self._violations: list[dict[str, Any]] = []

    def verdict(self) -> list[dict[str, Any]]:
        """Return each violation with its instant."""
        self._find_busy()
        covered: float = math.inf  # until then something is in force that may be
        asked = parting = closed = last_deadline = None
        act: tuple[int, Mapping[str, Any]] | None = None
        last_ns, started = 0, False
        for t_ns, message in self._messages:
            last_ns = t_ns
            if "act" in message:
                fresh = message["not_after"] is not None
                act = (t_ns, message)
                self._check_value(t_ns, message)
                if fresh:
                    self._check_time(t_ns, message["not_after"], last_deadline)
                    last_deadline = message["not_after"]
                    if parting is not None:
                        self._violated(t_ns, "a call acted after the stop")
                elif asked is not None:
                    parting = parting or t_ns
                if closed is not None:
                    self._violated(t_ns, "a call acted after the world was closed")
            elif "end" in message and act is not None:
                began_ns, what = act
                act = None
                if not message["failed"]:
                    self._check_cover(covered, began_ns)
                    covered = math.inf if what["not_after"] is None else t_ns + self.rules.hold_ns
            elif "reset" in message and started and parting is None:
                self._check_cover(covered, t_ns)
                covered = t_ns + self.rules.hold_ns
            elif "started" in message:
                started = True
            elif "asked" in message:
                asked = asked or t_ns
                if covered != math.inf:
                    covered = min(covered, t_ns + END_NS)
            elif "closed" in message:
                closed = t_ns
                self._check_cover(covered, t_ns)
                covered = math.inf
        self._check_cover(covered, last_ns)
        if started and asked is not None and parting is None:
            self._violated(asked, "no safe call acted after the stop")
        return self._violations

    def _find_busy(self) -> None:
        """While a call acts, no other can."""
        began = None
        for t_ns, message in self._messages:
            if "act" in message:
                began = t_ns
            elif "end" in message and began is not None:
                self._excused.append((began, t_ns))
                began = None

    def _check_value(self, t_ns: int, message: Mapping[str, Any]) -> None:
        name, arguments = message["act"], message["arguments"]
        schema = self._schemas.get(name)
        legal = schema is not None and set(arguments) <= set(schema.get("properties", {}))
        if schema is not None and legal:
            try:
                jsonschema.validate(arguments, schema)
            except jsonschema.ValidationError:
                legal = False
        if not legal:
            self._violated(t_ns, f"illegal value: {name}({arguments})")
        elif message["not_after"] is None and [name, arguments] not in [list(call) for call in self.rules.safe]:
            self._violated(t_ns, f"no deadline, and not the safe call: {name}({arguments})")

    def _check_time(self, t_ns: int, not_after_ns: int, last_ns: int | None) -> None:
        rules = self.rules
        if t_ns > not_after_ns + LATE_NS:
            self._violated(t_ns, f"{(t_ns - not_after_ns) / 1e6:.1f} ms after its deadline")
        if last_ns is not None and not_after_ns <= last_ns:
            self._violated(t_ns, "its deadline is no later than that of the call before it")
        # What it was decided by: the first observation that was read since its release.
        i = bisect_left(self._saw, not_after_ns - rules.deadline_ns)
        if i >= bisect_right(self._saw, t_ns):
            self._violated(t_ns, "no observation was read since its release")
        elif t_ns - self._captured[i] > rules.max_age_ns + rules.deadline_ns:
            self._violated(t_ns, f"its observation was {(t_ns - self._captured[i]) / 1e6:.1f} ms old")

    def _check_cover(self, covered: float, t_ns: int) -> None:
        """Something acted at `t_ns`; until `covered` what was in force before could stand."""
        if covered >= t_ns:
            return
        begin = int(covered)
        bare_ns = t_ns - begin - _overlap(self._excused, begin, t_ns)
        if bare_ns > 2 * self.rules.period_ns + SLACK_NS:
            self._violated(t_ns, f"no safe call for {bare_ns / 1e6:.0f} ms after the hold")

    def _violated(self, t_ns: int, what: str) -> None:
        self._violations.append({"t_ns": t_ns, "what": what})


def _overlap(spans: Sequence[tuple[int, int]], begin: int, end: int) -> int:
    """How much of the time between is covered by spans, which may overlap each other."""
    total, reached = 0, begin
    for b, e in sorted(spans):
        e = min(e, end)
        total += max(0, e - max(b, reached))
        reached = max(reached, e)
    return total


def rules_of(config: RunOptions, agent: Agent) -> Rules:
    """Return the rules of a run with this configuration and agent."""
    hold_ms = agent.fallback.hold_ms if config.hold_ms is None else config.hold_ms
    safe = [[call.name, dict(call.arguments)] for call in agent.fallback.safe_calls]
    hold_ns = round(hold_ms * 1e6)
    return Rules(config.period_ns, config.deadline_ns, hold_ns, config.max_age_ns, safe, agent.tools.openai())


# -- the verdict -------------------------------------------------------------------------------------------------------

# So many ticks on time one after the other are a recovery.
RECOVERED = 8
# What a miss may be called: `cause.subcause`, or `cause` alone where the list has no sub-causes of it.
NAMES = {
    f"{cause.value}.{sub}" if sub else cause.value
    for cause, entry in CAUSES.items()
    for sub in entry.subcauses or ("",)
} - {Cause.UNKNOWN.value}
Miss = tuple[str, bool]  # what it is called, and whether there is evidence


@dataclass(slots=True)
class SeenTick:
    """A tick as the record has it; `begin_ns` is its release (that of the first one that was skipped before it),
    `end_ns` its deadline. `missed`: each miss that it counts."""

    k: int
    begin_ns: int
    end_ns: int
    missed: list[Miss]


def ticks_of(timeline: Timeline, period_ns: int, deadline_ns: int) -> list[SeenTick]:
    """The ticks of a record, misses named as is known at its end."""
    seen = []
    for row, k in enumerate(timeline.k):
        skipped, t_s = (timeline.numbers[name][row] for name in ("skipped", "t_s"))
        skips = 0 if math.isnan(skipped) else int(skipped)
        release_ns = timeline.origin_ns + round(t_s * 1e9)
        told = timeline.details.get(k, {})
        missed = []
        if called := _called(timeline, row, ""):
            missed.append((called, bool(told.get("evidence") or told.get("error"))))
        missed += [(_called(timeline, row, "skip_") or "unknown", bool(told.get("skip_evidence")))] * skips
        seen.append(SeenTick(k, release_ns - skips * period_ns, release_ns + deadline_ns, missed))
    return seen


def _called(timeline: Timeline, row: int, what: str) -> str:
    """Return cause and sub-cause of a tick's miss, or of its skipped releases."""
    named = (timeline.words[f"{what}{word}"][row] for word in ("cause", "subcause"))
    return ".".join(filter(None, named))


def verdict(
    injections: Sequence[Injection], ticks: Sequence[SeenTick], violations: Sequence[Mapping[str, Any]], seed: int
) -> dict[str, Any]:
    """The drill's JSON."""
    faults, inside = [], set()
    for i, injection in enumerate(injections):
        until_ns = injections[i + 1].begin_ns if i + 1 < len(injections) else None
        recovered_ns = recovery_ns(ticks, injection.end_ns, until_ns)
        end_ns = recovered_ns if recovered_ns is not None else until_ns
        during = [t for t in ticks if t.end_ns >= injection.begin_ns and (end_ns is None or t.begin_ns < end_ns)]
        inside |= {t.k for t in during}
        faults.append(_judged(injection, [m for t in during for m in t.missed], recovered_ns))
    outside = [(t, miss) for t in ticks if t.k not in inside for miss in t.missed]
    everything = [miss for t in ticks for miss in t.missed]
    return {
        "seed": seed,
        "injected": len(faults),
        "attributed": sum(f["attributed"] for f in faults),
        "unknown": sum(not _known(miss) for miss in everything),
        "uninjected": len(outside),
        "invariants_violated": len(violations),
        "misses": len(everything),
        "faults": faults,
        "uninjected_misses": [{"k": t.k, "t_ns": t.begin_ns, "called": called} for t, (called, _) in outside],
        "violations": list(violations),
    }


def recovery_ns(ticks: Sequence[SeenTick], end_ns: int, until_ns: int | None) -> int | None:
    """The release of the first of `RECOVERED` ticks on time after `end_ns`, and before `until_ns`; None: not so."""
    on_time: list[int] = []
    for tick in ticks:
        if tick.begin_ns < end_ns:
            continue
        if until_ns is not None and tick.begin_ns >= until_ns:
            return None
        on_time = [] if tick.missed else [*on_time, tick.begin_ns]
        if len(on_time) == RECOVERED:
            return on_time[0]
    return None


def _judged(injection: Injection, missed: Sequence[Miss], recovered_ns: int | None) -> dict[str, Any]:
    fault = injection.fault
    why = []
    for miss in missed:
        called = miss[0]
        if not _known(miss):
            why.append(called if called == "unknown" else f"{called}: no evidence")
        elif called not in fault.causes.split():
            why.append(f"{called} is none of its causes")
    if not injection.hit:
        why.append("there was nothing to inject it into")
    if fault.felt and not missed:
        why.append("it cost no tick")
    if recovered_ns is None:
        why.append("no recovery before the next fault")
    return {
        "fault": fault.name,
        "begin_ns": injection.begin_ns,
        "end_ns": injection.end_ns,
        "recovered_s": None if recovered_ns is None else round(max(0, recovered_ns - injection.end_ns) / 1e9, 4),
        "misses": len(missed),
        "causes": dict(Counter(called for called, _ in missed)),
        "attributed": not why,
        "why": sorted(set(why)),
    }


def _known(miss: Miss) -> bool:
    called, proven = miss
    return proven and called in NAMES
