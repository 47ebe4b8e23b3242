"""What a fleet's drill breaks: machines, servers of one fleet, a server of its own, and clients."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rtcontrol.drill.fleet.doors import FleetServer
from rtcontrol.drill.fleet.machines import RayMachine, RayMachines
from rtcontrol.drill.fleet.ticks import Flock, NotSteadyError
from rtcontrol.models.checkpoint.checkpoint import resolve
from rtcontrol.models.errors import UserError

FLEET, DECODERS = "drill", 2
# Of the clients: for so many periods a call is held, and acted by at most.
HOLD, TTL = 2, 6
WHOLE_S = 120.0
PARTINGS, LOST_S = 3, 1.0
# What servers say of a fault, and what that is called in the table.
SIGNS = {
    "decoder lost": "a server: decoder lost",
    "says nothing": "a server: nothing is heard of a decoder",
    "Ray's head at": "a server: the head does not answer",
    "is not heard": "a server: the fleet is not heard",
    "leaves its machine": "a server: a decoder's machine goes",
}


@dataclass(frozen=True)
class FleetOptions:
    """Who decides, for how many clients; `ticks`: of the change of the model."""

    model: str
    agent: str
    hz: float = 10.0
    clients: int = 6
    ticks: int = 10_000


@dataclass
class FleetScene:
    """`over`: whether the drill is to end."""

    out: Path
    options: FleetOptions
    texts: Sequence[str]
    machines: RayMachines
    over: Callable[[], bool]
    doors: list[FleetServer] = field(default_factory=list)
    single: FleetServer | None = None
    _opened: int = 0

    def open_door(self) -> FleetServer:
        """One more server of the fleet."""
        self.doors.append(self._server("door", "--fleet", FLEET))
        self.doors[-1].wait(self.over)
        return self.doors[-1]

    def open_single(self) -> FleetServer:
        """The server that has decoders of its own, which are changed and drained, on machines for these."""
        if self.single is None:
            self.machines.fill(DECODERS, DECODERS + 1)  # room for one more at each change
            self.single = self._server("single", "--max-sessions", "256")
            self.single.wait(self.over)
        return self.single

    def close(self) -> None:
        for door in [*self.doors, *([self.single] if self.single is not None else [])]:
            door.close()

    def flock(self, endpoints: Sequence[str] | None = None, clients: int | None = None) -> Flock:
        """Clients of the fleet's servers, or of these."""
        period_ms = 1e3 / self.options.hz
        given: dict[str, Any] = {"agent": self.options.agent, "ttl_ms": TTL * period_ms, "hold_ms": HOLD * period_ms}
        where = [door.endpoint for door in self.doors] if endpoints is None else endpoints
        count = self.options.clients if clients is None else clients
        return Flock(
            where, count, self.options.hz, self.texts, self.machines.env, given, self.over, self.out / "clients.log"
        )

    def busiest(self, door: FleetServer) -> tuple[dict[str, Any], RayMachine]:
        """The decoder with most sessions, as the page shows it, and its machine. NotSteadyError where it is nowhere."""
        shown = max(door.decoders(), key=lambda one: int(one["sessions"]), default={})
        machine = self.machines.of(int(shown.get("pid", 0)))
        if machine is None:
            raise NotSteadyError(
                "The drill's decoder is on none of its machines.", f"See {door.name}.log in {self.out}."
            )
        return shown, machine

    def apart(self) -> None:
        """Wait until each decoder of the fleet is on a machine of its own. Where Ray took too long to start one again,
        it may share one: it is ended, and started again. NotSteadyError where they do not part."""
        for _ in range(PARTINGS):
            self.whole()
            pids = [int(one["pid"]) for one in self.doors[0].decoders()]
            machines = [self.machines.of(pid) for pid in pids]
            if len({id(machine) for machine in machines}) == len(machines) or self.over():
                return
            os.kill(pids[-1], signal.SIGKILL)
            time.sleep(LOST_S)
        raise NotSteadyError("The drill's decoders are on one machine.", f"See {self.out}.")

    def whole(self, door: FleetServer | None = None) -> float:
        """Wait until all decoders are there again; gives the seconds. UserError where they do not come."""
        began = time.monotonic()
        for one in [door] if door is not None else self.doors:
            while [shown["state"] for shown in one.decoders()] != ["up"] * DECODERS and not self.over():
                if time.monotonic() - began > WHOLE_S:
                    raise UserError(f"The drill's decoders are not all back after {WHOLE_S:g} s.", f"See {self.out}.")
                time.sleep(0.1)
        return time.monotonic() - began

    def signs(self, begin_ns: int) -> list[tuple[float, str]]:
        """What the servers said since: ms, and words."""
        servers = [*self.doors, *([self.single] if self.single is not None else [])]
        found = []
        for t_ns, line in [pair for server in servers for pair in list(server.lines)]:
            called = next((words for pattern, words in SIGNS.items() if pattern in line), None)
            if called is not None and t_ns >= begin_ns:
                found.append(((t_ns - begin_ns) / 1e6, called))
        return found

    def copied(self, name: str) -> str:
        """The model under another name."""
        to = self.out / name
        if not to.exists():
            shutil.copytree(resolve(self.options.model), to)
        return str(to)

    def _server(self, name: str, *options: str) -> FleetServer:
        self._opened += 1
        given = ["--model", self.options.model, "--decoders", str(DECODERS), "--threads", "1", *options]
        env = {**self.machines.env, "RAY_ADDRESS": self.machines.address}
        return FleetServer(self.out, f"{name}-{self._opened}", env, self.machines.guardian.folder, given)
