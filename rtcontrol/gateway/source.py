"""The recipe of what decides requests that bring their own tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rtcontrol.hosts.base import DeciderSource
from rtcontrol.hosts.deciders import NoopSource, RandomSource, STSource
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema import tool_schemas
from rtcontrol.run.trained import model_for


def source(
    model: str | None,
    engine: str,
    tools: tuple[dict[str, Any], ...],
    value_tokens: int = 64,
    arguments: str = "sequential",
) -> DeciderSource:
    """A free value has at most `value_tokens` tokens. UserError for a model that cannot serve these tools."""
    model = model_for(tool_schemas(tools), model)
    if model == "noop":
        return NoopSource()
    if model == "random":
        return RandomSource(tools)
    if model == "expert":
        raise UserError("The scripted expert knows its own tools only.", "Serve a model: `rtcontrol serve --model M`.")
    from rtcontrol.models.decider import DeciderSpec

    spec = DeciderSpec(model=model, engine=engine, tools=tools, value_tokens=value_tokens, arguments=arguments)
    return STSource(spec, patient=True)


def public_name(model: str | None) -> str:
    """The model's name as strangers may see it: without the folders of this machine."""
    return "default" if model is None else Path(model).name or model
