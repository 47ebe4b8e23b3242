"""A decoder that dies under a crowd: everybody is held, then safe, and decided for again when it is back."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from rtcontrol_client.wire.messages import Bye
from tests.helpers.processes import until
from tests.rtcontrol.serve.crowd.crowd_peer import CrowdPeer

pytestmark = pytest.mark.serial

NAMES = [f"m{i}" for i in range(8)]


def test_a_decoder_that_is_killed_costs_its_ticks_and_nothing_is_decided_twice(bench: Callable[..., Any]) -> None:
    made = bench(host="ray", model="lander")
    crowd = CrowdPeer(made.peer(), hz=10, hold_ms=300, instruction="land on the pad")
    crowd.join(*({"id": name, "every_tick": True} for name in NAMES))
    crowd.until_fresh(NAMES)
    crowd.calls.clear()
    os.kill(made.server._pool._models._answer["pid"], signal.SIGKILL)
    # Not all at once: who was safe may be decided for again before the last one was told.
    lost: set[str] = set()
    while lost != set(NAMES):
        crowd.see(NAMES)
        lost |= {call.id for call in crowd.take() if call.status == "safe" and call.cause == "host"}
    for name in NAMES:
        statuses = [call.status for call in crowd.calls if call.id == name]
        assert "held" in statuses and statuses.index("held") < statuses.index("safe")
    crowd.until_fresh(NAMES)
    keys = [(call.id, call.tick) for call in crowd.calls]
    assert len(keys) == len(set(keys))
    crowd.peer.send(Bye(session=crowd.peer.token))
    path = made.out / "session-0001" / "report.json"
    until(path.exists, "no report")
    told = json.loads(path.read_text("utf-8"))
    assert told["misses_by_cause"]["host"] >= len(NAMES)
    assert [event["event"] for event in told["host_events"]][:2] == ["lost", "restarted"]
