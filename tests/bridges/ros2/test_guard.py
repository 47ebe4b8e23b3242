"""The guard's logic: when the safe call is due, and which heartbeats precede a published call."""

from __future__ import annotations

import time
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rtcontrol_client import Standing
from rtcontrol_client.ros2.actuate import Ros2Actuator
from rtcontrol_client.ros2.guard import GRACE_S, HOLD_S, MOST_S, Watch
from rtcontrol_client.wire.messages import FunctionCall
from tests.bridges.ros2.mapping import mapper


class Heard:
    """A topic that accepts every message, or none if `takes` is false."""

    def __init__(self) -> None:
        self.takes = True
        self.messages: list[Any] = []

    def write(self, message: Any) -> bool:
        self.messages += [message] if self.takes else []
        return self.takes


def test_heartbeat_precedes_its_call_and_follows_the_safe_call() -> None:
    wheels = Heard()
    beats: list[tuple[float | None, int]] = []
    beat = lambda left_ms: beats.append((left_ms, len(wheels.messages)))  # noqa: E731
    actuator = Ros2Actuator(mapper(), {"/cmd_vel": wheels}, 1000.0, heartbeat=beat)
    drive = FunctionCall(name="drive", arguments={"speed": 30, "turn": "straight"})
    actuator.apply(lambda: Standing(drive, "fresh", left_ms=480.0))
    assert beats == [(480.0, 0)] and len(wheels.messages) == 1
    wheels.takes = False
    actuator.apply(lambda: Standing(None, "safe"))
    assert len(beats) == 1  # the safe call is not published yet
    wheels.takes = True
    time.sleep(0.002)  # a tick later
    actuator.apply(lambda: Standing(None, "safe"))
    assert beats[1:] == [(None, 2)]


LEFT = st.integers(0, 5_000)


@given(st.lists(st.tuples(LEFT, st.floats(0, 10))), st.floats(0, 10))
def test_safe_call_is_due_only_after_heartbeats_stop(beats: list[tuple[int, float]], rest: float) -> None:
    watch, now = Watch(), 0.0
    end = now
    for left_ms, share in beats:
        end = now + left_ms / 1e3
        watch.receive(b"%d\n" % round(end * 1e9), now)
        now += min(share, 1.0) * left_ms / 1e3
        assert not watch.due(now)
        assert 0 < watch.rest(now, 0.5) <= 0.5
    if beats:
        assert watch.due(end + 2 * GRACE_S + rest)
        watch.receive(b"-\n", end + rest)
        assert not watch.due(end + rest + 1e6)


@given(st.integers(0, 10_000))
def test_heartbeat_delayed_in_the_pipe_gives_no_extra_time(waited_ms: int) -> None:
    watch = Watch()
    watch.receive(b"%d\n" % 10**9, 1.0 + waited_ms / 1e3)
    assert watch.due(1.0 + waited_ms / 1e3) == (waited_ms / 1e3 >= GRACE_S)


@given(st.binary(max_size=64), st.booleans(), st.lists(st.integers(1, 8), max_size=8), st.none() | st.floats(0, 4))
def test_pipe_end_without_farewell_makes_the_safe_call_due(
    noise: bytes, farewell: bool, cuts: list[int], met: float | None
) -> None:
    watch, data = Watch(), noise + (b"\nbye\n" if farewell else b"\n")
    for cut in cuts:  # received in pieces of any size
        if data[:cut]:
            watch.receive(data[:cut], 1.0)
        data = data[cut:]
    if data:
        watch.receive(data, 1.0)
    watch.receive(b"", 2.0)
    watch.receive(b"", 2.5)  # reading an ended pipe again
    if met is not None:
        watch.meet(met)
        watch.meet(met + 1.0)
    gone = farewell or b"bye" in noise.split(b"\n")
    end = 2.0 + MOST_S if met is None else max(met, 2.0) + HOLD_S
    assert watch.due(2.0) == watch.due(end - 0.01) == (not gone)
    assert not watch.due(end + 0.01)
    assert watch.done(2.0) == gone
    assert watch.done(end + 0.01)
