"""Tests of the remote environment without a network: observations for the loop, and messages to the client."""

from __future__ import annotations

import copy
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from rtcontrol.envs.base import Emission, Observation
from rtcontrol.envs.remote import RemoteEnvironment
from rtcontrol.envs.remote_core import MAX_KEPT, RemoteTerms
from rtcontrol.models.call import Call
from rtcontrol_client.wire import Message, WireError
from rtcontrol_client.wire.messages import Array, CallMessage, Executed, Instruct, Observe, Outcome, Reset

TOKEN = "t" * 20
GO = Call("go", {"speed": 3})


class World:
    """A remote environment with a list of the messages that it sent."""

    def __init__(self, paced_by_client: bool = False, acknowledges: bool = False, queue: int = 4, **terms: int) -> None:
        self.sent: list[Message] = []
        agreed = RemoteTerms(TOKEN, ("go",), paced_by_client, 500.0, acknowledges, queue, **terms)
        self.env = RemoteEnvironment(agreed, self.sent.append)
        self.env.start("wall")

    def observe(self, seq: int, epoch: int = 0, **fields: object) -> None:
        self.env.observe(Observe(session=TOKEN, seq=seq, epoch=epoch, t_ns=1000 + seq, **{"text": "x", **fields}))  # type: ignore[arg-type]

    def latest(self) -> Observation:
        shown = self.env.latest()
        assert shown is not None
        return shown

    def emit(
        self, tick: int, status: str = "fresh", call: Call | None = GO, seq: int = -1, epoch: int = 0
    ) -> CallMessage:
        deadline = time.monotonic_ns() + 10**9
        self.env.emit(Emission(tick, epoch, seq, deadline, status, call))  # type: ignore[arg-type]
        message = self.sent[-1]
        assert isinstance(message, CallMessage)
        return message

    def acknowledge(self, tick: int, outcome: str = "executed", epoch: int = 0) -> None:
        self.env.executed(Executed(session=TOKEN, tick=tick, epoch=epoch, outcome=outcome, t_ns=1))  # type: ignore[arg-type]


def refused(what: Callable[[], object], code: str) -> WireError:
    with pytest.raises(WireError) as caught:
        what()
    assert caught.value.code == code
    return caught.value


def test_latest_returns_newest_observation_and_counts_superseded() -> None:
    world = World()
    assert world.env.latest() is None
    for seq in (3, 4, 9):
        world.observe(seq, data={"x": seq}, text=None)
    shown = world.latest()
    assert shown.data == {"x": 9} and getattr(shown.data, "text", "") is None
    # The loop counts observations by arrival (three here), whatever sequence numbers they have.
    assert shown.seq == 3


def test_call_message_echoes_its_observation() -> None:
    world = World()
    world.observe(7)
    shown = world.latest()
    world.observe(8)
    call = world.emit(5, seq=shown.seq)
    assert (call.tick, call.seq_obs, call.t_obs_ns, call.ttl_ms) == (5, 7, 1007, 500.0)
    assert call.call is not None and call.call.arguments == {"speed": 3}
    assert call.timing.age_ms is not None and call.timing.late_ms == 0


@pytest.mark.parametrize(("seq", "epoch", "code"), [(2, 0, "sequence"), (1, 0, "sequence"), (3, 1, "epoch")])
def test_replays_and_foreign_epochs_are_refused(seq: int, epoch: int, code: str) -> None:
    world = World()
    world.observe(2)
    assert refused(lambda: world.observe(seq, epoch), code).seq == seq


def test_client_paced_observations_wait_in_order() -> None:
    world = World(paced_by_client=True, queue=2)
    world.observe(1)
    world.observe(2)
    with pytest.raises(WireError, match="rate"):
        world.observe(3)
    first = world.latest()
    assert world.env.latest() is first
    # What was looked at before the start is answered first.
    assert world.env.arrival(0) == first.t_capture_ns
    assert world.env.latest() is first
    assert world.env.arrival(0) is not None
    assert world.latest().seq == 2
    assert world.env.arrival(0) is None
    world.observe(3)


def test_reset_starts_an_epoch_and_ends_an_episode() -> None:
    world = World()
    world.observe(1)
    with pytest.raises(WireError, match="next epoch is 1"):
        world.env.reset(Reset(session=TOKEN, epoch=2))
    world.env.reset(Reset(session=TOKEN, epoch=1, ended=Outcome(seed=4, ret=-1.0, success=False, seconds=3.0)))
    assert world.env.latest() is None
    assert [(e.seed, e.ret, e.success) for e in world.env.episodes] == [(4, -1.0, False)]
    assert world.env.execute(GO, 0) == "epoch_over" and world.env.execute(GO, 1) == "acted"
    # The safe call is for the world as it is now.
    assert world.emit(1, "safe", epoch=0).epoch == 1


def test_only_executed_calls_of_this_epoch_are_acknowledged() -> None:
    world = World(acknowledges=True)
    for tick, outcome in enumerate(("executed", "failed", "expired", "refused", "executed")):
        world.emit(tick)
        world.acknowledge(tick, outcome)
    assert world.env.pop_acknowledged_calls() == [GO, GO]
    assert world.env.pop_acknowledged_calls() == []
    world.emit(5)
    world.env.reset(Reset(session=TOKEN, epoch=1))
    world.acknowledge(5)
    assert world.env.pop_acknowledged_calls() == []
    assert World().env.pop_acknowledged_calls() is None


def test_only_first_acknowledgement_in_epoch_is_accepted() -> None:
    world = World(acknowledges=True)
    world.emit(0)
    world.emit(1, "held", None)
    refused(lambda: world.acknowledge(0, epoch=1), "epoch")
    world.acknowledge(0)
    for tick in range(3):
        refused(lambda: world.acknowledge(tick), "sequence")  # noqa: B023
    assert world.env.pop_acknowledged_calls() == [GO]
    assert world.env.traffic.acknowledged == {"executed": 1}
    world.emit(2, "safe", None)  # no call: the client stops by itself
    world.acknowledge(2)
    with pytest.raises(WireError, match="announce"):
        World().acknowledge(0)


def test_safe_calls_are_one_message() -> None:
    stop, dim = Call("stop"), Call("dim", {"level": 0})
    world = World(acknowledges=True)
    world.emit(0)
    world.env.emit(Emission(1, 0, -1, 10**9, "safe", stop, safe_calls=(stop, dim)))
    (safe,) = [m for m in world.sent if isinstance(m, CallMessage) and m.status == "safe"]
    assert safe.call is not None and [call.name for call in safe.calls or ()] == ["stop", "dim"]
    world.acknowledge(safe.tick)


def test_call_messages_carry_their_release_time() -> None:
    world = World(deadline_ns=40)
    period = 100
    assert world.env.next_release_ns(period, 1000) is None
    for tick in range(3):
        world.env.emit(Emission(tick, 0, -1, 1040 + tick * period, "fresh", GO))
        world.env.emit(Emission(tick, 0, -1, 1040 + tick * period, "safe"))  # a hold that ended before the next tick
    reported = [(m.tick, m.release_ns) for m in world.sent if isinstance(m, CallMessage)]
    assert reported == [(0, 1000), (1, None), (2, 1100), (3, None), (4, 1200), (5, None)]
    assert [world.env.next_release_ns(period, now) for now in (1100, 1200, 1201, 1300)] == [1200, 1200, 1300, 1300]
    lockstep = World(paced_by_client=True)
    assert lockstep.emit(0).release_ns is None


def test_ended_episodes_are_counted_and_the_newest_kept() -> None:
    world, count = World(), MAX_KEPT + 5
    for epoch in range(1, count + 1):
        world.env.reset(Reset(session=TOKEN, epoch=epoch, ended=Outcome(seed=epoch)))
    episodes = world.env.episodes
    assert len(episodes) == count and [e.seed for e in episodes[count - 2 :]] == [count - 1, count]
    assert len(episodes[0:]) == MAX_KEPT and episodes[-1].seed == count
    world.env.start("wall", episodes=1)
    assert len(world.env.episodes) == 0 and not world.env.finished


def test_decided_observations_are_not_kept() -> None:
    world = World()
    tracemalloc.start()
    try:
        for seq in range(200):
            world.observe(seq, data={"x": [float(seq)] * 1000, "y": f"{seq} " * 10_000}, text=None)
            world.emit(seq, seq=world.latest().seq)
            world.sent.clear()
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("data", [{"y": "x" * 65_000}, {"y": [[]] * 4000}])
def test_waiting_observations_are_bounded_in_bytes(data: dict[str, object]) -> None:
    world = World(paced_by_client=True, queue=1 << 20)
    with pytest.raises(WireError) as caught:
        for seq in range(1000):
            world.observe(seq, data=copy.deepcopy(data), text=None)
    assert caught.value.code == "rate" and caught.value.seq is not None and caught.value.seq > 10
    while world.env.arrival(0) is not None:
        pass
    world.observe(2000)


def test_stored_calls_are_bounded() -> None:
    world = World(acknowledges=True)
    for tick in range(3 * MAX_KEPT):
        world.observe(tick)
        world.emit(tick, seq=world.latest().seq)
    assert len(world.env.calls._sent) <= MAX_KEPT and len(world.env.arrivals._by_loop_seq) <= MAX_KEPT
    world.acknowledge(0)  # too old, so this has no effect
    assert world.env.pop_acknowledged_calls() == []


def test_instruction_is_reported_once_it_is_used() -> None:
    world = World()
    world.env.instruct("land")
    world.env.start("wall")  # the welcome message already has this instruction
    world.env.send_instruction("land")
    world.env.instruct("hover")
    assert world.sent == []
    world.env.send_instruction("hover")
    world.env.send_instruction("hover")
    assert world.sent == [Instruct(session=TOKEN, instruction="hover")]


def test_tick_numbers_continue_in_a_second_loop() -> None:
    world = World()
    world.emit(0)
    world.emit(1)
    world.env.close()
    world.env.start("wall")
    assert world.emit(0).tick == 2


def test_errors_of_a_tick_reach_all_listeners() -> None:
    received: list[tuple[str | None, str | None, int | None]] = []
    terms = RemoteTerms(TOKEN, ("go",))
    env = RemoteEnvironment(
        terms, lambda message: None, failed=lambda of, seq: received.append((of.cause, of.error, seq))
    )
    env.emit(Emission(0, 0, -1, 0, "held", cause="decide", error="out of ideas"))
    assert received == [("decide", "out of ideas", None)]


def array(name: str, dtype: str, shape: list[int], data: bytes) -> Array:
    return Array(name=name, dtype=dtype, shape=shape, data=data)  # type: ignore[arg-type]


def test_arrays_are_in_the_data_by_name() -> None:
    world = World()
    grid = np.arange(6, dtype="<i2").reshape(2, 3)
    options = [
        array("grid", "i2", [2, 3], grid.tobytes()),
        array("on", "b1", [2], b"\1\0"),
        array("none", "f8", [0], b""),
    ]
    world.observe(1, text=None, data={"x": 1}, arrays=options)
    shown = world.latest()
    assert list(shown.data) == ["x", "grid", "on", "none"]
    assert np.array_equal(shown.data["grid"], grid) and shown.data["grid"].dtype == np.int16
    assert shown.data["on"].tolist() == [True, False] and shown.data["none"].shape == (0,)


@pytest.mark.parametrize("data", [{"a": 1}, None])
def test_array_whose_name_is_taken_is_refused(data: dict[str, int] | None) -> None:
    world = World()
    options = [array("a", "u1", [1], b"1"), array("a", "u1", [1], b"2")]
    error = refused(lambda: world.observe(1, data=data, arrays=options), "invalid")
    assert "name of another" in error.message and error.seq == 1
    # It counts as not sent.
    world.observe(1)
