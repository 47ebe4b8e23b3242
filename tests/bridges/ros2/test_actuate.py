"""What is published, and what no more: without a network."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")

from rtcontrol.bridges.client import Standing
from rtcontrol.bridges.ros2.actuate import Ros2Actuator
from rtcontrol.bridges.ros2.errors import Unmappable
from rtcontrol.bridges.wire.messages import FunctionCall
from tests.bridges.ros2.mapping import mapper, put

SAFE = Standing(None, "safe", cause="expired")


def drive(left_ms: float, speed: int = 30) -> Standing:
    call = FunctionCall(name="drive", arguments={"speed": speed, "turn": "straight"})
    return Standing(call, "fresh", tick=1, left_ms=left_ms)


class Wheels:
    """A topic that keeps the speeds it was told; `takes` is asked before each whether it takes it."""

    def __init__(self, takes: Callable[[float], bool] = lambda speed: True) -> None:
        self.told: list[float] = []
        self.takes = takes
        self.failed = 0

    def write(self, message: Any) -> bool:
        taken = self.takes(message.linear.x)
        self.failed += not taken
        self.told += [message.linear.x] if taken else []
        return taken


@pytest.fixture
def wheels() -> Wheels:
    return Wheels()


@pytest.fixture
def actuator(wheels: Wheels) -> Ros2Actuator:
    return Ros2Actuator(mapper(), {"/cmd_vel": wheels}, 1000.0)


def test_call_whose_time_is_over_before_it_is_published_is_refused_and_the_robot_stops(
    actuator: Ros2Actuator, wheels: Wheels
) -> None:
    actuator.apply(lambda: drive(500.0))
    with pytest.raises(Unmappable, match="drive could not be published within its time-to-live"):
        actuator.apply(lambda: drive(1.0, speed=20))
    assert wheels.told == [0.3, 0.0]


def test_safe_call_that_could_not_be_written_is_written_in_the_next_tick_even_where_it_does_not_repeat() -> None:
    stuck = iter((True, True, False, False))
    wheels = Wheels(lambda speed: not next(stuck))
    once = put("tools", "stop", "publish", "/cmd_vel", "repeat", value=False)
    actuator = Ros2Actuator(mapper(once), {"/cmd_vel": wheels}, 1000.0)
    for _ in range(4):
        actuator.apply(lambda: SAFE)
        time.sleep(0.002)
    assert (wheels.told, wheels.failed) == ([0.0], 2)


def test_fault_in_writing_half_of_a_call_is_followed_by_the_safe_call_at_once() -> None:
    def both(value: dict[str, Any]) -> None:
        for tool in value["tools"].values():
            tool["publish"]["/second"] = tool["publish"]["/cmd_vel"]

    def takes(speed: float) -> bool:
        if speed:
            raise OSError("no such device")
        return True

    wheels, broken = Wheels(), Wheels(takes)
    actuator = Ros2Actuator(
        mapper(both), {"/cmd_vel": wheels, "/second": broken}, 1.0
    )  # nothing is repeated in a second
    actuator.apply(lambda: SAFE)
    with pytest.raises(Unmappable, match="drive could not be published .no such device."):
        actuator.apply(lambda: drive(500.0))
    assert (wheels.told, broken.told, actuator.state) == ([0.0, 0.3, 0.0], [0.0, 0.0], "safe")


def test_once_closed_nothing_but_the_safe_call_is_published_or_told(actuator: Ros2Actuator, wheels: Wheels) -> None:
    actuator.apply(lambda: drive(500.0))
    actuator.close(SAFE)
    actuator.apply(lambda: drive(500.0, speed=20))
    assert (wheels.told[0], set(wheels.told[1:]), actuator.state) == (0.3, {0.0}, "safe")


def test_one_call_that_does_not_fit_is_one_refusal_in_all_its_ticks(actuator: Ros2Actuator, wheels: Wheels) -> None:
    standing = Standing(FunctionCall(name="drive", arguments={"speed": 30, "turn": "up"}), "fresh", left_ms=500.0)
    for _ in range(3):
        with pytest.raises(Unmappable, match="turn: nothing is given for 'up'"):
            actuator.apply(lambda: standing)
        time.sleep(0.002)
    assert actuator.count["refused"] == 1 and set(wheels.told) == {0.0}


def test_call_in_force_is_not_repeated_when_its_time_is_as_good_as_over(actuator: Ros2Actuator, wheels: Wheels) -> None:
    for left_ms in (500.0, 400.0, 1.0):
        actuator.apply(lambda left_ms=left_ms: drive(left_ms))  # type: ignore[misc]
        time.sleep(0.002)  # its repetition is due
    assert wheels.told == [0.3, 0.3]


def test_nothing_that_another_thread_has_seen_end_is_published_after_it(actuator: Ros2Actuator, wheels: Wheels) -> None:
    now = [drive(500.0)]
    inside, go = threading.Event(), threading.Event()

    def slow(_: float) -> bool:
        wheels.takes = lambda speed: True
        inside.set()
        return go.wait(10)

    wheels.takes = slow
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
