"""Define the policies that a score compares: models and endpoints with confidence gates, expert, no-op and random."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rtcontrol.agents import Agent
from rtcontrol.envs.evaluate import EvaluationWorld
from rtcontrol.envs.skill import Skill
from rtcontrol.hosts.deciders import STSource, build_decider
from rtcontrol.hosts.protocol import Decider, DeciderSource, DecisionLost, DecisionRequest
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.decider import STDecider
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError

BatchPolicy = Callable[[Sequence[EvaluationWorld]], Sequence[Call | None]]
SCRIPTED = ("expert", "no-op", "random")
# Number of worlds that are decided together: in a forward pass of a local model, or in concurrent remote requests.
LOCAL, REMOTE = 16, 8
MAX_FAILURES = 3  # a policy fails after this number of failed requests without a success
Failure = UserError | DecodeError | DecisionLost


def scripted_policy(skill: Skill, name: str, seed: int = 0) -> BatchPolicy:
    """Return the policy `expert`, `no-op` or `random`. A random call depends only on `seed`, case and tick."""
    if name == "expert":
        return lambda worlds: skill.expert_policy([(world.case.instruction, world.observation) for world in worlds])
    if name == "no-op":
        return lambda worlds: [skill.noop_call] * len(worlds)
    return lambda worlds: [skill.any_call(random.Random(f"{seed}/{s.case.seed}/{s.tick}")) for s in worlds]


class ModelPolicy:
    """A policy by which a model or an endpoint decides for many worlds at once. A call is withheld ("held") if the
    confidence in its function is below `gate`, and so is a null decision that means "not understood". Then the active
    call continues, and the safe call follows at the end of the agent's hold time.

    It writes to each world's `policy_data`: `idle` (by tick, whether there was no new call), counts of `held`, `lost`
    and `unfamiliar` decisions, and an `example` of the latter. Raises UserError if the first decisions all fail.
    """

    def __init__(self, agent: Agent, source: DeciderSource, hz: float, gate: float = 0.0) -> None:
        self.gate = gate
        self._agent = agent
        self._hold = max(1, math.ceil(agent.fallback.hold_ms * hz / 1e3))
        self._answered, self._failures = False, 0
        self._local: STDecider | None = source.spec.build() if isinstance(source, STSource) else None
        self._deciders: list[Decider] = [] if self._local else [build_decider(source) for _ in range(REMOTE)]
        self._pool = ThreadPoolExecutor(REMOTE)
        self.parallel = LOCAL if self._local else REMOTE

    def __call__(self, worlds: Sequence[EvaluationWorld]) -> list[Call | None]:
        decisions = self._decide_all(worlds) if worlds else []
        self._answered = self._answered or any(isinstance(decision, Decision) for decision in decisions)
        return [self._call_from(world, decision) for world, decision in zip(worlds, decisions, strict=True)]

    def _call_from(self, world: EvaluationWorld, decision: Decision | Failure) -> Call | None:
        data = world.policy_data
        if not isinstance(decision, Decision):
            self._count_failure(decision)
            data["lost"] = data.get("lost", 0) + 1
            return self._hold_active_call(data)
        doubt = decision.call is None and self._agent.null_is_doubt
        confidence = decision.confidence.get("function", 1.0)
        confidence = 1.0 - confidence if doubt else confidence
        if doubt or confidence < self.gate:
            data["held"] = data.get("held", 0) + 1
            if decision.unfamiliar:
                data["unfamiliar"] = data.get("unfamiliar", 0) + 1
                data.setdefault("example", decision.unfamiliar[0])
            return self._hold_active_call(data)
        data.setdefault("idle", []).append(False)
        data["waits"] = 0
        return decision.call

    def _hold_active_call(self, data: dict[str, Any]) -> Call | None:
        data.setdefault("idle", []).append(True)
        data["waits"] = data.get("waits", 0) + 1
        return self._agent.fallback.safe_call if data["waits"] == self._hold else None

    def _count_failure(self, failure: Failure) -> None:
        self._failures += 1
        if not self._answered and self._failures >= MAX_FAILURES:
            raise UserError(
                f"The model makes no decision: {failure}".rstrip(".") + ".",
                "Try the model with `rtcontrol run` first; its report shows the causes.",
            ) from failure

    def _decide_all(self, worlds: Sequence[EvaluationWorld]) -> list[Decision | Failure]:
        if (local := self._local) is None:
            requests = [
                DecisionRequest(world.tick, 1, world.observation, world.case.instruction, tuple(world.history[-6:]))
                for world in worlds
            ]
            return list(
                self._pool.map(lambda decider, request: _decision(decider.decide, request), self._deciders, requests)
            )
        situations = [(world.observation, world.case.instruction, world.history) for world in worlds]
        try:
            return list(local.decide_many(situations))
        except (UserError, DecodeError):  # one of the decisions failed, so decide separately
            return [_decision(local.decide, *situation) for situation in situations]


def _decision(decide: Callable[..., Decision], *situation: Any) -> Decision | Failure:
    try:
        return decide(*situation)
    except (UserError, DecodeError, DecisionLost) as failure:
        return failure
