"""Measure what robots lose when a replica is killed, frozen, drained, or its model changed:

python -m tests.rtcontrol.scale.measure --repeat 3 --json scale.json
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from rtcontrol.hosts.ray_start import RaySession
from rtcontrol.models.checkpoint.checkpoint import resolve
from rtcontrol.run import assembly
from rtcontrol.scale.application import NAME as DEPLOYMENT
from rtcontrol.scale.local import NAME
from rtcontrol_client import Client
from tests.helpers.processes import free_port

HZ, TTL_MS, ROBOTS = 16.0, 500.0, 8
SEEN = "x 0 y 100 vx 0 vy 0 angle 0 spin 0 legs 0 0"
LOSS_S = 1.5 / HZ  # a gap from which a tick counts as lost
STEADY = 8  # ticks in a row without a loss
BEFORE_S, AFTER_S, LIMIT_S = 2.0, 4.0, 30.0


class Robot:
    """A client at 16 Hz that notes its fresh calls, and acts 100 times a second by what `call` gives it."""

    def __init__(self, url: str, **tools: Any) -> None:
        self.fresh_s: list[float] = []
        self.beyond_ttl = 0
        self.client = Client.connect(url, **tools, hz=HZ, ttl_ms=TTL_MS)
        self._seen_s: dict[int, float] = {}  # when each observation was captured, by its number
        self._over = threading.Event()
        for work in (self._look, self._note, self._act):
            threading.Thread(target=work, daemon=True).start()

    def _look(self) -> None:
        while not self._over.is_set():
            due_ns = self.client.next_observation_ns()
            self._over.wait(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
            now_s = time.monotonic()
            self._seen_s[self.client.observe(SEEN)] = now_s

    def _note(self) -> None:
        last: Any = None
        while not self._over.is_set():
            standing = self.client.wait(0.2)
            if standing.status == "fresh" and standing != last:
                self.fresh_s.append(time.monotonic())
            last = standing

    def _act(self) -> None:
        while not self._over.wait(0.01):
            now_s = time.monotonic()
            standing = self.client.call()
            seen_s = self._seen_s.get(-1 if standing.seq_obs is None else standing.seq_obs, now_s)
            self.beyond_ttl += standing.status != "safe" and now_s - seen_s > TTL_MS / 1e3

    def close(self) -> None:
        self._over.set()
        self.client.close()

    def again_s(self, since_s: float) -> float | None:
        """Return how long after `since_s` the first of STEADY calls in a row came, after the longest gap since then.

        A gap in which no tick was lost is none: a robot whose calls all came in time is on time after 0 s.
        """
        came = [t for t in self.fresh_s if t > since_s - 0.5]
        gaps = [b - a for a, b in itertools.pairwise(came)]
        longest = max(range(len(gaps)), key=gaps.__getitem__, default=0)
        after = longest + 1 if gaps and gaps[longest] >= LOSS_S else 0
        for first in range(after, len(came) - STEADY):
            if max(gaps[first : first + STEADY - 1]) < LOSS_S:
                return max(0.0, came[first] - since_s)
        return None

    def lost(self, since_s: float, until_s: float) -> int:
        """Return how many ticks had no fresh call."""
        came = [since_s, *(t for t in self.fresh_s if since_s <= t <= until_s), until_s]
        return sum(max(0, round((b - a) * HZ) - 1) for a, b in itertools.pairwise(came))


class Fleet:
    """Two replicas and the robots."""

    def __init__(self, url: str, **args: Any) -> None:
        self.url, self.args, self.robots = url, args, list[Robot]()
        self._variants = itertools.count()
        self.deploy(2)

    def gather(self) -> None:
        """Connect robots, half of them to each replica, with tools that no replica has had before."""
        self.close()
        half = ROBOTS // 2
        self.robots = [Robot(self.url, **given) for given in [self._tools()] * half]
        while len(self.robots) < ROBOTS:
            given = self._tools()
            with contextlib.closing(Client.connect(self.url, **given)) as client:
                elsewhere = client.address != self.robots[0].client.address
            if elsewhere:
                self.robots += [Robot(self.url, **given) for _ in range(half)]

    def close(self) -> None:
        for robot in self.robots:
            robot.close()

    def _tools(self) -> dict[str, Any]:
        tools = copy.deepcopy(assembly.agent("lander").tools.openai())
        tools[0]["function"]["description"] += " " * next(self._variants)
        return {"tools": tools, "instruction": "land on the pad"}

    def moved(self, addresses: list[str]) -> int:
        """Return how many robots are elsewhere than at these addresses."""
        return sum(robot.client.address != one for robot, one in zip(self.robots, addresses, strict=True))

    def victim(self) -> int:
        """Return the process of the replica with the most robots."""
        address = Counter(robot.client.address for robot in self.robots).most_common(1)[0][0]
        port = int(address.rpartition(":")[2])
        pids = [c.pid for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.laddr.port == port]
        return pids[0] or 0

    def healthy(self, count: int) -> bool:
        from ray import serve

        deployment = serve.status().applications[NAME].deployments.get(DEPLOYMENT)
        if deployment is None:
            return False
        states = {str(state): number for state, number in deployment.replica_states.items()}
        return states == {"RUNNING": count}

    def deploy(self, count: int, **changed: Any) -> None:
        """Give Serve the application's config, as `serve deploy` does."""
        from ray.serve.context import _get_global_client
        from ray.serve.schema import ServeDeploySchema

        self.args |= changed
        server = {"name": DEPLOYMENT, "num_replicas": count, "ray_actor_options": {"num_cpus": 0}}
        made = {"name": NAME, "route_prefix": "/", "import_path": "rtcontrol.scale:build", "args": self.args}
        config = {"applications": [{**made, "deployments": [server]}]}
        _get_global_client().deploy_apps(ServeDeploySchema.model_validate(config))


@contextlib.contextmanager
def serving(port: int) -> Iterator[None]:
    """Run a Ray and Serve's proxy for this."""
    session = RaySession()
    try:
        session.start()
        from ray import serve
        from ray.serve.schema import LoggingConfig

        serve.start(http_options={"port": port}, logging_config=LoggingConfig(log_level="WARNING"))
        yield
        serve.shutdown()
    finally:
        session.end()


def until(ready: Callable[[], bool], limit_s: float = 120.0) -> None:
    end_s = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > end_s:
            raise TimeoutError
        time.sleep(0.1)


def kill(fleet: Fleet, folder: Path) -> Iterator[None]:
    pid = fleet.victim()
    yield
    os.kill(pid, signal.SIGKILL)


def freeze(fleet: Fleet, folder: Path) -> Iterator[None]:
    pid = fleet.victim()
    yield
    os.kill(pid, signal.SIGSTOP)
    yield
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def drain(fleet: Fleet, folder: Path) -> Iterator[None]:
    yield
    fleet.deploy(1)
    yield
    fleet.deploy(2)


def change(fleet: Fleet, folder: Path) -> Iterator[None]:
    changed: dict[str, Any] = {"seed": fleet.args.get("seed", 0) + 1}
    if fleet.args["model"] != "random":
        changed["model"] = str(folder / f"lander-{time.monotonic_ns()}")
        shutil.copytree(resolve("lander"), changed["model"])
    yield
    fleet.deploy(2, **changed)


FAULTS = {"killed": kill, "frozen": freeze, "drained": drain, "changed": change}


def measured(fleet: Fleet, name: str, folder: Path) -> dict[str, Any]:
    """Return what one fault cost."""
    until(lambda: fleet.healthy(2))
    time.sleep(BEFORE_S)
    fleet.gather()
    time.sleep(BEFORE_S + 6.0)
    load, quiet_s = os.getloadavg()[0], time.monotonic() - 5.0
    beyond = sum(robot.beyond_ttl for robot in fleet.robots)
    before = [robot.lost(quiet_s, quiet_s + 5.0) for robot in fleet.robots]
    steps = FAULTS[name](fleet, folder)
    next(steps)
    addresses = [robot.client.address for robot in fleet.robots]
    began_s = time.monotonic()
    next(steps, None)
    leave = ROBOTS if name == "changed" else ROBOTS // 2
    until(lambda: fleet.moved(addresses) >= leave, LIMIT_S)
    time.sleep(AFTER_S)
    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s and any(robot.again_s(began_s) is None for robot in fleet.robots):
        time.sleep(0.2)
    again = [robot.again_s(began_s) for robot in fleet.robots]
    now_s = time.monotonic()
    lost = [
        robot.lost(began_s - 0.5, now_s if one is None else began_s + one)
        for robot, one in zip(fleet.robots, again, strict=True)
    ]
    later = [
        0 if one is None else robot.lost(began_s + one, now_s) for robot, one in zip(fleet.robots, again, strict=True)
    ]
    next(steps, None)
    return {
        "fault": name,
        "moved": fleet.moved(addresses),
        "again_s": None if None in again else round(max(one for one in again if one is not None), 2),
        "again": [None if one is None else round(one, 2) for one in again],
        "lost_most": max(lost),
        "lost": lost,
        "lost_later": later,
        "lost_in_5_s_before": sum(before),
        "window_s": round(now_s - began_s, 1),
        "beyond_ttl": sum(robot.beyond_ttl for robot in fleet.robots) - beyond,
        "load": round(load, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--model", default="lander")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        with serving(port):
            fleet = Fleet(f"http://127.0.0.1:{port}/connect", model=given.model, out=f"{folder}/out")
            try:
                for name in given.faults.split(","):
                    for _ in range(given.repeat):
                        rows.append(measured(fleet, name, Path(folder)))
                        print(json.dumps(rows[-1]), flush=True)
            finally:
                fleet.close()
    if given.json is not None:
        given.json.write_text(json.dumps({"hz": HZ, "ttl_ms": TTL_MS, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
