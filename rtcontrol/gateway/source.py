"""The recipe of what decides requests that bring their own tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rtcontrol.hosts.base import DeciderSource
from rtcontrol.hosts.deciders import NoopSource, RandomSource, STSource
from rtcontrol.models.errors import UserError


def source(model: str, engine: str, tools: tuple[dict[str, Any], ...]) -> DeciderSource:
    """UserError for a model that cannot serve any tools."""
    if model == "noop":
        return NoopSource()
    if model == "random":
        return RandomSource(tools)
    if model == "expert":
        raise UserError("The scripted expert knows its own tools only.", "Serve a model: `rtcontrol serve --model M`.")
    from rtcontrol.models.decider import DeciderSpec

    return STSource(DeciderSpec(model=model, engine=engine, tools=tools))


def public_name(model: str) -> str:
    """The model's name as strangers may see it: without the folders of this machine."""
    return Path(model).name or model
