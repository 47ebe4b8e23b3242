"""A small real world for the loop's tests: a cart on a rail, 100 physics steps a second, pushed left and right."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rtcontrol.agents import Agent, Fallback, OneOf, Tools, tool
from rtcontrol.envs.base import Barrier, Effect, Episode, Observation
from rtcontrol.hosts.inprocess import InProcessHost
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.loop.config import RunConfig
from rtcontrol.loop.interpreter import Interpreter
from rtcontrol.loop.loop import ControlLoop, LoopOptions
from rtcontrol.models.call import Call, Decision
from rtcontrol.telemetry import report
from rtcontrol.telemetry.account import Account
from rtcontrol.telemetry.record_reader import read_record
from rtcontrol.telemetry.recorder import Recorder, RecordFile

STEP_NS = 10_000_000


@tool
def push(force: Annotated[int, OneOf(-2, -1, 0, 1, 2)]) -> None:
    """Push the cart."""


def cart_agent(history: int = 3, hold_ms: float = 500.0) -> Agent:
    return Agent(
        name="cart",
        description="Brings a cart to a place.",
        tools=Tools([push]),
        observe=lambda data: f"x {round(100 * data['x'])} v {round(100 * data['v'])}",
        instruction="go to 0",
        fallback=Fallback(Call("push", {"force": 0}), hold_ms=hold_ms),
        model="none",
        history=history,
    )


def steer(data: Mapping[str, Any], instruction: str) -> Call:
    """A plain PD controller; the instruction ends with the place to go to."""
    wanted = 4.0 * (float(instruction.rsplit(" ", 1)[1]) - data["x"]) - 3.0 * data["v"]
    return Call("push", {"force": min((-2, -1, 0, 1, 2), key=lambda f: abs(f - wanted))})


class CartWorld:
    """An environment that catches up with the clock at each access; tests can inject faults by its attributes."""

    name = "cart"

    def __init__(self, episode_s: float = 1e9) -> None:
        self.episode_s = episode_s
        self.executed: list[tuple[float, Call, int]] = []
        self.instructions: list[str] = []
        self.silent = False
        self.frozen = False
        self.on_execute: Callable[[Call], None] = lambda call: None
        self.closed = False
        self.bindings: Mapping[str, Callable[..., Any]] = {"push": self.push}
        self._lock = threading.Lock()
        self._finished = False
        self._episodes: list[Episode] = []
        self._seq = 0
        self._epoch = 0

    def push(self, force: int) -> None:
        self._force = float(force)

    @property
    def finished(self) -> bool:
        self.latest()
        return self._finished

    @property
    def episodes(self) -> list[Episode]:
        return self._episodes

    def start(self, clock: str, seeds: int | Iterable[int] = 0, episodes: int | None = None) -> None:
        self._clock, self._left = clock, episodes
        self._seeds = itertools.count(seeds) if isinstance(seeds, int) else iter(seeds)
        self._stepped_ns = time.monotonic_ns()
        self._owed_ns = 0
        self._reset()

    def _reset(self) -> None:
        self._seed = next(self._seeds)
        self._x, self._v, self._force, self._t = ((self._seed * 37) % 20 - 10) / 10.0, 0.0, 0.0, 0.0
        self._epoch += 1
        self._observe()

    def _observe(self) -> None:
        self._seq += 1
        data = {"x": self._x, "v": self._v}
        self._seen = Observation(self._seq, self._epoch, time.monotonic_ns(), data)

    def _step(self) -> None:
        if self._finished:
            return
        self._v += 0.01 * self._force
        self._x += 0.01 * self._v
        self._t += 0.01
        if self._t >= self.episode_s - 1e-9:
            self._episodes.append(Episode(self._seed, -abs(self._x), abs(self._x) < 0.2, self._t, {}))
            if self._left is not None and len(self._episodes) >= self._left:
                self._finished = True
            else:
                self._reset()
        else:
            self._observe()

    def latest(self) -> Observation | None:
        with self._lock:
            if self._clock == "wall" and not self.frozen:
                behind = (time.monotonic_ns() - self._stepped_ns) // STEP_NS
                for _ in range(behind):
                    self._step()
                self._stepped_ns += behind * STEP_NS
            return None if self.silent else self._seen

    def execute(
        self, call: Call, epoch: int | None, not_after_ns: int | None = None, barrier: Barrier | None = None
    ) -> Effect:
        if epoch not in (None, self._epoch) or self._finished:
            return "epoch_over"
        if not_after_ns is not None and time.monotonic_ns() > not_after_ns:
            return "too_late"
        if barrier is not None and barrier.shut is not None:
            return "refused"
        self.executed.append((time.monotonic(), call, self._epoch))
        self.on_execute(call)
        self.bindings[call.name](**call.arguments)
        return "acted"

    def advance(self, dt_ns: int) -> None:
        self._owed_ns += dt_ns
        while self._owed_ns >= STEP_NS:
            self._owed_ns -= STEP_NS
            self._step()

    def instruct(self, text: str) -> None:
        self.instructions.append(text)

    def conclude(self) -> None:
        self._left = len(self._episodes)

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True)
class Scripted:
    """A decider source around a function of the request."""

    function: Callable[[DecisionRequest], Decision]

    def build(self) -> Scripted:
        return self

    def decide(self, request: DecisionRequest) -> Decision:
        return self.function(request)


def good(request: DecisionRequest) -> Decision:
    assert request.data is not None
    return Decision(steer(request.data, request.instruction), {"function": 0.9}, 1, 20, 5)


def slow(seconds: float, ticks: Callable[[int], bool] = lambda tick: True) -> Callable[[DecisionRequest], Decision]:
    """Return a decider like `good` that takes `seconds` longer on the chosen ticks (never in the warm-up)."""

    def decide(request: DecisionRequest) -> Decision:
        if request.tick >= 0 and ticks(request.tick):
            time.sleep(seconds)
        return good(request)

    return decide


def report_of(record: Path) -> dict[str, Any]:
    """Return the report of a record, complete or cut short. Raises UserError if it cannot be read."""
    account = Account()
    for event in read_record(record):
        account.add(event)
    return report.build(account, record.name)


class Flight:
    """A run of the control loop with the cart, and its results."""

    def __init__(
        self,
        out: Path,
        decide: Callable[[DecisionRequest], Decision] = good,
        *,
        world: CartWorld | None = None,
        agent: Agent | None = None,
        host: Any = None,
        interpreter: Interpreter | None = None,
        **config: Any,
    ) -> None:
        settings: dict[str, Any] = {"env": "cart", "out": out, "hz": 50.0, "host": "inprocess", "duration_s": 0.5}
        named = {} if interpreter is None else {"interpreter": interpreter.name}
        self.config = RunConfig(**{**settings, **named, **config})
        self.world = world or CartWorld()
        self.agent = agent or cart_agent()
        self.host = host or InProcessHost(Scripted(decide), self.config.pipeline)
        self.path = out / "record.mcap"
        self.recorder = Recorder(
            RecordFile(self.path),
            self.config.header(self.agent.fallback.hold_ms, self.agent),
            patient=self.config.clock == "lockstep",
        )
        self.said: list[str] = []
        options = LoopOptions(notify=self.said.append, interpreter=interpreter)
        self.loop = ControlLoop(self.config, self.agent, self.world, self.host, self.recorder, options)

    def run(self) -> Flight:
        self.loop.run()
        self.recorder.close()
        self.loop.account.assert_consistent()
        return self

    def run_beside(self, person: Callable[[], Any]) -> None:
        """Run while another thread executes `person`, then join that thread and raise its error, if any."""

        def beside() -> None:
            try:
                person()
            finally:
                self.loop.stop("enough")

        with ThreadPoolExecutor(1) as pool:
            did = pool.submit(beside)
            self.run()
            did.result()

    def after(self, ticks: int, act: Callable[[], Any]) -> None:
        """Call `act` from another thread after `ticks` ticks of the run, however long the start takes."""

        def wait() -> None:
            while (
                self.loop.runner.core.outstanding.newest_k < ticks
            ):  # the account is the recorder's, and up to 0.25 s behind
                time.sleep(0.001)
            act()

        threading.Thread(target=wait, daemon=True).start()

    @property
    def lines(self) -> list[dict[str, Any]]:
        if self.loop.phase == "ending":  # what was written a moment ago is not in the file yet
            self.recorder.close()
        return list(read_record(self.path))

    @property
    def ticks(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if "kind" in line]

    @property
    def causes(self) -> dict[str, int]:
        return dict(self.loop.account.misses_by_cause)

    def dump(self) -> str:
        return json.dumps(self.ticks, indent=1)
