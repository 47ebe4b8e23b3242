"""A Ray cluster of several nodes on this machine, in a process of its own; run as a program, it is that process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from tests.helpers.processes import ROOT, environment

NODES = 2
# Of each node, by its own word: for the decoders of two servers, and one that is changed for another.
CPUS = 3
SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "RAY_prestart_worker_first_driver": "0"}


class RayCluster:
    """`address` is for RAY_ADDRESS, `nodes` are the first digits of Ray's names of them; the head is the first.
    `dashboard` is its address, where one was asked for (its port, not 0)."""

    def __init__(self, nodes: int = NODES, cpus: int = CPUS, dashboard: int = 0, **more: str) -> None:
        env = {name: value for name, value in environment(**SETTINGS).items() if not name.startswith("RAY_AUTH")}
        env.pop("RAY_ADDRESS", None)
        env |= more
        self.dashboard = f"http://127.0.0.1:{dashboard}"
        command = [sys.executable, "-m", "tests.helpers.ray_cluster", *map(str, (nodes, cpus, dashboard))]
        self._process = subprocess.Popen(
            command, env=env, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.address, *self.nodes = self._said()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def kill(self, node: str) -> None:
        """All processes of a node that is not the head, with SIGKILL."""
        self._do("kill", node)
        self.nodes.remove(node)

    def behead(self) -> None:
        """All processes of the head, with SIGKILL."""
        self._do("behead", self.nodes.pop(0))

    def drain(self, node: str) -> None:
        """Say that the node goes, as a cloud does that takes it back: Ray starts nothing there any more."""
        self._do("drain", node)

    def add(self) -> None:
        """One more node."""
        self.nodes.append(self._do("add", ""))

    def _do(self, what: str, node: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what} {node}\n")
        self._process.stdin.flush()
        (said,) = self._said()
        return said

    def _said(self) -> list[str]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("["):
                said: list[str] = json.loads(line)
                return said
        raise AssertionError(f"the cluster ended with status {self._process.wait()}")


def main() -> None:
    from ray.cluster_utils import Cluster

    nodes, cpus, dashboard = map(int, sys.argv[1:])
    one: dict[str, Any] = {"num_cpus": cpus, "object_store_memory": 80_000_000}
    of_head: dict[str, Any] = {"include_dashboard": bool(dashboard)}
    of_head |= {"dashboard_port": dashboard} if dashboard else {}
    cluster = Cluster(initialize_head=True, head_node_args={**one, **of_head})
    others = {node.node_id[:8]: node for node in (cluster.add_node(**one) for _ in range(nodes - 1))}
    print(json.dumps([cluster.address, cluster.head_node.node_id[:8], *others]), flush=True)
    for line in sys.stdin:
        what, _, node = line.strip().partition(" ")
        if what == "add":
            made = cluster.add_node(**one)
            node = made.node_id[:8]
            others[node] = made
        elif what == "drain":
            reason = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "a test"]
            named = ["--address", cluster.address, "--node-id", others[node].node_id]
            program = str(Path(sys.executable).with_name("ray"))
            subprocess.run([program, "drain-node", *named, *reason], check=True, stdout=subprocess.DEVNULL)
        elif what == "behead":
            cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
        else:
            cluster.remove_node(others.pop(node), allow_graceful=False)
        print(json.dumps([node]), flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
