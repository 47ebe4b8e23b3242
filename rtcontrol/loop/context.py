"""What the parts of one run's loop share: the configuration, who decides, where it acts, and whom it tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rtcontrol.agents import Agent
from rtcontrol.agents.goal_tools import GoalTools
from rtcontrol.envs.base import Environment
from rtcontrol.hosts.protocol import Host
from rtcontrol.loop.clock import LoopClock
from rtcontrol.loop.config import RunConfig
from rtcontrol.loop.evidence import PauseWatch


@dataclass(frozen=True, slots=True)
class RunContext:
    """`emit` takes an event for the record, `notify` a line for people, `stop` why the run ends; `retake` takes back
    signals that user code has taken. `goals`: what the agent can be told, where it has goals."""

    config: RunConfig
    agent: Agent
    env: Environment
    host: Host
    clock: LoopClock
    watch: PauseWatch
    emit: Callable[[dict[str, Any]], None]
    notify: Callable[[str], None]
    stop: Callable[[str], None]
    retake: Callable[[], None] = lambda: None
    goals: GoalTools | None = None
