"""Who flies: a model or an endpoint under its gate, the expert, nothing, chance."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from rtcontrol.agents import Agent
from rtcontrol.envs.evaluate import Seat
from rtcontrol.envs.skill import Skill
from rtcontrol.hosts.deciders import STSource, build
from rtcontrol.hosts.protocol import Decider, DeciderSource, DecisionLost, DecisionRequest
from rtcontrol.loop.config import confidence
from rtcontrol.models.call import Call, Decision, StandingCall
from rtcontrol.models.decider import STDecider
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.steadiness import Steadiness

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


@dataclass(frozen=True)
class ScoringGate:
    """Decisions whose `head` is less sure than `least` are held; of no head in particular (""), whose least sure one
    is. `least` 0: none."""

    least: float = 0.0
    head: Literal["", "function"] = ""

    @classmethod
    def parse(cls, text: str) -> ScoringGate:
        """From `0.6` or `function=0.6`. Raises UserError."""
        try:
            given = confidence(text)
        except UserError:
            given = {"": -1.0}
        floors = given if isinstance(given, dict) else {"": given}
        (head, least), *more = floors.items()
        if more or head not in ("", "function") or not 0 <= least <= 1:
            raise UserError(f"--gate {text} is no gate.", "Give a probability, such as 0.6 or function=0.6.")
        return cls(least, "function" if head else "")

    def __str__(self) -> str:
        return f"{self.head}={self.least:g}" if self.head else f"{self.least:g}"

    def sure(self, decision: Decision, null_is_doubt: bool = False) -> float:
        """What it looks at, 1 where nothing was to be chosen; a null function that is doubt is as sure as it is not
        null."""
        if decision.call is None and null_is_doubt:
            return 1.0 - decision.confidence.get("function", 1.0)
        if self.head:
            return decision.confidence.get(self.head, 1.0)
        return min(decision.confidence.values(), default=1.0)


OPEN = ScoringGate()


class ModelFlyer:
    """A model or an endpoint that decides for many worlds at once. A decision that the `gate` holds does not act (nor
    a null function that is doubt to the agent): the call in force goes on, and after the agent's hold time its safe
    call acts; so it is with one that does not come.

    Of each case it keeps `sure` and whether nothing was done (`idle`), by tick, `held` and `lost` (ticks); and where
    the goal that is told is known to the expert, the confidence of each whole call (`confidence`), and whether the
    expert makes the same one (`agrees`).
    Raises UserError where nothing is ever decided.
    """

    def __init__(self, skill: Skill, agent: Agent, source: DeciderSource, hz: float, gate: ScoringGate = OPEN) -> None:
        self.gate = gate
        self._skill, self._agent, self._source = skill, agent, source
        self._hold = max(1, math.ceil(agent.fallback.hold_ms * hz / 1e3))
        self._answered, self._failed = False, 0
        self._goals: dict[str, Any] = {}
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
        sure = self.gate.sure(decided, self._agent.null_is_doubt)
        kept.setdefault("sure", []).append(sure)
        self._compare(seat, decided)
        steadied = decided.steadied
        kept["preferred"], kept["steadied"] = ({}, ()) if steadied is None else (steadied.preferred, steadied.kept)
        if sure < self.gate.least or (decided.call is None and self._agent.null_is_doubt):
            kept["held"] = kept.get("held", 0) + 1
            return self._hold_on(kept)
        kept.setdefault("idle", []).append(False)
        kept["waits"] = 0
        if decided.call is not None:
            kept["in_force"] = decided.call
        return decided.call

    def _hold_on(self, kept: dict[str, Any]) -> Call | None:
        kept.setdefault("idle", []).append(True)
        kept["waits"] = kept.get("waits", 0) + 1
        if kept["waits"] != self._hold:
            return None
        kept["in_force"], kept["preferred"] = None, {}
        return self._agent.fallback.safe_call

    def _compare(self, seat: Seat, decided: Decision) -> None:
        told = seat.case.instruction
        if told not in self._goals:
            self._goals[told] = self._skill.recognise(told)
        if (goal := self._goals[told]) is not None and decided.call is not None and decided.confidence:
            right = self._skill.expert(self._skill.read_back(seat.seen), goal)
            seat.kept.setdefault("confidence", []).append(math.prod(decided.confidence.values()))
            seat.kept.setdefault("agrees", []).append(right == decided.call)

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
            standing = [_standing(seat) for seat in seats]
            return list(self._many.decide_many(told, standing))
        except (UserError, DecodeError):  # of one of them: the others are decided all the same
            return [_tried(self._many, one, at) for one, at in zip(told, standing, strict=True)]


def _standing(seat: Seat) -> StandingCall | None:
    call = seat.kept.get("in_force")
    return None if call is None else StandingCall(call, seat.kept["preferred"])


class SteadyFlyer:
    """A flyer whose calls are looked at on their way: `watched` counts how steady they are, at this rate."""

    def __init__(self, flyer: Flyer, watched: Steadiness, hz: float) -> None:
        self.flyer, self._watched, self._hz = flyer, watched, hz

    def __call__(self, seats: Sequence[Seat]) -> Sequence[Call | None]:
        idle = [_undecided(seat) for seat in seats]
        made = self.flyer(seats)
        for seat, call, before in zip(seats, made, idle, strict=True):
            which = {"member": f"{seat.case.seed} {seat.case.instruction}", "t_s": seat.tick / self._hz}
            held = _undecided(seat) > before
            if call is not None:
                why = "safe" if held else "fresh"
                self._watched.call({"called": call.name, "arguments": call.arguments, "why": why, **which})
            kind = "held" if held and call is None else "call"
            kept = {"kept": True} if seat.kept.get("steadied") and not held else {}
            self._watched.tick({"kind": kind, "seq": seat.tick, **which, **kept})
        return made


def _undecided(seat: Seat) -> int:
    return int(seat.kept.get("held", 0) + seat.kept.get("lost", 0))


def _tried(
    decider: STDecider, told: tuple[str, str, Sequence[str]], standing: StandingCall | None
) -> Decision | Exception:
    try:
        return decider.decide(*told, standing)
    except (UserError, DecodeError) as fault:
        return fault


def _asked(decider: Decider, seat: Seat) -> Decision | Exception:
    request = DecisionRequest(seat.tick, 1, seat.seen, seat.case.instruction, tuple(seat.called[-6:]))
    try:
        return decider.decide(request)
    except (UserError, DecodeError, DecisionLost) as fault:
        return fault
