"""A crowd's client against real servers: what each member is to do, who comes back, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtcontrol_client import Crowd
from tests.bridges.client.worlds import Process, free_port
from tests.helpers.processes import until

SEEN = "x 0 y 100 vx 0 vy 0 angle 0 spin 0 legs 0 0"
SAFE = {"name": "engines", "arguments": {"main": 0, "side": 0}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path, free_port(), "--agent", "lander", "--model", "random")
    process.start()
    yield process
    process.kill()


def until_fresh(crowd: Crowd, *names: str) -> None:
    """Observe until all of them have a fresh call in force."""

    def fresh() -> bool:
        crowd.observe(dict.fromkeys(crowd.members, SEEN))
        crowd.wait(0.05)
        return all(crowd.call(name).status == "fresh" for name in names)

    until(fresh, f"no fresh calls: {crowd.error} {crowd.refusals}")


def test_a_killed_server_ends_each_call_in_its_time_and_the_members_join_its_successor(server: Process) -> None:
    options: dict[str, Any] = {"agent": "lander", "hz": 20, "safe_call": SAFE, "persist": True}
    with Crowd.connect(server.endpoint, **options) as crowd:
        crowd.join("anna", ttl_ms=400)
        crowd.join("bert", ttl_ms=400, instruction="Land softly.")
        until_fresh(crowd, "anna", "bert")
        server.kill()
        until(lambda: {one.status for one in crowd.calls().values()} == {"safe"}, "calls outlive their ttl")
        assert crowd.call("anna").arguments == SAFE["arguments"]
        server.start()
        until(lambda: crowd.connected, "it does not come back")
        until_fresh(crowd, "anna", "bert")
        assert crowd.statistics["sessions"] == 2
