"""Who flies: a model or an endpoint under its gate, the expert, nothing, chance."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rtcontrol.agents import Agent
from rtcontrol.envs.evaluate import Seat
from rtcontrol.envs.skill import Skill
from rtcontrol.hosts.deciders import STSource, build
from rtcontrol.hosts.protocol import Decider, DeciderSource, DecisionLost, DecisionRequest
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.decider import STDecider
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError

Flyer = Callable[[Sequence[Seat]], Sequence[Call | None]]
SCRIPTED = ("expert", "no-op", "random")
# Sixteen at once fill a pass; with more, the mask outgrows what the decoder keeps. An endpoint is asked by eight.
LOCAL, FAR = 16, 8
GIVE_UP = 3  # so many requests without one answer, and the model is none


def scripted(skill: Skill, name: str, seed: int = 0) -> Flyer:
    """Expert, no-op or random; a random call depends on its case and its tick alone."""
    if name == "expert":
        return lambda seats: skill.expert_policy([(seat.case.instruction, seat.seen) for seat in seats])
    if name == "no-op":
        return lambda seats: [skill.still] * len(seats)
    return lambda seats: [skill.any_call(random.Random(f"{seed}/{s.case.seed}/{s.tick}")) for s in seats]


class ModelFlyer:
    """A model or an endpoint that decides for many worlds at once. A decision whose function is less sure than the
    `gate` does not act (nor a null function that is doubt to the agent): the call in force goes on, and after the
    agent's hold time its safe call acts; so it is with one that does not come.

    Of each case it keeps `sure` and whether nothing was done (`idle`), by tick, `held` and `lost` (ticks). Raises
    UserError where nothing is ever decided.
    """

    def __init__(self, agent: Agent, source: DeciderSource, hz: float, gate: float = 0.0) -> None:
        self.gate = gate
        self._agent = agent
        self._hold = max(1, math.ceil(agent.fallback.hold_ms * hz / 1e3))
        self._answered, self._failed = False, 0
        self._many: STDecider | None = source.spec.build() if isinstance(source, STSource) else None
        self._deciders: list[Decider] = [] if self._many else [build(source) for _ in range(FAR)]
        self._pool = ThreadPoolExecutor(FAR)
        self.parallel = LOCAL if self._many else FAR

    def __call__(self, seats: Sequence[Seat]) -> list[Call | None]:
        made = self._ask(seats) if seats else []
        self._answered = self._answered or not all(isinstance(one, Exception) for one in made)
        return [self._act(seat, decided) for seat, decided in zip(seats, made, strict=True)]

    def _act(self, seat: Seat, decided: Decision | Exception) -> Call | None:
        kept = seat.kept
        if isinstance(decided, Exception):
            self._lose(decided)
            kept["lost"] = kept.get("lost", 0) + 1
            return self._hold_on(kept)
        doubt = decided.call is None and self._agent.null_is_doubt
        sure = decided.confidence.get("function", 1.0)
        sure = 1.0 - sure if doubt else sure
        kept.setdefault("sure", []).append(sure)
        if doubt or sure < self.gate:
            kept["held"] = kept.get("held", 0) + 1
            return self._hold_on(kept)
        kept.setdefault("idle", []).append(False)
        kept["waits"] = 0
        return decided.call

    def _hold_on(self, kept: dict[str, Any]) -> Call | None:
        kept.setdefault("idle", []).append(True)
        kept["waits"] = kept.get("waits", 0) + 1
        return self._agent.fallback.safe_call if kept["waits"] == self._hold else None

    def _lose(self, fault: Exception) -> None:
        self._failed += 1
        if not self._answered and self._failed >= GIVE_UP:
            raise UserError(
                f"The model decides nothing: {fault}".rstrip(".") + ".",
                "Try it with `rtcontrol run` first; its report names what is missed.",
            ) from fault

    def _ask(self, seats: Sequence[Seat]) -> list[Decision | Exception]:
        if self._many is None:
            return list(self._pool.map(_asked, self._deciders, seats))
        told = [(seat.seen, seat.case.instruction, seat.called) for seat in seats]
        try:
            return list(self._many.decide_many(told))
        except (UserError, DecodeError):  # of one of them: the others are decided all the same
            return [_tried(self._many, one) for one in told]


def _tried(decider: STDecider, told: tuple[str, str, Sequence[str]]) -> Decision | Exception:
    try:
        return decider.decide(*told)
    except (UserError, DecodeError) as fault:
        return fault


def _asked(decider: Decider, seat: Seat) -> Decision | Exception:
    request = DecisionRequest(seat.tick, 1, seat.seen, seat.case.instruction, tuple(seat.called[-6:]))
    try:
        return decider.decide(request)
    except (UserError, DecodeError, DecisionLost) as fault:
        return fault
