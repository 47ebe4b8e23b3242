"""When a client looks at the world: just in time for the server's ticks, whatever clocks and ways are like.

Others' users met these: two loops of one rate slide past each other, and a cycle is lost each few minutes
(ros-controls/ros2_control#2529, UniversalRobots/Universal_Robots_ROS2_Driver#1760); a grid that follows each late step
drifts (ros-controls/ros2_control#647).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtcontrol_client.client.handler import ObservationThread
from rtcontrol_client.client.timing import ClockOffset, PhaseLock
from rtcontrol_client.wire.messages import CallMessage

MS = 1_000_000
HANDOVER_NS = MS // 2  # within the server, from an observation's arrival to the tick that may decide upon it


def fresh(seq: int, release_ns: int, sent_ns: int, arrived_ns: int, status: str = "fresh") -> CallMessage:
    timing = {"age_ms": (sent_ns - arrived_ns) / 1e6}
    rest: dict[str, Any] = {"session": "s" * 16, "epoch": 0, "ttl_ms": 500, "deadline_ns": 0, "status": status}
    return CallMessage.model_validate(
        rest | {"tick": seq, "seq_obs": seq, "release_ns": release_ns, "t_server_ns": sent_ns, "timing": timing}
    )


class Course:
    """A client, and a server that ticks each `period_ns`; the server's clock is `ahead_ns` and drifts by `drift`."""

    def __init__(self, period_ns: int, ahead_ns: int, drift: float = 0.0) -> None:
        self.lock, self.period_ns, self.ahead_ns, self.drift = PhaseLock(), period_ns, ahead_ns, drift
        self.now_ns, self.seq = 1_000_000 * MS, 0
        self.grid_ns = self.server(self.now_ns)
        self.release_ns = self.grid_ns
        self.offset: ClockOffset | None = ClockOffset(ahead_ns, MS)

    def server(self, t_ns: int) -> int:
        return t_ns + self.ahead_ns + int(self.drift * (t_ns - 1_000_000 * MS))

    def look(self, way_ns: int, late_ns: int = 0) -> int:
        """Observe `late_ns` after that was due, and receive the call; return how long the observation waited."""
        due_ns = self.lock.next_capture_ns(self.release_ns, self.period_ns, self.offset, self.now_ns)
        assert due_ns is not None and self.now_ns < due_ns <= self.now_ns + 2 * self.period_ns
        began_ns = due_ns + late_ns
        self.seq += 1
        self.lock.record_observation(self.seq, self.period_ns, began_ns)
        arrived_ns = self.server(began_ns + way_ns)
        ready_ns = arrived_ns + HANDOVER_NS
        self.release_ns = self.grid_ns + -(-(ready_ns - self.grid_ns) // self.period_ns) * self.period_ns
        waited_ns, sent_ns = self.release_ns - arrived_ns, self.release_ns + MS
        self.now_ns = began_ns + way_ns + waited_ns + 2 * MS
        self.lock.receive(fresh(self.seq, self.release_ns, sent_ns, arrived_ns), self.period_ns, self.now_ns)
        return waited_ns


@settings(deadline=None)
@given(
    st.integers(5, 500),
    st.integers(-(10**12), 10**12),
    st.floats(0.1, 30),
    st.lists(st.floats(0, 0.5), min_size=60, max_size=60),
    st.floats(-2e-4, 2e-4),
)
def test_observations_arrive_just_in_time_despite_clock_offset(
    period_ms: int, ahead_ns: int, way_ms: float, noise_ms: list[float], drift: float
) -> None:
    course = Course(period_ms * MS, ahead_ns, drift)
    waits = [course.look(int((way_ms + more) * MS)) for more in noise_ms]
    # The noise, the margin, the hand-over, and what a clock loses while ways count.
    drifted_ns = abs(drift) * 10_000 * MS
    assert sorted(waits[20:])[len(waits[20:]) // 2] <= 2.5 * MS + drifted_ns
    assert sum(w > course.period_ns // 2 + 3 * MS + drifted_ns for w in waits[20:]) <= 4


class World:
    """A fake client that observes every 5 ms."""

    def __init__(self) -> None:
        self.connected, self.error = True, None
        self.seen: list[tuple[Any, int]] = []
        self.enough = threading.Event()

    def next_observation_ns(self) -> int:
        return time.monotonic_ns() + 5 * MS

    def observe(self, text: str | None = None, data: Any = None, *, t_ns: int | None = None) -> int:
        assert t_ns is not None
        self.seen.append((data if text is None else text, t_ns))
        if len(self.seen) >= 4:
            self.enough.set()
        return len(self.seen)


def test_look_is_called_each_tick_and_errors_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    answers: Iterator[Any] = iter(["text", {"x": 1}, None, ValueError("lens"), ValueError("lens"), "more", {"x": 2}])

    def look() -> Any:
        answer = next(answers, "on")
        if isinstance(answer, Exception):
            raise answer
        return answer

    looker = ObservationThread(world, look)
    assert world.enough.wait(20)
    looker.close()
    assert [seen for seen, _ in world.seen[:4]] == ["text", {"x": 1}, "more", {"x": 2}]
    assert all(t_ns <= time.monotonic_ns() for _, t_ns in world.seen)
    assert [r.exc_info is not None for r in caplog.records] == [True], "the same twice is told once"
    count = len(world.seen)
    time.sleep(0.05)
    assert len(world.seen) == count
