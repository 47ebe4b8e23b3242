"""A long run with the bundled model, and its figures: `python -m tests.bridges.ros2.soak 600 [SERVE OPTIONS]`.

Server, bridge and simulated robot in three processes; the memory of the bridge is read every ten seconds.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from tests.bridges.client.worlds import ROOT, free_port
from tests.bridges.faults import served


def main(seconds: float, serve: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(_run(seconds, serve, Path(folder)), indent=2))


def _run(seconds: float, serve: list[str], folder: Path) -> dict[str, Any]:
    own = {"ROS_DOMAIN_ID": str(random.randint(101, 200)), "ROS_LOCALHOST_ONLY": "1", "PYTHONPATH": str(ROOT)}
    environment = {**os.environ, **own}
    endpoint, report = f"tcp://127.0.0.1:{free_port()}", folder / "report.json"
    python = [sys.executable, "-m"]
    started: list[subprocess.Popen[str]] = []

    def start(*command: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        started.append(subprocess.Popen([*python, *command], stdin=pipe, stdout=pipe, text=True, env=environment))
        return started[-1]

    try:
        model = ["--model", served.bundled(folder)]
        server = start("rtcontrol", "serve", "--bind", endpoint, "--out", str(folder / "records"), *model, *serve)
        assert server.stdout is not None
        while "listening on" not in server.stdout.readline():
            assert server.poll() is None, "the server does not start"
        robot = start("tests.bridges.ros2.robot")
        config = str(ROOT / "bridges" / "ros2" / "examples" / "robot.yaml")
        options = ["--config", config, "--connect", endpoint, "--duration", str(seconds), "--report", str(report)]
        bridge = start("rtcontrol.bridges.ros2", *options)
        process, memory = psutil.Process(bridge.pid), []
        while bridge.poll() is None:
            time.sleep(10)
            if bridge.poll() is None:
                memory.append(round(process.memory_info().rss / 1e6, 1))
                cpu_s = sum(process.cpu_times()[:2])
        assert robot.stdin is not None and robot.stdout is not None
        robot.stdin.write("report\n")
        robot.stdin.flush()
        robot.stdout.readline()  # ready
        figures = json.loads(robot.stdout.readline())
        figures.pop("diagnostics")
        each = {"bridge_mb_each_minute": memory[::6], "bridge_cpu_s": cpu_s}
        return {"bridge": json.loads(report.read_text()), "robot": figures, **each}
    finally:
        for one in started:
            one.kill()
            one.wait()


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
