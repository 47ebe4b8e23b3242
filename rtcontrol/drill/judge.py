"""The judge at the actuator's side: it receives each call that acts, knows nothing of what the run says of itself, and
checks what must hold whatever breaks."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema

from rtcontrol.agents import Agent
from rtcontrol.run.options import RunOptions

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
