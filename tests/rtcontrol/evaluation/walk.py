"""A small world to score in: a walker on a line that must stand at the flag it is told, left or right of its start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from rtcontrol.agents import Agent, Fallback, OneOf, Tools, tool
from rtcontrol.envs.base import Episode
from rtcontrol.envs.skill import Skill
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.models.call import Call, Decision

LIMIT_S, REACH = 3.0, 5


@dataclass(frozen=True)
class Flag:
    side: str

    def text(self) -> str:
        return f"go {self.side}"


def recognise(text: str) -> Flag | None:
    return Flag(text[3:]) if text in ("go left", "go right") else None


class Walk:
    """Ten steps a second of one place each way; whoever passes a flag by two places has fallen."""

    step_s = 0.1

    def __init__(self) -> None:
        self.bindings: Mapping[str, Callable[..., Any]] = {"walk": self.walk}
        self._goal: Flag | None = None

    def walk(self, step: int) -> None:
        self._step = step

    def judge_by(self, goal: Flag) -> None:
        self._goal = goal

    def instruct(self, text: str) -> None:
        pass

    def reset(self, seed: int) -> None:
        self._seed, self._x, self._t, self._step = seed, seed % 3 - 1, 0.0, 0

    def step(self) -> None:
        self._x, self._t = self._x + self._step, self._t + self.step_s

    def observe(self) -> dict[str, float]:
        return {"x": self._x}

    def outcome(self) -> Episode | None:
        fell = abs(self._x) > REACH + 1
        if not fell and self._t < LIMIT_S:
            return None
        there = self._goal is not None and self._x == (-REACH if self._goal.side == "left" else REACH)
        return Episode(self._seed, self._x, there and not fell, self._t, {"end": "fell" if fell else "time"})


def expert(seen: Mapping[str, float], goal: Flag) -> Call:
    ahead = (-REACH if goal.side == "left" else REACH) - seen["x"]
    return Call("walk", {"step": (ahead > 0) - (ahead < 0)})


@tool
def walk(step: Annotated[int, OneOf(-1, 0, 1)]) -> None:
    """Walk on with so many places a step."""


LEFT, RIGHT = Flag("left"), Flag("right")
STILL = Call("walk", {"step": 0})
SKILL = Skill(
    "walk",
    Walk,
    lambda data: f"x {data['x']:.0f}",
    lambda text: {"x": float(text[2:])},
    recognise,
    expert,
    STILL,
    lambda rng: Call("walk", {"step": rng.choice((-1, 0, 1))}),
    goals=(LEFT, RIGHT),
)
AGENT = Agent("walk", "Walks.", Tools([walk]), SKILL.observe, "go left", Fallback(STILL, hold_ms=300.0), "none")


@dataclass(frozen=True)
class Walker:
    """Decides as the expert does where it is told one of `knows`, and else as if told the first of them, `unsure` until
    the tick `wakes`."""

    knows: tuple[str, ...]
    unsure: float = 0.4
    sure: float = 0.9
    wakes: int = 1_000

    def build(self) -> Walker:
        return self

    def decide(self, request: DecisionRequest) -> Decision:
        told = request.instruction
        goal = recognise(told if told in self.knows else self.knows[0])
        assert goal is not None
        call = expert(SKILL.read_back(request.observation), goal)
        return Decision(
            call,
            {"function": 1.0, "arg1": self.sure if told in self.knows or request.tick >= self.wakes else self.unsure},
        )
