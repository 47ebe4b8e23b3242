"""What a loop acts on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rtcontrol.agents import Agent
from rtcontrol.envs.base import Environment
from rtcontrol.hosts.protocol import Host
from rtcontrol.loop.actuator import Actuator
from rtcontrol.loop.config import plain_text
from rtcontrol.loop.desk import OperatorControl
from rtcontrol.loop.events import LoopReport
from rtcontrol.loop.sampling import Sampler


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
