"""Wall clock, lockstep, epochs and the registry."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rtcontrol.envs import registry
from rtcontrol.envs.base import Episode
from rtcontrol.envs.lander.world import Lander
from rtcontrol.envs.paced import PacedEnvironment
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError
from tests.helpers.processes import until

TICK_NS = 62_500_000


class Counter:
    """A world that counts its steps and lives `length` of them; `stall_s` makes one step slow."""

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


@pytest.fixture
def close() -> Iterator[list[PacedEnvironment]]:
    opened: list[PacedEnvironment] = []
    yield opened
    for env in opened:
        env.close()


def run_until(env: PacedEnvironment, least: int) -> float:
    """The seconds after which so many steps were made or skipped: never more of them than the clock has room for."""
    began = time.monotonic()
    env.start("wall")
    until(lambda: env.pace.steps + env.pace.skipped >= least)
    taken_s = time.monotonic() - began
    env.close()
    assert env.pace.steps + env.pace.skipped <= (time.monotonic() - began) / Counter.step_s + 1
    return taken_s


def test_wall_clock_steps_at_the_native_rate(close: list[PacedEnvironment]) -> None:
    for _ in range(5):  # a busy machine may be late for once
        env = PacedEnvironment("counter", Counter())
        close.append(env)
        if (taken_s := run_until(env, 46)) <= 1.0:
            break
    assert taken_s <= 1.0
    seen = env.latest()
    assert seen is not None
    # One observation a step and one for the reset.
    assert seen.seq == seen.data["count"] + 1
    assert seen.data["count"] == env.pace.steps


def test_a_stalled_step_is_skipped_not_caught_up(close: list[PacedEnvironment]) -> None:
    env = PacedEnvironment("counter", Counter(stall_s=0.4))
    close.append(env)
    run_until(env, 38)
    assert env.pace.skipped >= 12
    assert env.pace.max_late_ms > 300


def test_a_broken_simulation_is_reported_to_the_loop(close: list[PacedEnvironment]) -> None:
    env = PacedEnvironment("counter", Counter(fails=True))
    close.append(env)
    env.start("wall")
    with pytest.raises(RuntimeError, match="counter broke down.*broken"):
        until(lambda: env.latest() is None)


def test_a_call_of_an_old_epoch_is_dropped() -> None:
    sim = Counter(length=3)
    env = PacedEnvironment("counter", sim)
    env.start("lockstep", seeds=7)
    first = env.latest()
    assert first is not None
    assert env.execute(Call("act"), first.epoch) == "acted"
    env.advance(TICK_NS)
    second = env.latest()
    assert second is not None
    assert second.epoch == first.epoch + 1
    assert second.data["seed"] == 8
    assert env.execute(Call("act"), first.epoch) == "epoch_over"
    assert sim.acts == 1


def test_a_call_that_waits_for_the_world_is_dropped_when_its_time_is_over() -> None:
    sim = Counter()
    env = PacedEnvironment("counter", sim)
    env.start("lockstep")
    effects: list[str] = []
    with env._lock:  # a step hangs
        not_after_ns = time.monotonic_ns() + 20_000_000
        waiting = threading.Thread(target=lambda: effects.append(env.execute(Call("act"), 1, not_after_ns)))
        waiting.start()
        time.sleep(0.03)
    waiting.join()
    assert effects == ["too_late"] and sim.acts == 0
    assert env.execute(Call("act"), None, time.monotonic_ns() + 10**9) == "acted"


def test_no_look_waits_for_a_step_that_hangs() -> None:
    env = PacedEnvironment("counter", Counter())
    env.start("lockstep")
    looked = threading.Event()

    def look() -> None:
        assert env.latest() is not None and env.episodes == [] and not env.finished
        looked.set()

    with env._lock:
        threading.Thread(target=look, daemon=True).start()
        assert looked.wait(5)


def test_no_step_begins_while_a_call_waits(close: list[PacedEnvironment]) -> None:
    env = PacedEnvironment("counter", Counter())
    close.append(env)
    env.start("wall")
    with env._turn:  # whoever wants to act has it
        time.sleep(0.05)
        steps = env.pace.steps
        time.sleep(0.1)
        assert env.pace.steps == steps


def test_lockstep_carries_the_remainder_of_a_tick() -> None:
    sim = Counter()
    env = PacedEnvironment("counter", sim)
    env.start("lockstep")
    steps = []
    for _ in range(16):
        before = sim.total
        env.advance(TICK_NS)
        steps.append(sim.total - before)
    assert sum(steps) == 50
    assert set(steps) == {3, 4}
    assert steps[:8] == steps[8:]


def test_episodes_follow_the_seeds_and_then_it_is_finished() -> None:
    env = PacedEnvironment("counter", Counter(length=4))
    env.start("lockstep", seeds=[3, 1, 9, 5], episodes=3)
    for _ in range(20):
        env.advance(TICK_NS)
    assert env.finished
    assert [episode.seed for episode in env.episodes] == [3, 1, 9]
    last = env.latest()
    assert last is not None
    assert env.execute(Call("act"), last.epoch) == "epoch_over"


def test_running_out_of_seeds_finishes_too() -> None:
    env = PacedEnvironment("counter", Counter(length=1))
    env.start("lockstep", seeds=[1, 2])
    for _ in range(3):
        env.advance(TICK_NS)
    assert env.finished
    assert len(env.episodes) == 2


def test_an_environment_starts_once() -> None:
    env = PacedEnvironment("counter", Counter())
    env.start("lockstep")
    with pytest.raises(RuntimeError, match="started already"):
        env.start("lockstep")


def test_lockstep_flights_repeat_by_seed() -> None:
    def fly() -> list[Episode]:
        env = PacedEnvironment("lander", Lander("land"))
        env.start("lockstep", seeds=11, episodes=2)
        tick = 0
        while not env.finished:
            seen = env.latest()
            assert seen is not None
            env.execute(Call("engines", {"main": (0, 60, 70)[tick % 3], "side": 0}), seen.epoch)
            env.advance(TICK_NS)
            tick += 1
        return env.episodes

    assert fly() == fly()


def test_wall_clock_world_goes_on_without_a_controller(close: list[PacedEnvironment]) -> None:
    env = registry.make("lander", goal="land")
    assert isinstance(env, PacedEnvironment)
    close.append(env)
    env.start("wall", seeds=0, episodes=1)
    until(lambda: env.finished, seconds=60)
    assert [episode.detail["end"] for episode in env.episodes] == ["crash"]


def test_unknown_environment_names_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"no environment called 'moon'.*lander"):
        registry.make("moon")


def test_unknown_option_names_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"no option 'gaol'.*goal"):
        registry.make("lander", gaol="left")
