"""The guard: a bridge that is killed or stands still leaves no robot driving."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")

from rtcontrol_client.ros2.guard import HOLD_S, Watch
from tests.bridges.client.worlds import until
from tests.bridges.ros2.brain import Brain
from tests.bridges.ros2.conftest import Flight, flown
from tests.helpers.processes import Program

TOLD = "guard: the bridge {}: the safe call is published"


@pytest.fixture(scope="module")
def brain() -> Iterator[Brain]:
    found = Brain()
    yield found
    found.close()


@pytest.fixture(scope="module")
def one(brain: Brain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flight]:
    yield from flown(tmp_path_factory.mktemp("guarded"), brain.endpoint)


@pytest.fixture
def flight(one: Flight) -> Flight:
    one.go()
    return one


def guards(running: Program) -> list[psutil.Process]:
    children = psutil.Process(running.popen.pid).children()
    return [child for child in children if "rtcontrol_client.ros2.guard" in child.cmdline()]


def test_a_bridge_that_is_killed_leaves_a_robot_that_stands(flight: Flight) -> None:
    (guard,) = guards(flight.running)
    flight.running.kill()
    flight.robot.until_it_stands()
    until(lambda: TOLD.format("was killed") in flight.running.log(), flight.running.log())
    until(lambda: not guard.is_running() or guard.status() == psutil.STATUS_ZOMBIE, "the guard goes on for ever")


def test_a_bridge_that_stands_still_leaves_a_robot_that_stands_and_goes_on_when_it_can(flight: Flight) -> None:
    flight.running.popen.send_signal(signal.SIGSTOP)
    try:
        flight.robot.until_it_stands()
        until(lambda: TOLD.format("stands still") in flight.running.log(), flight.running.log())
    finally:
        flight.running.popen.send_signal(signal.SIGCONT)
    flight.robot.until_it_moves()


def test_a_guard_that_is_killed_is_told_of_and_another_one_takes_its_place(flight: Flight) -> None:
    (guard,) = guards(flight.running)
    guard.kill()
    flight.running.says("The guard has ended: nobody stops the robot if this bridge is killed.")
    until(lambda: [one for one in guards(flight.running) if one.pid != guard.pid], "no other guard")
    flight.robot.until_it_moves()
    flight.running.kill()
    flight.robot.until_it_stands()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_bridge_that_ends_in_order_takes_its_guard_along_which_says_nothing(flight: Flight, number: int) -> None:
    (guard,) = guards(flight.running)
    before = flight.running.log().count("guard:")
    assert flight.running.end(number) == 128 + number
    assert not guard.is_running()
    assert flight.running.log().count("guard:") == before


def test_without_a_guard_a_killed_bridge_leaves_a_robot_that_drives_on(flight: Flight) -> None:
    flight.running.end()
    flight.running = flight.start("--no-guard")
    flight.robot.until_it_moves()
    assert not guards(flight.running)
    mark = time.monotonic()
    flight.running.kill()
    until(lambda: bool(flight.robot.since(mark)["dead"]), "its lease has not ended")
    assert flight.robot.report()["moving"] != [0.0, 0.0]


LEFT = st.integers(0, 5_000)


@given(st.lists(st.tuples(LEFT, st.floats(0, 10))), st.floats(0, 10))
def test_while_beats_come_in_time_nothing_is_due_and_behind_the_last_it_is(
    beats: list[tuple[int, float]], rest: float
) -> None:
    watch, now = Watch(), 0.0
    for left_ms, share in beats:
        watch.hear(b"%d\n" % left_ms, now)
        now += min(share, 0.99) * left_ms / 1e3
        assert watch.due(now) == (left_ms == 0)
    if beats:
        end = now + beats[-1][0] / 1e3
        assert watch.due(end + rest)
        watch.hear(b"-\n", end + rest)
        assert not watch.due(end + rest + 1e6)


@given(st.binary(max_size=64), st.booleans(), st.lists(st.integers(1, 8), max_size=8))
def test_whatever_comes_through_the_pipe_its_end_without_a_farewell_is_due_for_as_long_as_it_holds(
    noise: bytes, farewell: bool, cuts: list[int]
) -> None:
    watch, data = Watch(), noise + (b"\nbye\n" if farewell else b"\n")
    for cut in cuts:  # in pieces of any size
        if data[:cut]:
            watch.hear(data[:cut], 1.0)
        data = data[cut:]
    if data:
        watch.hear(data, 1.0)
    watch.hear(b"", 2.0)
    watch.hear(b"", 2.0 + HOLD_S / 4)  # as whoever reads on finds it
    gone = farewell or b"bye" in noise.split(b"\n")
    assert watch.due(2.0 + HOLD_S / 2) == (not gone)
    assert not watch.due(2.0 + HOLD_S)
    assert watch.done(2.0) == gone
    assert watch.done(2.0 + HOLD_S)
