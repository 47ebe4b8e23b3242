"""A world that numbers what is observed, and writes down by itself what acted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from rtcontrol.agents import Agent, Fallback, Range, Tools, tool
from rtcontrol.envs.base import Episode
from rtcontrol.models.call import Call

SAFE_FORCE = -1.0


@tool
def press(force: Annotated[float, Range(-1.0, 1.0)]) -> None:
    """Press with this force; -1 lets go."""


class NumberedWorld:
    """`acted`: what was called, and when (CLOCK_MONOTONIC), by the world's own word."""

    step_s = 0.01

    def __init__(self) -> None:
        self.acted: list[tuple[int, float]] = []
        self.bindings: Mapping[str, Callable[..., Any]] = {"press": self._press}
        self._n = 0

    def _press(self, force: float) -> None:
        self.acted.append((time.monotonic_ns(), force))

    def reset(self, seed: int) -> None:
        """It goes on: no number comes twice."""

    def step(self) -> None:
        self._n += 1

    def observe(self) -> Mapping[str, Any]:
        return {"n": float(self._n)}

    def outcome(self) -> Episode | None:
        return None

    def instruct(self, text: str) -> None:
        """It judges nothing."""


def drill_agent() -> Agent:
    """Presses as a policy says, and lets go where that says nothing."""
    return Agent(
        name="policy-drill",
        description="Presses as a policy says.",
        tools=Tools([press]),
        observe=lambda data: f"n {data['n']:.0f}",
        instruction="press",
        fallback=Fallback(Call("press", {"force": SAFE_FORCE}), hold_ms=100.0),
        model="",
        history=0,
    )
