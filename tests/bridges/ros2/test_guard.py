"""The guard's logic: when the safe call is due."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rtcontrol_client.ros2.guard import GRACE_S, HOLD_S, MOST_S, HeartbeatMonitor

LEFT = st.integers(0, 5_000)


@given(st.lists(st.tuples(LEFT, st.floats(0, 10))), st.floats(0, 10))
def test_safe_call_is_due_only_after_heartbeats_stop(beats: list[tuple[int, float]], rest: float) -> None:
    watch, now = HeartbeatMonitor(), 0.0
    end = now
    for left_ms, share in beats:
        end = now + left_ms / 1e3
        watch.receive(b"%d\n" % round(end * 1e9), now)
        now += min(share, 1.0) * left_ms / 1e3
        assert not watch.is_due(now)
        assert 0 < watch.seconds_until_due(now, 0.5) <= 0.5
    if beats:
        assert watch.is_due(end + 2 * GRACE_S + rest)
        watch.receive(b"-\n", end + rest)
        assert not watch.is_due(end + rest + 1e6)


@given(st.integers(0, 10_000))
def test_heartbeat_delayed_in_the_pipe_gives_no_extra_time(waited_ms: int) -> None:
    watch = HeartbeatMonitor()
    watch.receive(b"%d\n" % 10**9, 1.0 + waited_ms / 1e3)
    assert watch.is_due(1.0 + waited_ms / 1e3) == (waited_ms / 1e3 >= GRACE_S)


@given(st.binary(max_size=64), st.booleans(), st.lists(st.integers(1, 8), max_size=8), st.none() | st.floats(0, 4))
def test_pipe_end_without_farewell_makes_the_safe_call_due(
    noise: bytes, farewell: bool, cuts: list[int], met: float | None
) -> None:
    watch, data = HeartbeatMonitor(), noise + (b"\nbye\n" if farewell else b"\n")
    for cut in cuts:  # received in pieces of any size
        if data[:cut]:
            watch.receive(data[:cut], 1.0)
        data = data[cut:]
    if data:
        watch.receive(data, 1.0)
    watch.receive(b"", 2.0)
    watch.receive(b"", 2.5)  # reading an ended pipe again
    if met is not None:
        watch.record_subscriber(met)
        watch.record_subscriber(met + 1.0)
    gone = farewell or b"bye" in noise.split(b"\n")
    end = 2.0 + MOST_S if met is None else max(met, 2.0) + HOLD_S
    assert watch.is_due(2.0) == watch.is_due(end - 0.01) == (not gone)
    assert not watch.is_due(end + 0.01)
    assert watch.may_end(2.0) == gone
    assert watch.may_end(end + 0.01)
