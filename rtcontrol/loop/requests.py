"""What the decider is asked: the agent's text of an observation, the instruction, and the last calls."""

from __future__ import annotations

from collections import deque
from typing import Any

from rtcontrol.agents import Agent
from rtcontrol.envs.base import Acknowledging, Environment, Observation
from rtcontrol.hosts.base import DecisionRequest
from rtcontrol.loop.config import plain_text
from rtcontrol.loop.instructions import Instructions
from rtcontrol.record.encoder import plain

# Of these nobody changes a value.
PLAIN = frozenset({bool, int, float, str, type(None)})


class Requests:
    """`history` holds the last calls that acted, as text: by the loop's word, or by the world's own where that
    `acknowledges`."""

    def __init__(self, agent: Agent, env: Environment, instructions: Instructions) -> None:
        self.history: deque[str] = deque(maxlen=agent.history)
        self.world = env if isinstance(env, Acknowledging) else None
        self.acknowledges = False
        self._agent, self._instructions = agent, instructions

    def make(self, k: int, seen: Observation, within_ns: int = 0) -> DecisionRequest:
        """The request of tick `k`, which somebody waits for so long. Raises whatever the agent's `observe` raises."""
        if self.world is not None and (done := self.world.acknowledged()) is not None:
            self.acknowledges = True
            self.history.extend([call.text() for call in done])
        text = self._agent.observe(seen.data)
        text = text if isinstance(text, str) and text.isascii() else plain_text(text)
        told = self._instructions.now, tuple(self.history), seen.data
        return DecisionRequest(
            k, seen.epoch, text, *told, within_ns=within_ns, seq=seen.seq, captured_ns=seen.t_capture_ns
        )


def row(request: DecisionRequest, seen: Observation, t_s: float) -> dict[str, Any]:
    """The event that keeps what was asked; `t_s` is when it was captured."""
    data = seen.data
    if not isinstance(data, dict) or not PLAIN.issuperset(map(type, data.values())):
        data = plain(data)  # now: the world may change it, and a large array would wait in memory
    elif data:
        data = data.copy()
    asked = {"observation": request.observation, "instruction": request.instruction, "history": request.history}
    return {"k": request.tick, "t_s": t_s, "seq": seen.seq, "epoch": seen.epoch, **asked, "data": data}
