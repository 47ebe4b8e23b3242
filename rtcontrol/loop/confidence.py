"""Hold back what a model is not sure of, and check what a run's options name of its agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rtcontrol.agents import Agent, Tool
from rtcontrol.loop.config import RunConfig
from rtcontrol.models.call import Decision
from rtcontrol.models.checkpoint.special_tokens import ARGUMENTS
from rtcontrol.models.errors import UserError
from rtcontrol.records import Doubt


class ConfidenceGate:
    """`floors` are the least confidence by head or parameter, of all heads under the empty name; `null_is_doubt`: a
    null function says that what is told is not understood."""

    def __init__(self, floors: Mapping[str, float], tools: Iterable[Tool], null_is_doubt: bool = False) -> None:
        self._floors = dict(floors)
        self._least = self._floors.pop("", 0.0)
        self._null_is_doubt = null_is_doubt
        self._heads = heads_of(tools)
        self.closed = bool(self._floors or self._least > 0 or null_is_doubt)  # it may hold something

    def doubt(self, decision: Decision) -> Doubt | None:
        """Why a decision must not act; None where it may."""
        call, confidence = decision.call, decision.confidence
        if call is None and self._null_is_doubt:
            return Doubt("function", 1.0 - confidence.get("function", 1.0), 1.0)
        if self._least and min(confidence.values(), default=1.0) < self._least:
            head = min(confidence, key=lambda name: confidence[name])
            return Doubt(head, confidence[head], self._least)
        names = self._heads.get(call.name, {}) if call is not None else {}
        for head, floor in self._floors.items():
            if (sure := confidence.get(names.get(head, head), 1.0)) < floor:
                return Doubt(head, sure, floor)
        return None


def heads_of(tools: Iterable[Tool]) -> dict[str, dict[str, str]]:
    """By tool: the head of each parameter."""
    return {
        t.name: {p.name: ARGUMENTS[i] for i, slot in enumerate(t.schema.slots()) for p in slot.parameters}
        for t in tools
    }


def check_named(config: RunConfig, agent: Agent) -> None:
    """Raises UserError where --confirm or --min-confidence names what this agent has not, or its model would not be
    shown the calls of a tick."""
    if config.calls_per_tick > agent.history + 1:
        raise UserError(
            f"--calls-per-tick {config.calls_per_tick}: the model of {agent.name} is shown its last {agent.history} "
            "calls: it would not know of all that it made before in the same tick.",
            f"Give at most {agent.history + 1}, or an agent of your own (--agent FILE.py) with "
            f"history={config.calls_per_tick - 1} and a model that was trained so.",
        )
    tools: Mapping[str, Mapping[str, str]] = heads_of(agent.tools)
    for name in config.confirm:
        if name not in tools:
            raise UserError(f"--confirm {name} is no tool of {agent.name}.", f"There are {', '.join(tools)}.")
    heads = {"function"}.union(*(names for names in tools.values()), *(names.values() for names in tools.values()))
    for head in config.floors:
        if head and head not in heads:
            raise UserError(
                f"--min-confidence {head}={config.floors[head]:g}: {agent.name} has no such head.",
                f"There are {', '.join(sorted(heads))}.",
            )
