"""What the parts of a run know of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from rtcontrol.agents import Agent
from rtcontrol.envs.base import Environment
from rtcontrol.hosts.protocol import Host
from rtcontrol.loop.config import RunConfig
from rtcontrol.loop.desk import OperatorControl
from rtcontrol.loop.instructions import Instructions
from rtcontrol.loop.interpreter import Interpretation
from rtcontrol.loop.options import LoopOptions
from rtcontrol.loop.shell import TickShell
from rtcontrol.loop.warmup import Warmup
from rtcontrol.telemetry.recorder import Recorder


@dataclass(slots=True)
class RunState:
    """How far a run is, and how it ended. `failure`: in one sentence, how the world broke down. `safe_in_force`: False
    where the run was over and its safe call was not active; `unsafe`: the same, but for a world whose last episode had
    ended by itself. `t_end_ns` is when the ticks were over."""

    phase: str = "not started"
    warmup: Warmup = field(default_factory=Warmup)
    host_info: dict[str, Any] = field(default_factory=dict)
    launched: bool = False
    ended_by: str | None = None
    failure: str | None = None
    safe_in_force: bool = True
    unsafe: bool = False
    t_end_ns: int = 0
    end_written: bool = False

    def stopped(self) -> bool:
        """Return whether the run is to end."""
        return self.ended_by is not None


class RunningLoop(Protocol):
    """A `ControlLoop`, for what prepares, launches and finishes it."""

    config: RunConfig
    agent: Agent
    env: Environment
    host: Host
    recorder: Recorder
    options: LoopOptions
    state: RunState
    shell: TickShell
    interpretation: Interpretation | None

    @property
    def operator(self) -> OperatorControl: ...

    @property
    def instructions(self) -> Instructions: ...

    @property
    def instruction(self) -> str: ...

    def put(self, text: str) -> None: ...

    def tell(self, line: str) -> None: ...

    def now_s(self) -> float: ...

    def stop(self, why: str) -> None: ...
