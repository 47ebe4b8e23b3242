"""An agent of nothing but tools: a client's own, or those of `--tools`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rtcontrol.agents import Agent, Tools
from rtcontrol.agents.agent import Fallback

HISTORY = 6


def tools_only_agent(name: str, tools: Tools, instruction: str, fallback: Fallback) -> Agent:
    """It reads what is observed as `render` words it, and names no model."""
    return Agent(
        name=name,
        description="Tools that were given.",
        tools=tools,
        observe=render,
        instruction=instruction,
        fallback=fallback,
        model="",
        history=HISTORY,
    )


def render(data: Mapping[str, Any]) -> str:
    """`key value` pairs in the order given: `x 0.25 on true at 1 2`. Arrays are left out: they are for agents."""
    return " ".join(f"{key} {_plain(value)}" for key, value in data.items() if not isinstance(value, np.ndarray))


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return render(value)
    if isinstance(value, (list, tuple)):
        return " ".join(_plain(v) for v in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value is None else str(value)
