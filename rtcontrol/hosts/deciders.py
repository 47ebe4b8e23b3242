"""Recipes of deciders: the ST model, and the plain ones that need no model (expert, no-op, random)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rtcontrol.hosts.base import DecisionRequest
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.domain import Closed
from rtcontrol.models.schema import ToolSchema, tool_schemas

PLAIN = ("expert", "noop", "random")


@dataclass(frozen=True)
class STSource:
    """An ST model; `spec` is a `rtcontrol.models.decider.DeciderSpec`."""

    spec: Any

    def build(self) -> STModel:
        return STModel(self.spec.build())


class STModel:
    """The ST decoder as a decider of requests."""

    def __init__(self, decider: Any) -> None:
        self._decider = decider

    def decide(self, request: DecisionRequest) -> Decision:
        decision: Decision = self._decider.decide(request.observation, request.instruction, request.history)
        return decision

    def info(self) -> dict[str, Any]:
        return dict(self._decider.info())


@dataclass(frozen=True)
class ExpertSource:
    """A scripted expert: `function` gives the call for a request."""

    function: Callable[[DecisionRequest], Call]

    def build(self) -> ExpertSource:
        return self

    def decide(self, request: DecisionRequest) -> Decision:
        return Decision(self.function(request))

    def info(self) -> dict[str, Any]:
        return {"engine": "script", "model": "expert"}


@dataclass(frozen=True)
class NoopSource:
    """Leaves whatever is in force: the null function, always."""

    def build(self) -> NoopSource:
        return self

    def decide(self, request: DecisionRequest) -> Decision:
        return Decision(None)

    def info(self) -> dict[str, Any]:
        return {"engine": "script", "model": "noop"}


@dataclass(frozen=True)
class RandomSource:
    """A uniformly random legal call each tick; optional parameters and open domains are left out where they may be.

    The same seed, tick and epoch give the same call, in every lane.
    """

    tools: Sequence[dict[str, Any]]
    seed: int = 0

    def build(self) -> RandomCalls:
        return RandomCalls(tool_schemas(list(self.tools)), self.seed)


class RandomCalls:
    def __init__(self, schemas: Sequence[ToolSchema], seed: int) -> None:
        self._schemas, self._seed = schemas, seed

    def decide(self, request: DecisionRequest) -> Decision:
        chance = random.Random(f"{self._seed}/{request.epoch}/{request.tick}")
        schema = chance.choice(self._schemas)
        arguments = {}
        for parameter in schema.parameters:
            if isinstance(parameter.domain, Closed):
                arguments[parameter.name] = chance.choice(parameter.domain.values)
            elif parameter.required:
                raise ValueError(f"no random value for {schema.name}.{parameter.name}: its domain is open")
        return Decision(Call(schema.name, arguments))

    def info(self) -> dict[str, Any]:
        return {"engine": "script", "model": "random"}
