"""What is published, and what no more: without a network."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")

from rtcontrol.bridges.client import Standing
from rtcontrol.bridges.ros2 import config
from rtcontrol.bridges.ros2.actuate import Actuator
from rtcontrol.bridges.ros2.errors import Unmappable
from rtcontrol.bridges.ros2.mapper import Mapper
from rtcontrol.bridges.wire.messages import FunctionCall

SAFE = Standing(None, "safe", cause="expired")


def drive(left_ms: float, speed: int = 30) -> Standing:
    call = FunctionCall(name="drive", arguments={"speed": speed, "turn": "straight"})
    return Standing(call, "fresh", tick=1, left_ms=left_ms)


class Wheels:
    """A topic that keeps the speeds it was told; `slow` is called in each write."""

    def __init__(self) -> None:
        self.told: list[float] = []
        self.slow: Any = lambda: None

    def write(self, message: Any) -> bool:
        self.slow()
        self.told.append(message.linear.x)
        return True


@pytest.fixture
def wheels() -> Wheels:
    return Wheels()


@pytest.fixture
def actuator(wheels: Wheels) -> Actuator:
    return Actuator(Mapper(config.load(Path(config.EXAMPLE)), "robot.yaml"), {"/cmd_vel": wheels}, 1000.0)


def test_call_whose_time_is_over_before_it_is_published_is_refused_and_the_robot_stops(
    actuator: Actuator, wheels: Wheels
) -> None:
    actuator.apply(lambda: drive(500.0))
    with pytest.raises(Unmappable, match="drive could not be published within its time-to-live"):
        actuator.apply(lambda: drive(1.0, speed=20))
    assert wheels.told == [0.3, 0.0]


def test_call_in_force_is_not_repeated_when_its_time_is_as_good_as_over(actuator: Actuator, wheels: Wheels) -> None:
    for left_ms in (500.0, 400.0, 1.0):
        actuator.apply(lambda left_ms=left_ms: drive(left_ms))  # type: ignore[misc]
        time.sleep(0.002)  # its repetition is due
    assert wheels.told == [0.3, 0.3]


def test_nothing_that_another_thread_has_seen_end_is_published_after_it(actuator: Actuator, wheels: Wheels) -> None:
    now = [drive(500.0)]
    inside, go = threading.Event(), threading.Event()

    def slow() -> None:
        wheels.slow = lambda: None
        inside.set()
        assert go.wait(10)

    wheels.slow = slow
    first, second = (threading.Thread(target=lambda: actuator.apply(lambda: now[0])) for _ in range(2))
    first.start()
    assert inside.wait(10)
    second.start()
    time.sleep(0.05)  # it waits for its turn
    now[0] = SAFE
    go.set()
    first.join()
    second.join()
    assert wheels.told == [0.3, 0.0]
