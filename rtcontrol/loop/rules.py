"""What a loop's core is made of: numbers of the configuration, and the agent's rules: what is legal, what is sure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from rtcontrol.agents import Agent, Tool, Tools
from rtcontrol.agents.goal_tools import GoalTools
from rtcontrol.envs.base import Emitting, Environment
from rtcontrol.loop import errors
from rtcontrol.loop.config import RunConfig, plain_text
from rtcontrol.loop.core import LoopSettings, Rules
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.checkpoint.special_tokens import ARGUMENTS
from rtcontrol.models.errors import UserError
from rtcontrol.records import Doubt
from rtcontrol.telemetry.events import plain

MAX_KNOWN = 1024  # legal calls that are kept; a schema of free values has no end of them
IMMUTABLE = (int, float, str, Enum, type(None))


class LegalCalls:
    """Checks calls, and keeps the legal ones by name and arguments as text: (ready to act, text)."""

    def __init__(self, tools: Tools) -> None:
        self.known: dict[str, tuple[Call, str]] = {}
        self._tools = tools

    def check(self, call: Call) -> tuple[Call, str]:
        """Return a legal call with its arguments as the annotated types, and its text. Raises InvalidCall."""
        key = f"{call.name}{call.arguments}"
        if (known := self.known.get(key)) is not None:
            return known
        tools = self._tools
        ready = Call(call.name, tools.convert(tools.validate(call)))
        checked = ready, call.text()
        if len(self.known) < MAX_KNOWN and all(isinstance(v, IMMUTABLE) for v in ready.arguments.values()):
            self.known[key] = checked
        return checked


class ConfidenceGate:
    """`floors`: the least confidence by head or parameter, of all under the empty name. `null_is_doubt`: a null
    function says that the instruction is not understood."""

    def __init__(self, floors: Mapping[str, float], tools: Iterable[Tool], null_is_doubt: bool = False) -> None:
        self._floors = dict(floors)
        self._least = self._floors.pop("", 0.0)
        self._null_is_doubt = null_is_doubt
        self._heads = heads_of(tools)
        self.closed = bool(self._floors or self._least > 0 or null_is_doubt)  # it may withhold a decision

    def doubt(self, decision: Decision) -> Doubt | None:
        """Return why a decision must not act; None where it may."""
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
    """Return by tool the head of each parameter."""
    return {
        t.name: {p.name: ARGUMENTS[i] for i, slot in enumerate(t.schema.slots()) for p in slot.parameters}
        for t in tools
    }


def settings_of(config: RunConfig, agent: Agent, env: Environment | None = None) -> LoopSettings:
    """Return the numbers of a run; None: its world is more than one environment."""
    hold_ms = config.hold_ms if config.hold_ms is not None else agent.fallback.hold_ms
    duration_s = config.duration_s
    return LoopSettings(
        instruction=plain_text(config.instruction if config.instruction is not None else agent.instruction),
        hz=config.hz,
        period_ns=config.period_ns,
        deadline_ns=config.deadline_ns,
        max_age_ns=config.max_age_ns,
        hold_ns=round(hold_ms * 1e6),
        confirm_ns=round(config.confirm_s * 1e9),
        duration_ns=None if duration_s is None else round(duration_s * 1e9),
        pipeline=config.pipeline,
        calls_per_tick=config.calls_per_tick,
        on_miss=config.on_miss,
        records=config.record_observations == "yes",
        emits=isinstance(env, Emitting),
        steady=config.hysteresis is not None,
        cuts=config.clock == "wall",
    )


def rules_of(config: RunConfig, agent: Agent, goals: GoalTools | None = None) -> Rules:
    """Return what the agent, and the run's options about it, bring."""
    gate = ConfidenceGate(config.floors, agent.tools, agent.null_is_doubt)
    return Rules(
        check=LegalCalls(agent.tools).check,
        describe=lambda error: (errors.text(error), errors.where(error)),
        plain=plain,
        safe_calls=agent.fallback.safe_calls,
        doubt=gate.doubt if gate.closed else None,
        confirm=frozenset(config.confirm) | frozenset(agent.confirm),
        history=agent.history,
        goals=goals,
    )


def check_named(config: RunConfig, agent: Agent) -> None:
    """Raise UserError where loop.confirm or loop.min_confidence names what this agent has not, or its model would not
    be shown the calls of a tick."""
    if config.calls_per_tick > agent.history + 1:
        raise UserError(
            f"loop.calls_per_tick={config.calls_per_tick}: the model of {agent.name} is shown its last {agent.history} "
            "calls: it would not know of all that it made before in the same tick.",
            f"Give at most {agent.history + 1}, or an agent of your own (--agent FILE.py) with "
            f"history={config.calls_per_tick - 1} and a model that was trained so.",
        )
    tools: Mapping[str, Mapping[str, str]] = heads_of(agent.tools)
    for name in config.confirm:
        if name not in tools:
            raise UserError(f"loop.confirm={name} is no tool of {agent.name}.", f"There are {', '.join(tools)}.")
    heads = {"function"}.union(*tools.values(), *(names.values() for names in tools.values()))
    for head in config.floors:
        if head and head not in heads:
            raise UserError(
                f"loop.min_confidence: {head}={config.floors[head]:g}: {agent.name} has no such head.",
                f"There are {', '.join(sorted(heads))}.",
            )
