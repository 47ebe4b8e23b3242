"""What the loop saw last, which calls were executed since the epoch began, and the question that comes of both."""

from __future__ import annotations

from collections import deque

from rtcontrol.agents import Agent
from rtcontrol.config import plain_text
from rtcontrol.deadline import Tick
from rtcontrol.envs.base import Acknowledging, Environment, Observation
from rtcontrol.hosts.base import DecisionRequest
from rtcontrol.models.call import Call


class Look:
    """All on the loop's thread. An environment that acknowledges calls decides itself what was executed."""

    def __init__(self, agent: Agent, env: Environment) -> None:
        self._agent = agent
        self._acknowledged = env.acknowledged if isinstance(env, Acknowledging) else lambda: None
        self._history: deque[str] = deque(maxlen=agent.history)
        self._seq: int | None = None

    def at(self, tick: Tick, seen: Observation, not_before_ns: int) -> None:
        """Note what the tick looks at. `not_before_ns`: what was captured earlier counts as captured then."""
        tick.seq, tick.epoch, tick.capture_ns = seen.seq, seen.epoch, max(seen.t_capture_ns, not_before_ns)
        tick.superseded = max(0, seen.seq - self._seq - 1) if self._seq is not None else 0
        self._seq = seen.seq

    def new_epoch(self) -> None:
        self._history.clear()

    def sent(self, call: Call) -> None:
        """The call was given to the world."""
        if self._acknowledged() is None:
            self._history.append(call.text())

    def request(self, k: int, seen: Observation, instruction: str) -> DecisionRequest:
        """What the decider is asked. Raises whatever the agent's `observe` raises."""
        self._history.extend(call.text() for call in self._acknowledged() or ())
        text = plain_text(self._agent.observe(seen.data))
        history = tuple(plain_text(call) for call in self._history)
        return DecisionRequest(k, seen.epoch, text, instruction, history, seen.data)
