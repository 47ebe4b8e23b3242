"""A drill from its options to its exit status: faults by a seeded schedule, endings, verdict."""

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

from rtcontrol.drill.faults import ENDINGS, FAULTS, TIMES, schedule
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

# A flight that is only ended is flown so long before.
SHORT_S = 1.5
# Of the last fault before the end.
CALM_S = 1.0
COUNTS = ("injected", "attributed", "unknown", "uninjected", "invariants_violated", "misses")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Drill:
    """What is drilled, and by what; `run` are the options of `rtcontrol run`."""

    run: Mapping[str, Any]
    minutes: float
    seed: int
    only: Sequence[str] = ()

    def names(self) -> list[str]:
        """The faults and endings that were asked for. UserError for one that there is not."""
        known = [*FAULTS, *ENDINGS]
        for name in self.only:
            if name not in known:
                raise UserError(f"--only {name}: there is no such fault.", f"There are {', '.join(known)}.")
        wanted = [name for name in known if name in (self.only or known)]
        lacking = {"kill_raylet"} if self.run.get("host") == "inprocess" else set()
        lacking |= {"stop_decoder", "kill_decoder"} if lacking else set()
        if at_fault := lacking.intersection(self.only):
            raise UserError(f"--only {min(at_fault)} needs a decoder's process.", "Give --host ray.")
        return [name for name in wanted if name not in lacking]


def drill(told: Drill, out: Path, ending: Shutdown, file: Path | None, console: Console) -> int:
    """Fly, inject, judge, write drill.json (and `file`), show the table. Gives the exit status: 0 where every fault is
    attributed, nothing is unknown and nothing violated; else 3, or a signal's."""
    names = told.names()
    planned = schedule([name for name in names if name in FAULTS], 60 * told.minutes, told.seed)

    def say(line: str) -> None:
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)

    config = RunOptions(**told.run)
    agent = assembly.agent(config.agent or assembly.default_agent(config.env))
    rules = rules_of(config, agent)
    parts = []
    if planned:
        options = {**told.run, "seed": told.seed}
        with Flight(out, options, rules, ending) as flight:
            parts.append(_fly(flight, planned, config, out, ending, told.seed, say))
    short = {**told.run, "host": "inprocess", "standby": False}
    short |= {"model": "expert"} if agent.name in assembly.EXPERTS else {}
    for name in (n for n in names if n in ENDINGS for _ in range(TIMES)):
        if not ending.called():
            where = out / f"{name}-{sum(p['name'] == name for p in parts) + 1}"
            with Flight(where, {**short, "seed": told.seed}, rules, ending) as flight:
                parts.append(_end(flight, name, config, where, ending, say))
    result = _sum(parts, told.seed)
    for path in (out / "drill.json", file):
        if path is not None:
            write_verdict(path, result)
    show(result, console)
    say(f"drill: {out / 'drill.json'}")
    clean = result["attributed"] == result["injected"] and not (result["unknown"] or result["invariants_violated"])
    return ending.status or (OK if clean else MISSED)


def _fly(
    flight: Flight, planned: Sequence[Any], config: RunOptions, out: Path, ending: Shutdown, seed: int, say: Say
) -> dict[str, Any]:
    say("starting the run ...")
    injections: list[Injection] = []
    if flight.await_calls():
        injector = Injector(flight.pid, flight.switches, flight.disk, flight.line, flight.over)
        began_s = time.monotonic()
        for i, due in enumerate(planned):
            # A fault meets a run that has recovered from the one before.
            if not flight.await_steady(began_s + due.at_s):
                break
            say(f"[{i + 1:3}/{len(planned)}] {time.monotonic() - began_s:6.1f} s  {due.fault.name}: {due.fault.about}")
            injections.append(injector.inject(due.fault))
        if injections and not flight.over():
            rest(flight.over, time.monotonic() + injections[-1].fault.rest_s + CALM_S)
    status, judged = flight.end(["SIGTERM"])
    result = _verdict(injections, judged, config, out, seed)
    whats = []
    if len(injections) < len(planned) and not ending.called():
        whats.append(f"{len(planned) - len(injections)} of {len(planned)} faults could not be injected")
    if status != STATUS["SIGTERM"]:
        whats.append(f"the run ended with exit status {status}: {flight.last_line()}")
    result["violations"] += [{"t_ns": time.monotonic_ns(), "what": what} for what in whats]
    result["invariants_violated"] += len(whats)
    return {"name": "flight", **result}


def _end(flight: Flight, name: str, config: RunOptions, out: Path, ending: Shutdown, say: Say) -> dict[str, Any]:
    about, signals, expected = ENDINGS[name]
    begin_ns = time.monotonic_ns()
    if flight.await_calls():
        rest(flight.over, time.monotonic() + SHORT_S)
        say(f"{name}: {about}")
        begin_ns = time.monotonic_ns()
        if len(signals) > 1:
            flight.switches["slow_safe"] = time.monotonic() + 60.0
    status, judged = flight.end(signals)
    result = _verdict([], judged, config, out, 0)
    why = [f"exit status {status}, not {expected}"] if status != expected else []
    end = next((event for event in read_record(out / "record.mcap") if "end" in event), {})
    if end.get("safe_in_force") is not True:
        why.append("the record does not say that the safe call was in force")
    if not (out / "report.json").is_file():
        why.append("no report")
    fault = {"fault": name, "begin_ns": begin_ns, "end_ns": time.monotonic_ns(), "recovered_s": None, "misses": 0}
    fault |= {"causes": {}, "attributed": not why, "why": why}
    return {"name": name, **result, "injected": 1, "attributed": int(not why), "faults": [fault]}


def _verdict(
    injections: Sequence[Injection], judged: Mapping[str, Any], config: RunOptions, out: Path, seed: int
) -> dict[str, Any]:
    timeline = Timeline()
    for event in read_record(out / "record.mcap"):
        timeline.add(event)
    ticks = ticks_of(timeline.finish(), config.period_ns, config.deadline_ns)
    return verdict(injections, ticks, judged["violations"], seed)


def _sum(parts: Sequence[Mapping[str, Any]], seed: int) -> dict[str, Any]:
    result: dict[str, Any] = {"seed": seed, **{name: sum(p[name] for p in parts) for name in COUNTS}}
    for name in ("faults", "uninjected_misses", "violations"):
        result[name] = [entry for part in parts for entry in part[name]]
    return result


def write_verdict(path: Path, result: Mapping[str, Any]) -> None:
    """As JSON. UserError where it cannot be written."""
    try:
        replace_file(path, json.dumps(result, indent=2) + "\n")
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}).", "Give another --json.") from error


def show(result: Mapping[str, Any], console: Console) -> None:
    """The drill's table: a row a kind of fault."""
    table = Table("fault", "injected", "attributed", "misses", "recovered in s, at most", "called", box=None)
    kinds = dict.fromkeys(fault["fault"] for fault in result["faults"])
    for kind in kinds:
        of = [fault for fault in result["faults"] if fault["fault"] == kind]
        causes: Counter[str] = sum((Counter(fault["causes"]) for fault in of), Counter())
        slowest = max((f["recovered_s"] for f in of if f["recovered_s"] is not None), default=None)
        called = ", ".join(f"{name} {n}" for name, n in causes.most_common()) or "-"
        table.add_row(
            kind,
            str(len(of)),
            str(sum(fault["attributed"] for fault in of)),
            str(sum(fault["misses"] for fault in of)),
            "-" if slowest is None else f"{slowest:.2f}",
            called,
        )
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
