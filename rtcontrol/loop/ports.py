"""What a loop acts on, and what it may be given besides its configuration, agent, world and host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rtcontrol.agents import Agent
from rtcontrol.agents.goal_tools import GoalTools
from rtcontrol.envs.base import Environment, Observation
from rtcontrol.hosts.protocol import Host
from rtcontrol.loop.actuator import Actuator
from rtcontrol.loop.clock import LoopClock
from rtcontrol.loop.config import plain_text
from rtcontrol.loop.desk import OperatorControl
from rtcontrol.loop.interpreter import Interpreter, Understood
from rtcontrol.loop.sampling import PauseWatch, Sampler
from rtcontrol.records import LoopReport


class Listener:
    """Follows a run, on the threads of what it reports: must not block."""

    def report(self, what: LoopReport) -> None:
        """The loop reports what became of an instruction, or that what the operator may see has changed."""

    def understood(self, result: Understood) -> None:
        """The interpreter's result for a sentence."""


@dataclass(frozen=True)
class LoopOptions:
    """What a loop may be given besides. `sample` is an observation to warm up with before the environment starts;
    `notify` takes plain lines for people. `watch` is for the whole process: whoever runs many loops in one gives it,
    already entered, and collects their garbage. Without a `clock` the configuration says which. `interpreter`
    understands what is said, and is closed with the loop. `goals`: what the agent can be told, where it has goals.
    `retake` takes back signals that user code has taken, and returns the names of new ones."""

    sample: Observation | None = None
    notify: Callable[[str], None] = lambda line: None
    clock: LoopClock | None = None
    watch: PauseWatch | None = None
    interpreter: Interpreter | None = None
    retake: Callable[[], list[str]] = list
    goals: GoalTools | None = None
    listener: Listener = field(default_factory=Listener)


@dataclass(frozen=True, slots=True)
class Ports:
    """What a loop acts on. `write` takes a line for the record, `notify` one for people, `stop` why the run ends,
    `report` what a listener is to know; `retake` takes back signals that user code has taken."""

    agent: Agent
    env: Environment
    host: Host
    actuator: Actuator
    sampler: Sampler
    operator: OperatorControl
    write: Callable[[dict[str, Any]], None]
    notify: Callable[[str], None]
    stop: Callable[[str], None]
    report: Callable[[LoopReport], None]
    retake: Callable[[], None]


def read(agent: Agent, data: Any) -> str:
    """Return the agent's text of what was observed. Raises whatever the agent's code raises."""
    text = agent.observe(data)
    return text if isinstance(text, str) and text.isascii() else plain_text(text)
