"""Runs of the arm, and what is asked of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from arm import Arm, arm_agent, on
from cart import Flight

from rtcontrol.models.call import Call
from tests.helpers import processes as helpers

HZ, PERIOD_S = 20, 0.05
until = partial(helpers.until, every=0.002)


def flight(out: Path, arm: Arm, decide: Any = on, *calls: Call, hold_ms: float = 100.0, **more: Any) -> Flight:
    settings = {"hz": HZ, "duration_s": None, "agent": arm_agent(*calls, hold_ms=hold_ms), **more}
    return Flight(out, decide, world=arm.world(), **settings)  # type: ignore[arg-type]


def beside(other: Callable[[], None], run: Callable[[], Any]) -> None:
    """Run, while another thread does something."""
    thread = threading.Thread(target=other)
    thread.start()
    try:
        run()
    finally:
        thread.join()


def safes(flown: Flight, why: str = "miss") -> list[dict[str, Any]]:
    return [line for line in flown.lines if line.get("why") == why]
