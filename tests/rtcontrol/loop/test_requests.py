"""What is kept of what was asked."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from rtcontrol.envs.base import Observation
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.loop.requests import row


def kept(data: Any) -> Any:
    request = DecisionRequest(3, 1, "x 7", "go", ("go()",), data)
    return row(request, Observation(9, 1, time.monotonic_ns(), data), 0.5)["data"]


def test_a_large_array_does_not_wait_in_memory_for_the_disk() -> None:
    assert kept({"camera": np.zeros((480, 640, 3), "uint8"), "x": 1.0}) == {
        "camera": {"dtype": "uint8", "shape": [480, 640, 3]},
        "x": 1.0,
    }


def test_what_the_world_changes_afterwards_is_kept_as_it_was() -> None:
    data = {"x": 1.0, "arm": {"joints": [1, 2]}}
    plain = {"x": 1.0}
    then, before = kept(data), kept(plain)
    data["arm"]["joints"].append(3)  # type: ignore[index]
    data["x"] = plain["x"] = 2.0
    assert then == {"x": 1.0, "arm": {"joints": [1, 2]}} and before == {"x": 1.0}
