"""Run a drill: inject faults by a seeded schedule, judge the record, write drill.json and show the table."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rtcontrol.drill.faults import Planned
from rtcontrol.drill.flight import Flight, Injection, Injector
from rtcontrol.drill.judge import Judge, SeenTick, rules_of, ticks_of, verdict
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


def drill(run: dict[str, Any], planned: Sequence[Planned], out: Path, ending: Shutdown, console: Console) -> int:
    """Run with these options of `rtcontrol run`, inject, judge, write drill.json, show the table.

    Return the exit status: 0 if every fault is attributed, nothing unknown and nothing violated; else 3, or a signal's.
    """

    def say(line: str) -> None:
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)

    config = RunOptions(**run)
    rules = rules_of(config, assembly.agent(config.agent or assembly.default_agent(config.env)))
    with Flight(out, run, ending) as flight:
        say("starting the run ...")
        injections = _inject(flight, planned, say)
        status = flight.end()
        violations = Judge(rules, flight.messages).verdict()
    if len(injections) < len(planned) and not ending.called():
        violations.append(_violation(f"{len(planned) - len(injections)} of {len(planned)} faults were not injected"))
    if status != STATUS["SIGTERM"]:
        violations.append(_violation(f"the run ended with exit status {status}: {flight.last_line()}"))
    result = verdict(injections, _ticks(config, out), violations, config.seed)
    path = out / "drill.json"
    try:
        replace_file(path, json.dumps(result, indent=2) + "\n")
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}).", "Give another --out.") from error
    show(result, console)
    say(f"drill: {path}")
    clean = result["attributed"] == result["injected"] and not (result["unknown"] or result["invariants_violated"])
    return ending.status or (OK if clean else MISSED)


def _inject(flight: Flight, planned: Sequence[Planned], say: Callable[[str], None]) -> list[Injection]:
    injections: list[Injection] = []
    if not flight.await_calls():
        return injections
    injector = Injector(flight.process.pid, flight.switches, flight.line, flight.over)
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


def _ticks(config: RunOptions, out: Path) -> list[SeenTick]:
    timeline = Timeline()
    for event in read_record(out / "record.mcap"):
        timeline.add(event)
    return ticks_of(timeline.finish(), config.period_ns, config.deadline_ns)


def show(result: Mapping[str, Any], console: Console) -> None:
    """Print the drill's table, a row per kind of fault, then what went wrong."""
    table = Table("fault", "injected", "attributed", "misses", "recovered in s, at most", "reported as", box=None)
    for kind in dict.fromkeys(fault["fault"] for fault in result["faults"]):
        table.add_row(kind, *_row([fault for fault in result["faults"] if fault["fault"] == kind]))
    console.print(table)
    wrong = [f"{fault['fault']}: {'; '.join(fault['why'])}" for fault in result["faults"] if fault["why"]]
    wrong += [f"violated: {violation['what']}" for violation in result["violations"]]
    wrong += [f"tick {m['k']} missed without an injected fault: {m['called']}" for m in result["uninjected_misses"]]
    counts = ", ".join(f"{name.replace('_', ' ')} {result[name]}" for name in COUNTS)
    for line in (*wrong, f"{counts}, seed {result['seed']}"):
        console.print(line, markup=False, soft_wrap=True)


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
