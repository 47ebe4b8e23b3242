"""A fleet's drill from its options to its exit status."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rtcontrol.drill.drill import write_verdict
from rtcontrol.drill.fleet.faults import FLEET_FAULTS
from rtcontrol.drill.fleet.machines import RayMachines
from rtcontrol.drill.fleet.network import MachineNetwork
from rtcontrol.drill.fleet.rows import FleetRow
from rtcontrol.drill.fleet.scene import FleetOptions, FleetScene
from rtcontrol.drill.fleet.ticks import NotSteadyError
from rtcontrol.envs import registry
from rtcontrol.models.checkpoint.checkpoint import resolve
from rtcontrol.models.errors import UserError
from rtcontrol.run.run import MISSED, OK
from rtcontrol.telemetry.fleet_table import fleet_faults
from rtcontrol.telemetry.run_folder import describe
from rtcontrol_client.console import printable
from rtcontrol_client.shutdown import Shutdown

MACHINES = 2
LOOKS, LOOK_STEPS = 40, 6
BENCH = "fleet-drill"
BUSY = 0.5  # of the machine's load before
MOST_HZ, MOST_CLIENTS = 50.0, 64


@dataclass(frozen=True)
class FleetDrill:
    """What is drilled; `only`: these faults, in the order of all."""

    options: FleetOptions
    only: Sequence[str] = ()

    def names(self) -> list[str]:
        """The faults that were asked for. UserError for one that there is not."""
        for name in self.only:
            if name not in FLEET_FAULTS:
                raise UserError(f"--only {name}: there is no such fault.", f"There are {', '.join(FLEET_FAULTS)}.")
        return [name for name in FLEET_FAULTS if name in (self.only or FLEET_FAULTS)]


def fleet_options(model: str | None, agent: str | None, hz: float, clients: int, ticks: int) -> FleetOptions:
    """Checked. UserError."""
    names = registry.agent_names()
    agent = agent or (model if model in names else names[0])
    if agent not in names:
        raise UserError(f"--agent {agent} is not bundled.", f"Choose {', '.join(names)}.")
    resolve(model or agent)
    if not 1.0 <= hz <= MOST_HZ:
        raise UserError(f"--hz {hz:g} is no rate of this drill.", f"Give 1 to {MOST_HZ:g}.")
    if not 1 <= clients <= MOST_CLIENTS:
        raise UserError(f"--clients {clients} is no number of this drill.", f"Give 1 to {MOST_CLIENTS}.")
    if ticks < 1:
        raise UserError(f"--ticks {ticks} is no number of ticks.", "Give 1 or more.")
    return FleetOptions(model or agent, agent, hz, clients, ticks)


def observations(agent: str) -> list[str]:
    """Texts of the agent's own world, in which nobody acts."""
    skill, texts = registry.by_agent()[agent].skill(), list[str]()
    made = skill.make()
    made.judge_by(skill.goals[0])
    for seed in range(LOOKS):
        made.reset(seed)
        for _ in range(LOOK_STEPS):
            texts.append(skill.observe(made.observe()))
            made.step()
    return texts


def drill_fleet(told: FleetDrill, out: Path, ending: Shutdown, file: Path | None, console: Console) -> int:
    """Start the fleet, inject, watch, show the table, write fleet-drill.json (and `file`). Gives the exit status: 0
    where every law holds at every fault; else 3, or a signal's. UserError where the fleet cannot be started."""
    names, began, machine = told.names(), time.monotonic(), describe()

    def say(line: str) -> None:
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)

    rows: list[FleetRow] = []
    texts = observations(told.options.agent)
    say("starting a head, two machines and two servers ...")
    with RayMachines(out, MACHINES, ending.called) as machines:
        scene = FleetScene(out, told.options, texts, machines, ending.called)
        try:
            for _ in range(2):
                scene.open_door()
            scene.whole()
            for name in names:
                if not ending.called():
                    rows.append(_row(name, scene, say, time.monotonic() - began))
        finally:
            scene.close()
    document = {
        "bench": BENCH,
        "measured": time.strftime("%Y-%m-%d"),
        "quick": bool(told.only) or told.options != FleetOptions(told.options.model, told.options.agent),
        "busy": (machine["load"] or 0.0) > BUSY,
        "model": told.options.model,
        "hz": told.options.hz,
        "clients": told.options.clients,
        "seconds": round(time.monotonic() - began),
        "machine": machine,
        "faults": [row.document() for row in rows],
    }
    for path in (out / f"{BENCH}.json", file):
        if path is not None:
            write_verdict(path, document)
    show(document, console)
    say(f"drill: {out / BENCH}.json")
    broken = any(row.broken or row.not_steady for row in rows)
    return ending.status or (MISSED if broken else OK)


def _row(name: str, scene: FleetScene, say: Callable[[str], None], at_s: float) -> FleetRow:
    fault = FLEET_FAULTS[name]
    row = FleetRow(name, fault.about)
    row.impossible = _missing(name, scene.machines.network)
    say(f"{at_s:6.1f} s  {name}: {row.impossible or fault.about}")
    if not row.impossible:
        try:
            fault.inject(scene, row)
        except NotSteadyError as error:
            row.impossible, row.not_steady = error.what, True
            say(f"{error.what} {error.remedy}")
        except UserError as error:
            if not scene.over():
                row.broken.append(error.what)
                say(f"{error.what} {error.remedy}")
    return row


def _missing(name: str, network: MachineNetwork) -> str:
    fault = FLEET_FAULTS[name]
    if fault.cuts and network.missing:
        return network.missing
    return "packets cannot be dropped: that takes `iptables`" if fault.drops and not network.drops else ""


def show(document: dict[str, Any], console: Console) -> None:
    """The drill's table: a row a fault."""
    (figures,) = fleet_faults(document)
    table = Table(*figures.columns, box=None, pad_edge=False)
    for row in figures.rows:
        table.add_row(*map(printable, row))
    console.print(table, markup=False)
    laws = sum(len(row["broken"]) for row in document["faults"])
    beyond, twice = (sum(row[name] for row in document["faults"]) for name in ("beyond_ttl", "twice"))
    console.print(
        f"{len(document['faults'])} faults in {document['seconds']} s: {laws} laws broken, {beyond} calls beyond their "
        f"time-to-live, {twice} decided twice",
        soft_wrap=True,
    )
