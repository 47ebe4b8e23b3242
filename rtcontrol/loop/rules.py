"""Make the settings and rules of a loop's core from the configuration and the agent: legal calls, and confidence."""

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
from rtcontrol.telemetry.events import jsonable

MAX_KNOWN = 1024  # cached legal calls, limited since a schema with free values allows any number of calls
IMMUTABLE = (int, float, str, Enum, type(None))


class LegalCalls:
    """A checker of calls, which caches legal ones by name and arguments as (call ready to act, text)."""

    def __init__(self, tools: Tools) -> None:
        self.known: dict[str, tuple[Call, str]] = {}
        self._tools = tools

    def check(self, call: Call) -> tuple[Call, str]:
        """Return a legal call with arguments of the annotated types, and the text of the call. Raises InvalidCall."""
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
    """A gate that withholds unsure decisions. `floors`: the least confidence by head or parameter; the empty name means
    all. `null_is_doubt`: a null function means that the instruction is not understood."""

    def __init__(self, floors: Mapping[str, float], tools: Iterable[Tool], null_is_doubt: bool = False) -> None:
        self._floors = dict(floors)
        self._least = self._floors.pop("", 0.0)
        self._null_is_doubt = null_is_doubt
        self._heads = heads_of(tools)
        self.closed = bool(self._floors or self._least > 0 or null_is_doubt)  # whether the gate may withhold a decision

    def doubt(self, decision: Decision) -> Doubt | None:
        """Return why a decision must not act, or None if it may."""
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
    """Return the head of each parameter by tool."""
    return {
        t.name: {p.name: ARGUMENTS[i] for i, slot in enumerate(t.schema.slots()) for p in slot.parameters}
        for t in tools
    }


def settings_of(config: RunConfig, agent: Agent, env: Environment | None = None) -> LoopSettings:
    """Return the settings of a run. `env` is None if the world has several environments."""
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
    """Return the rules of an agent and of the run's options about it."""
    gate = ConfidenceGate(config.floors, agent.tools, agent.null_is_doubt)
    return Rules(
        check=LegalCalls(agent.tools).check,
        describe=lambda error: (errors.text(error), errors.where(error)),
        plain=jsonable,
        safe_calls=agent.fallback.safe_calls,
        doubt=gate.doubt if gate.closed else None,
        confirm=frozenset(config.confirm) | frozenset(agent.confirm),
        history=agent.history,
        goals=goals,
    )


def check_named(config: RunConfig, agent: Agent) -> None:
    """Raise UserError if loop.confirm or loop.min_confidence has a name that this agent lacks, or if the history is too
    short for the calls of a tick."""
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
