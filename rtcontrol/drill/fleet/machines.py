"""The machines of a drilled fleet: nodes of a Ray cluster, each a tree of processes, where it can be had in a network
namespace of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from rtcontrol.drill.fleet.network import MachineLink, MachineNetwork
from rtcontrol.hosts.processes import MARK, OPEN, Guardian, kill_marked, marked
from rtcontrol.models.errors import UserError

START_S = 120.0
# Of a machine, by its own word: for one decoder of the fleet, so that each has a machine of its own.
PROCESSORS = 1
STORE_BYTES = 80_000_000
STARTED = "Ray runtime started"
# Ray tells a dead machine after tens of seconds, and ends who has lost its head after a minute: the drill waits for
# neither as long.
HEAD_GONE_S = 20
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_worker_niceness": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_gcs_rpc_server_reconnect_timeout_s": str(HEAD_GONE_S),
}


class RayMachine:
    """One node. All of its processes bear the mark of its folder, and end with this process."""

    def __init__(self, name: str, log: Path, env: dict[str, str], link: MachineLink | None) -> None:
        self.name, self.link = name, link
        self._guardian = Guardian()
        self._log, self._process = log, None
        self._env = {**env, MARK: self._guardian.folder, "SPT_NOENV": "1"}
        self._child: subprocess.Popen[str] | None = None

    @property
    def folder(self) -> str:
        return self._guardian.folder

    def begin(self, temp: str, *arguments: str) -> None:
        """Start it, and do not wait. `temp`: the cluster's folder, which is not shared with other machines."""
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", *arguments, "--disable-usage-stats", "--block"]
        ray += ["--object-store-memory", str(STORE_BYTES), "--include-log-monitor=false"]
        script = f"exec {shlex.join(ray)}"
        if self.link is not None:
            own = Path(self.folder) / OPEN
            own.mkdir()
            steps = [
                "echo ready",
                "read go",
                f"hostname {self.name}",
                f"mount --bind {shlex.quote(str(own))} {shlex.quote(temp)}",
                "ip link set lo up",
                f"ip addr add {self.link.address}/24 dev eth0",
                "ip link set eth0 up",
            ]
            script = " && ".join([*steps, script])
        unshare = ["unshare", "--net", "--uts", "--mount"] if self.link is not None else []
        with self._log.open("w") as log:
            self._child = subprocess.Popen(
                [*unshare, "sh", "-c", f"{script} >{shlex.quote(str(self._log))} 2>&1"],
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        if self.link is not None:
            assert self._child.stdin is not None and self._child.stdout is not None, "PIPE"
            self._child.stdout.readline()
            self.link.plug(self._child.pid)
            self._child.stdin.write("go\n")
            self._child.stdin.flush()

    def wait(self, over: Callable[[], bool]) -> None:
        """Until it has joined. UserError where it ends, or does not in time."""
        give_up = time.monotonic() + START_S
        assert self._child is not None, "begun"
        while STARTED not in (said := self._log.read_text(errors="replace")) and not over():
            if self._child.poll() is not None or time.monotonic() > give_up:
                last = (said.strip().splitlines() or ["it said nothing"])[-1]
                raise UserError(f"A machine of the drill does not start: {last}", f"See {self._log}.")
            time.sleep(0.05)

    def pids(self) -> list[int]:
        """Of all its processes now."""
        found = []
        for pid, fd, _ in marked(self.folder):
            os.close(fd)
            found.append(pid)
        return found

    def kill(self) -> None:
        """SIGKILL to all of them."""
        kill_marked(self.folder)

    def signal(self, pids: list[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def node_id(self) -> str:
        """Ray's name of it, as its raylet was told. UserError where it has none."""
        for pid in self.pids():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                for word in words if words[0].endswith(b"raylet") else ():
                    name, _, value = word.decode(errors="replace").partition("=")
                    if name.strip("-").replace("-", "_") == "node_id":
                        return value
        raise UserError(f"The machine {self.name} has no raylet.", "Run the drill again.")

    def close(self) -> None:
        self.signal(self.pids(), signal.SIGCONT)
        self.kill()
        self._guardian.end()
        if self._child is not None:
            self._child.wait()
            for stream in (self._child.stdin, self._child.stdout):
                if stream is not None:
                    stream.close()


class RayMachines:
    """A head, where the servers are, and so many machines for decoders. Closed at the end of `with`."""

    def __init__(self, out: Path, count: int, over: Callable[[], bool]) -> None:
        from rtcontrol.drill.fleet.doors import free_port

        self.network = MachineNetwork()
        self._out, self._over, self._number, self._count = out, over, 0, count
        self._port = free_port()
        self.address = f"{self.network.head}:{self._port}"
        self.guardian = Guardian()  # of what is on the head beside Ray
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        self.env |= {**SETTINGS, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.head: RayMachine | None = None
        self.workers: list[RayMachine] = []

    def __enter__(self) -> Self:
        try:
            self.head = RayMachine("head", self._out / "head.log", self.env, None)
            self._temp = str(Path(self.head.folder) / OPEN)
            at = ["--head", f"--node-ip-address={self.network.head}", f"--port={self._port}", "--num-cpus=0"]
            self.head.begin(self._temp, *at, "--include-dashboard=false", f"--temp-dir={self._temp}")
            self.head.wait(self._over)
            self.fill()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for machine in [*self.workers, *([self.head] if self.head is not None else [])]:
            machine.close()
        self.guardian.end()

    def fill(self, more: int = 0, processors: int = PROCESSORS) -> None:
        """Start machines until there are as many as in the beginning, and so many `more`."""
        fresh = []
        while len(self.workers) < self._count + more and not self._over():
            self._number += 1
            name = f"machine-{self._number}"
            machine = RayMachine(name, self._out / f"{name}.log", self.env, self.network.link())
            self.workers.append(machine)
            fresh.append(machine)
            where = self.network.head if machine.link is None else machine.link.address
            machine.begin(
                self._temp, f"--address={self.address}", f"--node-ip-address={where}", f"--num-cpus={processors}"
            )
        for machine in fresh:
            machine.wait(self._over)

    def remove(self, machine: RayMachine) -> None:
        """Nothing of it is left."""
        self.workers.remove(machine)
        machine.close()

    def of(self, pid: int) -> RayMachine | None:
        """The machine for decoders that a process is on."""
        return next((machine for machine in self.workers if pid in machine.pids()), None)

    def drain(self, machine: RayMachine) -> None:
        """Tell Ray that the machine goes, as a cloud does that takes it back."""
        ray = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--address", self.address]
        ray += ["--node-id", machine.node_id(), "--reason", "DRAIN_NODE_REASON_PREEMPTION"]
        done = subprocess.run(
            [*ray, "--reason-message", "a drill"], env=self.env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise UserError(f"`ray drain-node` failed: {done.stderr.strip()[-300:]}", f"See {self._out}.")


@contextlib.contextmanager
def pulsed(machine: RayMachine, stopped_s: float, runs_s: float) -> Iterator[Callable[[], None]]:
    """Gives what stops a machine for so long and lets it run for so long; at the end it runs."""
    pids = machine.pids()

    def pulse() -> None:
        machine.signal(pids, signal.SIGSTOP)
        time.sleep(stopped_s)
        machine.signal(pids, signal.SIGCONT)
        time.sleep(runs_s)

    try:
        yield pulse
    finally:
        machine.signal(pids, signal.SIGCONT)
