"""Wrap world, agent and decider with faults that the injector switches on; the world reports each acting call."""

from __future__ import annotations

import functools
import gc
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rtcontrol.agents import Agent
from rtcontrol.drill.faults import Switches
from rtcontrol.envs.base import ClockKind, Observation
from rtcontrol.envs.paced import PacedEnvironment
from rtcontrol.hosts.deciders import STSource
from rtcontrol.hosts.protocol import Decider, DeciderSource, DecisionRequest
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.errors import UserError

# Objects in a cycle: to collect them takes 0.2 to 0.3 s, over four periods at 16 Hz, so that it cannot pass unfelt.
GARBAGE, GARBAGE_AT_ONCE = 3_000_000, 5_000
POLL_S = 0.05


class Line:
    """To the judge: a JSON object a datagram, which is not lost."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.connect(address)

    def tell(self, **what: Any) -> None:
        self._socket.send(json.dumps(what, default=str).encode())


class FaultyWorld:
    """A `PacedEnvironment`, with faults. UserError for any other."""

    def __init__(self, inner: Any, switches: Switches, line: Line, delay_s: float) -> None:
        if not isinstance(inner, PacedEnvironment):
            raise UserError(f"The environment {inner.name} cannot be drilled.", "Give a bundled one, or a .py file.")
        self.name, self._inner, self._switches, self._line = inner.name, inner, switches, line
        self._simulation = FaultySimulation(inner._simulation, switches, line, delay_s, lambda: inner.not_after_ns)
        inner._simulation = self._simulation
        self.seen: Observation | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def start(self, clock: ClockKind, seeds: int | Iterable[int] = 0, episodes: int | None = None) -> None:
        threading.Thread(target=self._litter, name="litter", daemon=True).start()
        self._line.tell(started=time.monotonic_ns())
        self._inner.start(clock, seeds, episodes)

    def latest(self) -> Observation | None:
        frozen = self._switches.on("frozen") or self._switches.on("safe_raises")
        if self.seen is None or not frozen:
            self.seen = self._inner.latest()
        return self.seen

    def close(self) -> None:
        self._inner.close()
        self._line.tell(closed=time.monotonic_ns())

    def _litter(self) -> None:
        while True:
            time.sleep(POLL_S)
            if not self._switches.on("gc"):
                continue
            first: list[Any] = []
            last = first
            for i in range(GARBAGE):
                last = [last]
                if i % GARBAGE_AT_ONCE == 0:
                    time.sleep(0)  # the interpreter is for whoever wants it
            first.append(last)  # a ring: what follows is the collector's work alone
            began_ns = time.monotonic_ns()
            del first, last
            gc.collect()
            self._line.tell(excused=[began_ns, time.monotonic_ns()])
            self._switches["gc"] = 0.0


class FaultySimulation:
    """What happens on the world's thread; `deadline` is that of the call that acts."""

    def __init__(
        self, inner: Any, switches: Switches, line: Line, delay_s: float, deadline: Callable[[], int | None]
    ) -> None:
        self._inner, self._switches, self._line, self._delay_s = inner, switches, line, delay_s
        self._deadline = deadline
        self.step_s: float = inner.step_s
        self.bindings: Mapping[str, Callable[..., Any]] = {
            name: self._binding(name, function) for name, function in inner.bindings.items()
        }
        self._refused = 0.0  # the `safe_raises` that has raised

    def reset(self, seed: int) -> None:
        self._inner.reset(seed)
        self._line.tell(reset=time.monotonic_ns())

    def step(self) -> None:
        while self._switches.on("hang"):
            time.sleep(0.005)
        if not (self._switches.on("frozen") or self._switches.on("safe_raises")):
            self._inner.step()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _binding(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def acts(**arguments: Any) -> Any:
            not_after_ns = self._deadline()
            fresh = not_after_ns is not None
            self._line.tell(act=name, arguments=arguments, t=time.monotonic_ns(), not_after=not_after_ns)
            failed = True
            try:
                self._fail(fresh)
                given = function(**arguments)
                failed = False
            finally:
                self._line.tell(end=time.monotonic_ns(), failed=failed)
            if fresh:
                self._switches["acted"] = time.monotonic()
            return given

        return acts

    def _fail(self, fresh: bool) -> None:
        switches = self._switches
        if fresh and switches.on("slow_execute"):
            time.sleep(self._delay_s)
        if fresh and switches.on("execute_raises"):
            raise OSError("drill: the executor raises")
        if not fresh and switches.on("safe_raises") and self._refused != switches["safe_raises"]:
            self._refused = switches["safe_raises"]
            raise OSError("drill: the safe call raises")


def faulty_agent(agent: Agent, world: FaultyWorld, switches: Switches, line: Line, delay_s: float) -> Agent:
    """Return the agent with faults, deciding a call each tick (see `always_calling`)."""

    def observe(data: Mapping[str, Any]) -> str:
        seen = world.seen
        if seen is not None and seen.data is data:
            line.tell(saw=time.monotonic_ns(), captured=seen.t_capture_ns)
        if switches.on("slow_text"):
            time.sleep(delay_s)
        if switches.on("observe_raises"):
            raise ValueError("drill: the observation cannot be read")
        return agent.observe(data)

    return replace(agent, observe=observe, allow_null=False)


def always_calling(source: DeciderSource) -> DeciderSource:
    """Return the source without null decisions: the judge cannot tell one from silence."""
    if isinstance(source, STSource) and source.spec.allow_null:
        return replace(source, spec=replace(source.spec, allow_null=False))
    return source


@dataclass(frozen=True)
class FaultySource:
    """Built in the decoder's process."""

    source: DeciderSource
    switches: str
    delay_s: float

    def build(self) -> FaultyDecider:
        return FaultyDecider(self.source.build(), Switches(self.switches), self.delay_s)


class FaultyDecider:
    def __init__(self, inner: Decider, switches: Switches, delay_s: float) -> None:
        self._inner, self._switches, self._delay_s = inner, switches, delay_s

    def decide(self, request: DecisionRequest) -> Decision:
        switches = self._switches
        switches["decoder"] = os.getpid()
        if switches.on("slow_decoder"):
            time.sleep(self._delay_s)
        if switches.on("decider_raises"):
            raise FloatingPointError("drill: the scores are not finite")
        decision = self._inner.decide(request)
        if decision.call is not None and switches.on("invalid_call"):
            arguments = dict.fromkeys(decision.call.arguments, 10**9) or {"drill": 1}
            return replace(decision, call=Call(decision.call.name, arguments))
        return decision

    def info(self) -> dict[str, Any]:
        info = getattr(self._inner, "info", None)
        return {} if info is None else dict(info())
