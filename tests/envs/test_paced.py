"""Tests of paced environments: wall clock, lockstep, epochs and safe calls."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rtcontrol.envs.base import Episode, Observation
from rtcontrol.envs.paced import PacedEnvironment
from rtcontrol.envs.thread import GRACE_S
from rtcontrol.models.call import Call
from tests.helpers.processes import until

TICK_NS = 62_500_000


@contextlib.contextmanager
def busy_thread(world: PacedEnvironment) -> Iterator[None]:
    """Keep the thread of the world busy, as a hanging step would."""
    busy, free = threading.Event(), threading.Event()

    def hang() -> None:
        busy.set()
        free.wait()

    threading.Thread(target=world.thread.run, args=(hang,), daemon=True).start()
    assert busy.wait(10)
    try:
        yield
    finally:
        free.set()


class Counter:
    """A world that counts its steps, with `length` steps per episode; `stall_s` makes one step slow."""

    step_s = 0.02

    def __init__(self, length: int = 10**9, stall_s: float = 0.0, fails: bool = False) -> None:
        self.length, self.stall_s, self.fails = length, stall_s, fails
        self.seed, self.count, self.total, self.acts = 0, 0, 0, 0
        self.bindings = {"act": self.act}

    def act(self) -> None:
        self.acts += 1

    def reset(self, seed: int) -> None:
        self.seed, self.count = seed, 0

    def step(self) -> None:
        self.count += 1
        self.total += 1
        if self.fails:
            raise OSError("broken")
        if self.stall_s and self.total == 5:
            time.sleep(self.stall_s)

    def observe(self) -> dict[str, Any]:
        return {"count": self.count, "seed": self.seed}

    def outcome(self) -> Episode | None:
        return Episode(self.seed, 0.0, True, self.count * self.step_s) if self.count >= self.length else None

    def instruct(self, text: str) -> None:
        pass


Make = Callable[..., PacedEnvironment]


@pytest.fixture
def make() -> Iterator[Make]:
    """Return a function that makes environments of a Counter, started if a clock is given; close them at the end."""
    with contextlib.ExitStack() as stack:

        def environment(
            clock: str | None = None, start: dict[str, Any] | None = None, **world: Any
        ) -> PacedEnvironment:
            env = PacedEnvironment("counter", Counter(**world))
            stack.callback(env.close)
            if clock is not None:
                env.start(clock, **(start or {}))
            return env

        yield environment


def latest(env: PacedEnvironment) -> Observation:
    observation = env.latest()
    assert observation is not None
    return observation


def test_simulation_error_is_reported_to_the_loop(make: Make) -> None:
    env = make("wall", fails=True)
    with pytest.raises(RuntimeError, match="counter failed.*broken"):
        until(lambda: env.latest() is None)


def test_call_of_an_old_epoch_is_dropped(make: Make) -> None:
    env: Any = make("lockstep", {"seeds": 7}, length=3)
    first = latest(env)
    assert env.execute(Call("act"), first.epoch) == "acted"
    env.advance(TICK_NS)
    assert (latest(env).epoch, latest(env).data["seed"]) == (first.epoch + 1, 8)
    assert env.execute(Call("act"), first.epoch) == "epoch_over"
    assert env._simulation.acts == 1


def test_waiting_call_is_dropped_after_its_deadline(make: Make) -> None:
    env: Any = make("lockstep")
    effects: list[str] = []
    with busy_thread(env):  # a step hangs
        not_after_ns = time.monotonic_ns() + 20_000_000
        waiting = threading.Thread(target=lambda: effects.append(env.execute(Call("act"), 1, not_after_ns)))
        waiting.start()
        time.sleep(0.03)
    waiting.join()
    assert effects == ["too_late"] and env._simulation.acts == 0
    assert env.execute(Call("act"), None, time.monotonic_ns() + 10**9) == "acted"


def test_observation_is_available_while_a_step_hangs(make: Make) -> None:
    env = make("lockstep")
    looked = threading.Event()

    def look() -> None:
        assert env.latest() is not None and env.episodes == [] and not env.finished
        looked.set()

    with busy_thread(env):
        threading.Thread(target=look, daemon=True).start()
        assert looked.wait(5)


def test_waiting_calls_run_before_due_steps(make: Make) -> None:
    env: Any = make("wall")
    order: list[str] = []

    def act() -> None:  # longer than whoever waited has for asking again
        time.sleep(3 * GRACE_S)
        order.append("act")

    env._simulation.bindings = {"act": act}
    with busy_thread(env):
        env._simulation.step = lambda: order.append("step")
        waiting = [threading.Thread(target=env.execute, args=(Call("act"), 1)) for _ in range(3)]
        for thread in waiting:
            thread.start()
        time.sleep(0.1)  # five steps are due
    for thread in waiting:
        thread.join()
    assert order[:3] == ["act"] * 3


def test_lockstep_carries_the_remainder_of_a_tick(make: Make) -> None:
    env: Any = make("lockstep")
    steps = []
    for _ in range(16):
        before = env._simulation.total
        env.advance(TICK_NS)
        steps.append(env._simulation.total - before)
    assert sum(steps) == 50 and set(steps) == {3, 4}
    assert steps[:8] == steps[8:]


def safely(env: PacedEnvironment) -> bool:
    """Make a safe call as the actuator does, and return whether the world has stepped with that call."""
    assert env.execute(Call("act"), None) == "acted"
    return env.has_stepped(time.monotonic_ns())


def test_safe_call_is_active_with_the_next_due_step(make: Make) -> None:
    env: Any = make("lockstep")
    since_ns = [time.monotonic_ns()]
    for _ in range(16):
        before = env._simulation.total
        assert not safely(env) and not safely(env) and env._simulation.total == before
        since_ns.append(time.monotonic_ns())
        env.advance(TICK_NS)
        assert env.has_stepped(since_ns[-1])
    assert env._simulation.total == 50  # as without them
    env.advance(env._accumulator.step_ns // 4)  # no step was due
    assert not env.has_stepped(time.monotonic_ns())


def test_final_safe_call_does_not_wait_for_clock(make: Make) -> None:
    env: Any = make("lockstep")
    assert not safely(env)
    env.conclude()
    assert safely(env) and safely(env) and env._simulation.total == latest(env).data["count"] == 2


def test_no_episode_starts_after_the_run_concluded(make: Make) -> None:
    env: Any = make("lockstep", {"seeds": 5}, length=3)
    env.conclude()
    for _ in range(3):
        assert safely(env)
    assert env.finished and [episode.seed for episode in env.episodes] == [5]
    assert env.execute(Call("act"), None) == "epoch_over" and env._simulation.acts == 3


def test_safe_call_without_a_step_has_failed(make: Make) -> None:
    env: Any = make("lockstep", fails=True)
    env.conclude()
    for _ in range(2):
        with pytest.raises(OSError, match="broken"):
            safely(env)
    env._simulation.fails = False
    assert safely(env)


def test_episodes_use_the_seeds_in_order_then_finish(make: Make) -> None:
    env = make("lockstep", {"seeds": [3, 1, 9, 5], "episodes": 3}, length=4)
    for _ in range(20):
        env.advance(TICK_NS)
    assert env.finished
    assert [episode.seed for episode in env.episodes] == [3, 1, 9]
    assert env.execute(Call("act"), latest(env).epoch) == "epoch_over"


def run_until(env: PacedEnvironment, least: int) -> float:
    """Return the seconds until at least `least` steps were made or skipped, and assert that there are not too many."""
    began = time.monotonic()
    env.start("wall")
    until(lambda: env.pace.steps + env.pace.skipped >= least)
    taken_s = time.monotonic() - began
    env.close()
    assert env.pace.steps + env.pace.skipped <= (time.monotonic() - began) / Counter.step_s + 1
    return taken_s


def test_wall_clock_steps_at_the_native_rate(make: Make) -> None:
    for _ in range(5):  # a busy machine may be late for once
        env = make()
        if (taken_s := run_until(env, 46)) <= 1.0:
            break
    assert taken_s <= 1.0
    observation = latest(env)
    # One observation a step and one for the reset.
    assert observation.seq - 1 == observation.data["count"] == env.pace.steps
