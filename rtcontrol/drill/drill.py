"""Run a drill: inject faults by a seeded schedule, judge the record, write drill.json and show the table."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rtcontrol.drill.faults import FAULTS, Planned, schedule
from rtcontrol.drill.flight import Flight
from rtcontrol.drill.injector import Injection, Injector
from rtcontrol.drill.judge import rules_of
from rtcontrol.drill.verdict import ticks_of, verdict
from rtcontrol.models.errors import UserError
from rtcontrol.models.files import replace_file
from rtcontrol.run import assembly
from rtcontrol.run.options import RunOptions
from rtcontrol.run.run import MISSED, OK
from rtcontrol.telemetry.record_reader import read_record
from rtcontrol.telemetry.timeline import Timeline
from rtcontrol_client.console import printable
from rtcontrol_client.shutdown import STATUS, Shutdown, rest

# From the last fault's rest to the end of the run.
CALM_S = 1.0
COUNTS = ("injected", "attributed", "unknown", "uninjected", "invariants_violated", "misses")
# Of a decoder in this process: what cannot be injected.
OF_A_PROCESS = frozenset({"stop_decoder", "kill_decoder"})


@dataclass(frozen=True, slots=True)
class Drill:
    """`run`: options of `rtcontrol run`; `only`: names of faults, all of them where it is empty."""

    run: Mapping[str, Any]
    minutes: float
    seed: int
    only: Sequence[str] = ()

    def names(self) -> list[str]:
        """Return the faults to inject. Raises UserError for an unknown or impossible one."""
        for name in self.only:
            if name not in FAULTS:
                raise UserError(f"--only {name}: there is no such fault.", f"There are {', '.join(FAULTS)}.")
        impossible = OF_A_PROCESS if self.run.get("host") == "inprocess" else frozenset()
        if wrong := impossible.intersection(self.only):
            raise UserError(f"--only {min(wrong)} needs a decoder's process.", "Give --host ray.")
        return [name for name in FAULTS if name in (self.only or FAULTS) and name not in impossible]


def drill(options: Drill, out: Path, ending: Shutdown, file: Path | None, console: Console) -> int:
    """Run, inject, judge, write drill.json (and `file`), show the table.

    Return the exit status: 0 if every fault is attributed, nothing unknown and nothing violated; else 3, or a signal's.
    """
    planned = schedule(options.names(), 60 * options.minutes, options.seed)

    def say(line: str) -> None:
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)

    config = RunOptions(**options.run)
    agent = assembly.agent(config.agent or assembly.default_agent(config.env))
    with Flight(out, {**options.run, "seed": options.seed}, rules_of(config, agent), ending) as flight:
        say("starting the run ...")
        injections = _inject(flight, planned, say)
        status, judged = flight.end()
    violations = list(judged["violations"])
    if len(injections) < len(planned) and not ending.called():
        violations.append(_violation(f"{len(planned) - len(injections)} of {len(planned)} faults were not injected"))
    if status != STATUS["SIGTERM"]:
        violations.append(_violation(f"the run ended with exit status {status}: {flight.last_line()}"))
    result = verdict(injections, _ticks(config, out), violations, options.seed)
    for path in (out / "drill.json", file):
        if path is not None:
            _write(path, result)
    show(result, console)
    say(f"drill: {out / 'drill.json'}")
    clean = result["attributed"] == result["injected"] and not (result["unknown"] or result["invariants_violated"])
    return ending.status or (OK if clean else MISSED)


def _inject(flight: Flight, planned: Sequence[Planned], say: Callable[[str], None]) -> list[Injection]:
    injections: list[Injection] = []
    if not flight.await_calls():
        return injections
    injector = Injector(flight.pid, flight.switches, flight.line, flight.over)
    started_s = time.monotonic()
    for i, due in enumerate(planned):
        # A fault meets a run that has recovered from the one before.
        if not flight.await_steady(started_s + due.at_s):
            break
        say(f"[{i + 1:3}/{len(planned)}] {time.monotonic() - started_s:6.1f} s  {due.fault.name}: {due.fault.about}")
        injections.append(injector.inject(due.fault))
    if injections and not flight.over():
        rest(flight.over, time.monotonic() + injections[-1].fault.rest_s + CALM_S)
    return injections


def _violation(what: str) -> dict[str, Any]:
    return {"t_ns": time.monotonic_ns(), "what": what}


def _ticks(config: RunOptions, out: Path) -> list[Any]:
    timeline = Timeline()
    for event in read_record(out / "record.mcap"):
        timeline.add(event)
    return ticks_of(timeline.finish(), config.period_ns, config.deadline_ns)


def _write(path: Path, result: Mapping[str, Any]) -> None:
    try:
        replace_file(path, json.dumps(result, indent=2) + "\n")
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}).", "Give another --json.") from error


def show(result: Mapping[str, Any], console: Console) -> None:
    """Print the drill's table, a row per kind of fault, then what went wrong."""
    table = Table("fault", "injected", "attributed", "misses", "recovered in s, at most", "reported as", box=None)
    for kind in dict.fromkeys(fault["fault"] for fault in result["faults"]):
        table.add_row(kind, *_row([fault for fault in result["faults"] if fault["fault"] == kind]))
    console.print(table)
    for fault in result["faults"]:
        if fault["why"]:
            console.print(f"{fault['fault']}: {'; '.join(fault['why'])}", markup=False, soft_wrap=True)
    for violation in result["violations"]:
        console.print(f"violated: {violation['what']}", markup=False, soft_wrap=True)
    for miss in result["uninjected_misses"]:
        console.print(f"tick {miss['k']} missed without an injected fault: {miss['called']}", markup=False)
    line = ", ".join(f"{name.replace('_', ' ')} {result[name]}" for name in COUNTS)
    console.print(f"{line}, seed {result['seed']}", markup=False, soft_wrap=True)


def _row(faults: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    causes: Counter[str] = sum((Counter(fault["causes"]) for fault in faults), Counter())
    slowest = max((fault["recovered_s"] for fault in faults if fault["recovered_s"] is not None), default=None)
    return (
        str(len(faults)),
        str(sum(fault["attributed"] for fault in faults)),
        str(sum(fault["misses"] for fault in faults)),
        "-" if slowest is None else f"{slowest:.2f}",
        ", ".join(f"{name} {count}" for name, count in causes.most_common()) or "-",
    )
