"""What a loop's core is made of: the numbers of the configuration, the rules of the agent, the calls that are legal."""

from __future__ import annotations

from enum import Enum

from rtcontrol.agents import Agent, Tools
from rtcontrol.agents.goal_tools import GoalTools
from rtcontrol.envs.base import Emitting, Environment
from rtcontrol.loop import errors
from rtcontrol.loop.confidence import ConfidenceGate
from rtcontrol.loop.config import RunConfig, plain_text
from rtcontrol.loop.core import LoopSettings, Rules
from rtcontrol.models.call import Call
from rtcontrol.telemetry.encoder import plain

# So many different calls are known to be legal; a schema of free values has no end of them.
MAX_KNOWN = 1024
# Of these nobody changes a value.
PLAIN = (int, float, str, Enum, type(None))


class LegalCalls:
    """The calls that were found legal, by name and arguments as text: (ready to act, text)."""

    def __init__(self, tools: Tools) -> None:
        self.known: dict[str, tuple[Call, str]] = {}
        self._tools = tools

    def check(self, call: Call) -> tuple[Call, str]:
        """Return a legal call with its arguments as the annotated types, and its text. Raises InvalidCall. What was
        legal once is known from then on, if its arguments are values that nobody can change."""
        key = f"{call.name}{call.arguments}"
        if (known := self.known.get(key)) is not None:
            return known
        tools = self._tools
        ready = Call(call.name, tools.convert(tools.validate(call)))
        checked = ready, call.text()
        if len(self.known) < MAX_KNOWN and all(isinstance(v, PLAIN) for v in ready.arguments.values()):
            self.known[key] = checked
        return checked


def settings_of(config: RunConfig, agent: Agent, env: Environment | None = None) -> LoopSettings:
    """Return the numbers of a run; None: its world is not one environment."""
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
