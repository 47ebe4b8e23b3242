"""A long drive in the stand-in, which is not CARLA, and its figures:
`python -m tests.bridges.carla.soak SECONDS [RUN OPTIONS]`.

Without options a model of chance that can only say 50 km/h decides, in an actor of its own (host ray). The memory of
the bridge is read every ten seconds.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from tests.bridges.carla import rig
from tests.bridges.client.worlds import ROOT, until
from tests.bridges.faults.table import conditions

CRUISER = ["--agent", str(ROOT / "tests" / "bridges" / "carla" / "cruiser.py"), "--model", "random"]


def bridge_of(pid: int) -> psutil.Process:
    """The bridge's process of a run. AssertionError where there is none."""
    for child in psutil.Process(pid).children(recursive=True):
        try:
            if "rtcontrol.bridges.carla" in child.cmdline():
                return child
        except psutil.NoSuchProcess:
            continue
    raise AssertionError("the run has no bridge")


def main(seconds: float, options: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(_run(seconds, options or CRUISER, Path(folder)), indent=2))


def _run(seconds: float, options: list[str], folder: Path) -> dict[str, Any]:
    program = rig.run(folder, None, "--duration", f"{seconds:g}", *options, trace=False)
    try:
        program.says("in session", 120)
        process = bridge_of(program.popen.pid)
        memory, cpu_s, end = [], 0.0, time.monotonic() + seconds
        while time.monotonic() < end - 1 and process.is_running():
            memory.append(round(process.memory_info().rss / 1e6, 1))
            cpu_s = sum(process.cpu_times()[:2])
            time.sleep(min(10.0, max(0.1, end - 1 - time.monotonic())))
        until(lambda: program.popen.poll() is not None, "it does not end", 60)
        told = json.loads((folder / "out" / "report.json").read_text())
        state = json.loads((folder / "out" / "standin.json").read_text())
        hero = [one for one in state["destroyed"] if one["role_name"] == "hero"]
        return {
            "what": "CARLA stand-in, not CARLA",
            "options": options,
            "exit_status": program.popen.returncode,
            **conditions(scheduler=os.sched_getscheduler(0)),
            "on_time_share": told["on_time"] / told["releases"],
            "releases": told["releases"],
            "bridge": program.report(),
            "bridge_mb": {
                "start": memory[0],
                "middle": memory[len(memory) // 2],
                "end": memory[-1],
                "max": max(memory),
            },
            "bridge_cpu_share": round(cpu_s / seconds, 3),
            "vehicle_by_the_standin": hero,
        }
    finally:
        program.kill()


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
