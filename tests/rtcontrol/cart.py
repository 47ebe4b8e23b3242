"""A small real world for the loop's tests: a cart on a rail, 100 physics steps a second, pushed left and right."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rtcontrol.agents import Agent, Fallback, OneOf, Tools, tool
from rtcontrol.envs.base import Episode
from rtcontrol.envs.paced import PacedEnvironment
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
from tests.helpers.processes import until


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


class Cart:
    """A simulation of the cart. `pushes` has the executed calls with their times."""

    step_s = 0.01

    def __init__(self, episode_s: float = 1e9) -> None:
        self.pushes: list[tuple[int, int]] = []
        self.bindings: Mapping[str, Callable[..., Any]] = {"push": self.push}
        self._episode_s = episode_s

    def push(self, force: int) -> None:
        self.pushes.append((time.monotonic_ns(), force))
        self._force = force

    def reset(self, seed: int) -> None:
        self._seed, self._force, self._t = seed, 0, 0.0
        self._x, self._v = (seed * 37 % 20 - 10) / 10.0, 0.0

    def step(self) -> None:
        self._v += self.step_s * self._force
        self._x += self.step_s * self._v
        self._t += self.step_s

    def observe(self) -> Mapping[str, Any]:
        return {"x": self._x, "v": self._v}

    def outcome(self) -> Episode | None:
        if self._t < self._episode_s - 1e-9:
            return None
        return Episode(self._seed, -abs(self._x), abs(self._x) < 0.2, self._t)

    def instruct(self, text: str) -> None:
        pass


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
    return report.build_report(account, record.name)


class Flight:
    """A run of the control loop with the cart, and its results."""

    def __init__(
        self,
        out: Path,
        decide: Callable[[DecisionRequest], Decision] = good,
        *,
        world: Any = None,
        agent: Agent | None = None,
        host: Any = None,
        interpreter: Interpreter | None = None,
        **config: Any,
    ) -> None:
        settings: dict[str, Any] = {"env": "cart", "out": out, "hz": 50.0, "host": "inprocess", "duration_s": 0.5}
        named = {} if interpreter is None else {"interpreter": interpreter.name}
        self.config = RunConfig(**{**settings, **named, **config})
        self.cart = Cart()
        self.world = world or PacedEnvironment("cart", self.cart)
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

    def run_beside(self, person: Callable[[], Any], ticks: int = 5) -> Flight:
        """Run while another thread executes `person` from tick `ticks` on, and end then. Raises the errors of both."""

        def beside() -> None:
            try:
                until(lambda: self.ticked >= ticks)
                person()
            finally:
                self.loop.stop("enough")

        with ThreadPoolExecutor(1) as pool:
            did = pool.submit(beside)
            self.run()
            did.result()
        return self

    def after(self, ticks: int, act: Callable[[], Any]) -> None:
        """Call `act` from another thread after `ticks` ticks of the run, however long the start takes."""

        def wait() -> None:
            until(lambda: self.ticked >= ticks, every=0.001)
            act()

        threading.Thread(target=wait, daemon=True).start()

    @property
    def ticked(self) -> int:
        """Return the newest tick. The account is the recorder's, and up to 0.25 s behind."""
        return self.loop.runner.core.outstanding.newest_k

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
