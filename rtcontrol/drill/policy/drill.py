"""Flies a run by a policy server that does wrong on purpose, and counts what acted of that: nothing may."""

from __future__ import annotations

import json
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rtcontrol.drill.drill import write_verdict
from rtcontrol.drill.policy.faults import POLICY_FAULTS
from rtcontrol.drill.policy.server import good_force
from rtcontrol.drill.policy.world import SAFE_FORCE, NumberedWorld, drill_agent
from rtcontrol.envs.paced import PacedEnvironment
from rtcontrol.hosts.inprocess import InProcessHost
from rtcontrol.hosts.policy_api import PolicySource
from rtcontrol.loop.config import RunConfig
from rtcontrol.loop.loop import ControlLoop, LoopOptions
from rtcontrol.models.errors import UserError
from rtcontrol.run.run import MISSED, OK
from rtcontrol.telemetry import report
from rtcontrol.telemetry.policy_table import policy_faults
from rtcontrol.telemetry.record_reader import read_record
from rtcontrol.telemetry.recorder import Recorder
from rtcontrol.telemetry.run_folder import describe
from rtcontrol_client.console import printable
from rtcontrol_client.shutdown import Shutdown

BENCH = "policy-drill"
VARIABLE = "RTCONTROL_OPENPI"
HZ, DEADLINE_S = 16.0, 0.0625
MAPPING = "observation: {observation/state: [n]}\nhorizon: 1\nrepeats: 0\n"
START_S, LOOK_S = 30.0, 0.1
AFTER = 4  # good answers behind the last fault
MOST_TICKS = 12  # for each fault: then no more of them come
MOST_FAULTS = 100_000
NO_MISS = ("null", "held", "epoch_over", "overtaken", "repeated", "not told")
BUSY = 0.5  # of the machine's load before
SERVER = Path(__file__).with_name("server.py")


@dataclass(frozen=True)
class PolicyDrill:
    """`python`: the interpreter that has openpi-client (None: this one, with messages of this project's)."""

    faults: int
    seed: int = 0
    only: tuple[str, ...] = ()
    python: str | None = None

    def plan(self) -> list[str]:
        """As many of each kind, in an order that the seed decides. Raises UserError."""
        names = self.only or tuple(POLICY_FAULTS)
        if unknown := [name for name in names if name not in POLICY_FAULTS]:
            raise UserError(
                f"--only {unknown[0]} is no fault of a policy server.", f"There are {', '.join(POLICY_FAULTS)}."
            )
        if not 1 <= self.faults <= MOST_FAULTS:
            raise UserError(f"--faults {self.faults} is no number of faults.", f"Give 1 to {MOST_FAULTS}.")
        plan = [names[i % len(names)] for i in range(self.faults)]
        random.Random(self.seed).shuffle(plan)
        return plan


def interpreter(given: str | None) -> str | None:
    """The one that is to have openpi-client: as given, or as the environment says."""
    return given or os.environ.get(VARIABLE) or None


def drill_policy(drill: PolicyDrill, out: Path, ending: Shutdown | None, file: Path | None, console: Console) -> int:
    """Fly, judge, show the table, write policy-drill.json (and `file`). Gives the exit status: 0 where nothing of a
    fault acted and each was a miss; else 3, or a signal's. Raises UserError."""
    plan, machine, began = drill.plan(), describe(), time.monotonic()
    with _server(drill, plan, out) as (port, wire):
        flown = _fly(port, plan, out, (lambda: False) if ending is None else ending.called)
    document = {
        "bench": BENCH,
        "measured": time.strftime("%Y-%m-%d"),
        "quick": drill.faults < 500 or bool(drill.only),
        "busy": (machine["load"] or 0.0) > BUSY,
        "wire": wire,
        "hz": HZ,
        "deadline_ms": DEADLINE_S * 1e3,
        "seconds": round(time.monotonic() - began),
        "machine": machine,
        **judge(flown, [json.loads(line) for line in (out / "server.log").read_text().splitlines()]),
    }
    for path in (out / f"{BENCH}.json", file):
        if path is not None:
            write_verdict(path, document)
    show(document, console)
    console.print(f"drill: {out / BENCH}.json", markup=False)
    status = 0 if ending is None else ending.status
    return status or (MISSED if document["violations"] else OK)


@dataclass(frozen=True)
class FlownDrill:
    """What the record says, and what acted by the world's own word."""

    events: Sequence[Mapping[str, Any]]
    acted: Sequence[tuple[int, float]]


def _fly(port: int, plan: Sequence[str], out: Path, stopped: Callable[[], bool]) -> FlownDrill:
    agent, world = drill_agent(), NumberedWorld()
    (out / "policy.yaml").write_text(MAPPING)
    model = f"openpi:ws://127.0.0.1:{port}#{out / 'policy.yaml'}"
    config = RunConfig(
        env=BENCH,
        out=out,
        hz=HZ,
        deadline_ms=DEADLINE_S * 1e3,
        agent=agent.name,
        model=model,
        host="inprocess",
        instruction=agent.instruction,
        duration_s=max(60.0, MOST_TICKS * len(plan) / HZ),
    )
    source = PolicySource.parse(model, agent.tools.openai(), config.period_ns)
    recorder = Recorder(out / "record.mcap", config.header(agent.fallback.hold_ms, agent))
    env = PacedEnvironment.of(BENCH, lambda: world)
    loop = ControlLoop(config, agent, env, InProcessHost(source), recorder, LoopOptions())
    over = threading.Event()
    watching = threading.Thread(target=_watch, args=(loop, out / "server.log", len(plan), over, stopped), daemon=True)
    watching.start()
    try:
        loop.run()
    finally:
        over.set()
        watching.join()
        recorder.close()
    report.write(report.build(loop.account, "record.mcap", recorder.lost, loop.ended_by), out / "report.json")
    return FlownDrill(list(read_record(out / "record.mcap")), world.acted)


def _watch(loop: ControlLoop, log: Path, faults: int, over: threading.Event, stopped: Callable[[], bool]) -> None:
    """End the run once the last fault is over."""
    while not over.wait(LOOK_S):
        lines = [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
        injected = {line["n"] for line in lines if line["fault"] is not None}
        after = sum(line["fault"] is None and line["n"] > max(injected, default=0) for line in lines)
        if stopped() or (len(injected) >= faults and after >= AFTER):
            loop.stop("duration")
            return


def judge(flown: FlownDrill, asked: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """By kind of fault how many there were, what their ticks were called, and how many acted: which the world's own
    account says, since the force of each good answer is its own."""
    faults = {line["n"]: line["fault"] for line in asked if line["fault"] is not None}
    answered = Counter(line["n"] for line in asked if line["fault"] is None)
    good = {_exact(good_force(n)): n for n in answered}
    seen = {event["k"]: round(event["data"]["n"]) for event in flown.events if "data" in event}
    ticks = {event["k"]: event for event in flown.events if "kind" in event}
    revised = {event["revised"]: event for event in flown.events if "revised" in event}
    outcome: dict[int, str] = {}
    for k, n in seen.items():
        if n in faults and k in ticks:
            cause = {**ticks[k], **revised.get(k, {})}
            outcome[n] = _called(cause)
    forces = [_exact(force) for _, force in flown.acted if force != SAFE_FORCE]
    foreign = [force for force in forces if force not in good]  # of a fault's answer, or of none
    by_force = {_exact(good_force(n)): fault for n, fault in faults.items()}
    acted = Counter(by_force.get(force, "unknown") for force in foreign)
    rows = [
        {
            "fault": name,
            "about": POLICY_FAULTS[name].about,
            "injected": sum(fault == name for fault in faults.values()),
            "acted": max(acted[name], sum(outcome.get(n) == "acted" for n, f in faults.items() if f == name)),
            "called": dict(Counter(outcome.get(n, "not told") for n, f in faults.items() if f == name)),
        }
        for name in POLICY_FAULTS
        if name in faults.values()
    ]
    violations = [f"a call of {name} acted" for name, count in acted.items() for _ in range(count)]
    violations += [
        f"the answer to observation {good[force]} acted {count} times"
        for force, count in Counter(forces).items()
        if force in good and count > answered[good[force]]
    ]
    violations += [f"{row['fault']}: {n} ticks acted" for row in rows if (n := row["called"].get("acted", 0))]
    others = [(row["fault"], called, n) for row in rows for called, n in row["called"].items() if called in NO_MISS]
    violations += [f"{name}: {n} were no miss, but {called}" for name, called, n in others]
    return {
        "injected": len(faults),
        "acted": sum(row["acted"] for row in rows) + acted["unknown"],
        "good_acts": len(forces) - len(foreign),
        "safe_acts": sum(force == SAFE_FORCE for _, force in flown.acted),
        "faults": rows,
        "violations": violations,
    }


def _called(tick: Mapping[str, Any]) -> str:
    if tick["kind"] != "miss":
        return "acted" if tick["kind"] == "call" else str(tick["kind"])
    cause, subcause = tick.get("cause"), tick.get("subcause")
    return f"{cause}.{subcause}" if subcause else str(cause)


def _exact(force: float) -> float:
    """As it is after its way in 32 bits."""
    return round(force, 6)


def show(document: Mapping[str, Any], console: Console) -> None:
    """The drill's table: a row a kind of fault."""
    (figures,) = policy_faults(dict(document))
    table = Table(*figures.columns, box=None, pad_edge=False)
    for row in figures.rows:
        table.add_row(*map(printable, row))
    console.print(table, markup=False)
    for what in document["violations"][:20]:
        console.print(f"violated: {what}", markup=False)
    console.print(
        f"{document['injected']} faults in {document['seconds']} s: {document['acted']} acted; {document['good_acts']} "
        f"good calls acted, {document['safe_acts']} safe ones",
        soft_wrap=True,
    )


@contextmanager
def _server(drill: PolicyDrill, plan: Sequence[str], out: Path) -> Any:
    """The program that does wrong: its port, and whose messages it speaks."""
    port, log, said = _free_port(), out / "server.log", out / "server.out"
    log.write_text("")
    (out / "plan.json").write_text(json.dumps({"faults": list(plan), "deadline_s": DEADLINE_S}))
    python = interpreter(drill.python)
    command = [python or sys.executable, str(SERVER), str(port), str(out / "plan.json"), str(log)]
    path = os.pathsep.join(place for place in sys.path if place)  # this project's, where it is not installed
    env = {**os.environ} if python else {**os.environ, "PYTHONPATH": path}
    try:
        with said.open("w") as file:
            child = subprocess.Popen(command, stdout=file, stderr=file, env=env)
    except OSError as error:
        remedy = f"Give --python, or {VARIABLE}, an interpreter that has openpi-client, or neither."
        raise UserError(f"{python} cannot be started ({error.strerror}).", remedy) from None
    try:
        yield port, _wire(child, said)
    finally:
        child.kill()
        child.wait()


def _wire(child: subprocess.Popen[bytes], said: Path) -> str:
    give_up = time.monotonic() + START_S
    while "listening" not in (text := said.read_text(errors="replace")):
        if child.poll() is not None or time.monotonic() > give_up:
            last = (text.strip().splitlines() or ["it says nothing"])[-1]
            remedy = f"Where --python or {VARIABLE} names an interpreter, it needs openpi-client (docs/policies.md)."
            raise UserError(f"The policy server of the drill did not start ({last[:200]}).", remedy)
        time.sleep(0.02)
    return text.rpartition(" of ")[2].strip()


def _free_port() -> int:
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
