"""Build the LoopSettings and the Rules of LoopCore (call validation, confidence gate) from configuration and agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from rtcontrol.agents import Agent, Tool, Tools
from rtcontrol.agents.goal_tools import GoalTools
from rtcontrol.envs.base import EmittingEnvironment, Environment
from rtcontrol.loop import errors
from rtcontrol.loop.config import RunConfig, plain_text
from rtcontrol.loop.core import LoopSettings, Rules
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.checkpoint.special_tokens import ARGUMENTS
from rtcontrol.models.errors import UserError
from rtcontrol.records import LowConfidence
from rtcontrol.telemetry.events import to_jsonable

MAX_KNOWN = 1024  # maximum number of cached calls
IMMUTABLE = (int, float, str, Enum, type(None))


class CallValidator:
    """A validator of calls. It caches the results for valid calls (the converted call, and its text)."""

    def __init__(self, tools: Tools) -> None:
        self.known: dict[str, tuple[Call, str]] = {}
        self._tools = tools

    def check(self, call: Call) -> tuple[Call, str]:
        """Validate a call. Return the call with converted arguments, and its text. Raises InvalidCall."""
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
    """A gate that withholds decisions with low confidence. `floors`: the minimum confidence by head (a part of the
    call) or parameter; the empty name means all heads. `null_is_doubt`: if a decision has no call, the model has not
    understood the instruction."""

    def __init__(self, floors: Mapping[str, float], tools: Iterable[Tool], null_is_doubt: bool = False) -> None:
        self._floors = dict(floors)
        self._least = self._floors.pop("", 0.0)
        self._null_is_doubt = null_is_doubt
        self._heads = heads_of(tools)
        self.enabled = bool(self._floors or self._least > 0 or null_is_doubt)  # whether the gate can withhold any call

    def doubt(self, decision: Decision) -> LowConfidence | None:
        """Return a head whose confidence is too low, or None if the decision may act."""
        call, confidence = decision.call, decision.confidence
        if call is None and self._null_is_doubt:
            return LowConfidence("function", 1.0 - confidence.get("function", 1.0), 1.0)
        if self._least and min(confidence.values(), default=1.0) < self._least:
            head = min(confidence, key=lambda name: confidence[name])
            return LowConfidence(head, confidence[head], self._least)
        names = self._heads.get(call.name, {}) if call is not None else {}
        for head, floor in self._floors.items():
            if (sure := confidence.get(names.get(head, head), 1.0)) < floor:
                return LowConfidence(head, sure, floor)
        return None


def heads_of(tools: Iterable[Tool]) -> dict[str, dict[str, str]]:
    """Return the name of the head that decodes a parameter, by tool and parameter."""
    return {
        t.name: {p.name: ARGUMENTS[i] for i, slot in enumerate(t.schema.slots()) for p in slot.parameters}
        for t in tools
    }


def settings_of(config: RunConfig, agent: Agent, env: Environment | None = None) -> LoopSettings:
    """Return the settings of a run. `env`: None for a crowd, which has no environment."""
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
        record_observations=config.record_observations == "yes",
        emits=isinstance(env, EmittingEnvironment),
        hysteresis=config.hysteresis is not None,
        cut_late_calls=config.clock == "wall",
    )


def rules_of(config: RunConfig, agent: Agent, goals: GoalTools | None = None) -> Rules:
    """Return the rules of a run, from the agent and the configuration."""
    gate = ConfidenceGate(config.floors, agent.tools, agent.null_is_doubt)
    return Rules(
        check=CallValidator(agent.tools).check,
        describe=lambda error: (errors.message(error), errors.location(error)),
        plain=to_jsonable,
        safe_calls=agent.fallback.safe_calls,
        doubt=gate.doubt if gate.enabled else None,
        confirm=frozenset(config.confirm) | frozenset(agent.confirm),
        history=agent.history,
        goals=goals,
    )


def check_names(config: RunConfig, agent: Agent) -> None:
    """Raise UserError if loop.confirm or loop.min_confidence has a name that the agent does not have, or if the agent's
    history is shorter than the calls of a tick."""
    if config.calls_per_tick > agent.history + 1:
        raise UserError(
            f"loop.calls_per_tick={config.calls_per_tick} is too large: the prompt of {agent.name} contains only the "
            f"last {agent.history} calls, so earlier calls of the same tick would be missing.",
            f"Set at most {agent.history + 1}, or use your own agent (--agent FILE.py) with "
            f"history={config.calls_per_tick - 1} and a model trained for it.",
        )
    tools: Mapping[str, Mapping[str, str]] = heads_of(agent.tools)
    for name in config.confirm:
        if name not in tools:
            raise UserError(f"loop.confirm={name} is not a tool of {agent.name}.", f"Its tools: {', '.join(tools)}.")
    heads = {"function"}.union(*tools.values(), *(names.values() for names in tools.values()))
    for head in config.floors:
        if head and head not in heads:
            raise UserError(
                f"loop.min_confidence: {agent.name} has no head {head}.",
                f"Use one of {', '.join(sorted(heads))}.",
            )
