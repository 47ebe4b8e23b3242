"""A simulator's time: by what messages age and are stamped, and what happens where it stands still or jumps back."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol_client.ros2.clock import Delays, RobotClock
from rtcontrol_client.ros2.observer import Observer
from tests.bridges.ros2.mapping import mapper, put
from tests.bridges.ros2.messages import builtin_interfaces, geometry_msgs, rosgraph_msgs, std_msgs

S = 1_000_000_000


class Simulator:
    """/clock, and our own monotonic clock beside it, both by hand."""

    def __init__(self) -> None:
        self.real_ns = 7 * S
        self._told: Any = None
        self.clock = RobotClock(self, 500.0, lambda: self.real_ns)

    def at(self, seconds: float, after: float = 0.0) -> None:
        """It says this time `after` real seconds."""
        self.real_ns += int(after * S)
        sec, nanosec = divmod(int(seconds * S), S)
        self._told = rosgraph_msgs.Clock(clock=builtin_interfaces.Time(sec=sec, nanosec=nanosec))
        self.clock.read()

    def poll(self) -> tuple[Any, int] | None:
        told, self._told = self._told, None
        if isinstance(told, Exception):
            raise told
        return None if told is None else (told, self.real_ns)


class Sensor:
    """Its next message."""

    def __init__(self) -> None:
        self.next: Any = None

    def poll(self) -> tuple[Any, int] | None:
        message, self.next = self.next, None
        return None if message is None else (message, time.monotonic_ns())


def seeing(simulator: Simulator, kind: str = "std_msgs/msg/Float64", path: str = "data") -> tuple[Observer, Sensor]:
    topics = {"/a": {"type": kind, "max_age_ms": 500, "fields": {"a": path}}}
    sensor = Sensor()
    return Observer(mapper(put("observe", value={"topics": topics})), {"/a": sensor}, simulator.clock), sensor


def test_messages_age_by_the_simulators_clock_however_slow_it_is() -> None:
    simulator = Simulator()
    looking, sensor = seeing(simulator)
    sensor.next = std_msgs.Float64(data=1.5)
    simulator.at(100.0)
    assert looking.look() is not None
    for tenth in range(1, 6):  # ten times slower than real time
        simulator.at(100.0 + tenth / 10, after=0.4)
        assert looking.look() is not None, tenth
    simulator.at(100.51, after=0.1)
    assert looking.look() is None
    assert looking.waiting == {"/a": "the last message is older than 500 ms (510 ms)"}


def test_a_clock_that_stands_still_holds_the_observation_back_in_real_time() -> None:
    simulator = Simulator()
    looking, sensor = seeing(simulator)
    assert simulator.clock.stamp_ns() == 0 and looking.look() is None  # as of every node
    assert looking.waiting["/clock"].startswith("no message yet, and use_sim_time is true.")
    simulator.at(100.0)
    sensor.next = std_msgs.Float64(data=1.5)
    assert looking.look() is not None
    simulator.at(100.0, after=0.4)  # a paused simulator says the same time again
    assert looking.look() is not None
    simulator.at(100.0, after=2.2)
    sensor.next = std_msgs.Float64(data=1.5)  # and its sensors may go on
    assert looking.look() is None and looking.waiting == {"/clock": "the simulator's clock stands still (3 s)"}
    simulator.at(100.1, after=0.1)
    assert looking.look() is not None and looking.waiting == {}


# After a reset of the world buffers that kept what was before take the new for old (ros/geometry2#43, #64;
# ros2/geometry2#608), and messages of before that come late are ahead of the clock (ros/geometry2#542).
def test_a_clock_that_jumps_back_is_told_once_and_what_was_before_is_forgotten() -> None:
    simulator = Simulator()
    looking, sensor = seeing(simulator)
    simulator.at(100.0)
    sensor.next = std_msgs.Float64(data=1.5)
    assert looking.look() is not None and not simulator.clock.jumped
    simulator.at(0.25, after=0.02)
    sensor.next = std_msgs.Float64(data=1.5)
    assert simulator.clock.jumped and simulator.clock.back() == 99.75
    looking.forget()
    assert (simulator.clock.jumped, simulator.clock.back()) == (False, 0.0)
    assert looking.look() is None and looking.waiting == {"/a": "no message yet"}
    sensor.next = std_msgs.Float64(data=2.5)
    look = looking.look()
    assert look is not None and look.data == {"a": 2.5}


def test_a_late_message_of_before_the_jump_is_not_read_and_a_simulator_may_stamp_by_another_clock() -> None:
    simulator = Simulator()
    looking, sensor = seeing(simulator, "geometry_msgs/msg/PointStamped", "point.x")

    def stamped(sec: int, x: float) -> Any:
        header = std_msgs.Header(stamp=builtin_interfaces.Time(sec=sec))
        return geometry_msgs.PointStamped(header=header, point=geometry_msgs.Point(x=x))

    simulator.at(100.0)
    simulator.at(1.0, after=0.02)
    simulator.clock.back()
    looking.forget()
    sensor.next = stamped(100, 1.0)
    assert looking.look() is None and looking.waiting == {"/a": "no message yet"}
    sensor.next = stamped(1, 2.0)
    look = looking.look()
    assert look is not None and look.data == {"a": 2.0}
    simulator.at(2.1, after=1.1)
    sensor.next = stamped(1_700_000_000, 3.0)  # its node has not got use_sim_time
    look = looking.look()
    assert look is not None and look.data == {"a": 3.0}


# The age of a message whose sender has another clock.

MS = 1_000_000
WALL = 1_790_000_000_000 * MS


@given(st.integers(-(10**9), 10**9).map(lambda ms: ms * MS), st.lists(st.integers(0, 200), min_size=2, max_size=50))
def test_delays_are_measured_against_the_smallest_whatever_the_clocks_differ(skew: int, delays_ms: list[int]) -> None:
    delays = Delays()
    least = 10**9
    for i, delay_ms in enumerate(delays_ms):
        now = i * 50 * MS
        captured = delays.captured_ns(WALL + now - delay_ms * MS + skew, WALL + now, now)
        least = min(least, delay_ms)
        assert now - captured == (delay_ms - least) * MS


def ages_ms(sources: Iterable[int]) -> list[int]:
    """The ages of messages that come each 50 ms."""
    delays = Delays()
    return [(i * 50 * MS - delays.captured_ns(s, WALL + i * 50 * MS, i * 50 * MS)) // MS for i, s in enumerate(sources)]


def test_a_clock_of_the_sender_that_is_set_back_a_little_is_forgiven_within_a_minute() -> None:
    ages = ages_ms(WALL + i * 50 * MS - (150 * MS if i >= 20 else 0) for i in range(1300))
    assert ages[:20] == [0] * 20 and ages[20] == 150 and ages[-1] == 0


@pytest.mark.parametrize("wrong_ns", [0, -(1 << 63), WALL - 3_600_000 * MS, (1 << 63) - 1])
def test_stamps_that_say_nothing_make_no_message_old(wrong_ns: int) -> None:
    assert ages_ms(wrong_ns if i == 20 else WALL + i * 50 * MS for i in range(40)) == [0] * 40


def test_our_own_wall_clock_that_is_set_changes_no_age() -> None:
    delays = Delays()
    for i in range(100):
        now = i * 50 * MS
        wall = WALL + now + (3_600_000 * MS if i >= 50 else 0)
        source = wall - 2 * MS
        assert delays.captured_ns(source, wall, now) == now
    for i in range(100, 200):
        now = i * 50 * MS
        assert delays.captured_ns(WALL + now - 2 * MS, WALL + now, now) == now
