"""Check whether a model was trained on an agent's tools, and adapt a run's settings to the model's training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rtcontrol.agents import Agent
from rtcontrol.hosts.deciders import SCRIPTED
from rtcontrol.hosts.remote_api import is_endpoint
from rtcontrol.loop.config import RunConfig
from rtcontrol.models.checkpoint.checkpoint import ZOO, bundled_models, is_chat_model
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.decode.hysteresis import margin_of
from rtcontrol.models.errors import UserError, user_path
from rtcontrol.models.schema.tool_schema import ToolSchema

Config = TypeVar("Config", bound=RunConfig)
NAME_IT = (
    "Train a model for these tools with `rtcontrol fit` (docs/training.md), and name its folder by --model (a client: "
    "`model`). A chat model (docs/engines.md) also works, and for a first try the model {known}."
)


def trained_on(tools: Sequence[ToolSchema], model: str) -> bool | None:
    """Return whether the model's checkpoint says that it was trained on exactly these tools.
    Return None if the checkpoint does not say it, if the model accepts any tools, or if it is not a checkpoint."""
    metadata = metadata_of(model)
    return None if metadata is None else metadata.knows(tools) or (None if metadata.any_tools else False)


def metadata_of(model: str) -> TrainingMetadata | None:
    """Return the training metadata of a model's checkpoint (bundled name, folder or hub id). Return None if the
    checkpoint has no metadata or is not on this disk, or if the model is not a checkpoint."""
    if model in SCRIPTED or is_endpoint(model):
        return None
    folder = ZOO / model if model in bundled_models() else user_path(model)
    return TrainingMetadata.load(folder) if folder.is_dir() else None


def adapt(agent: Agent, model: str) -> Agent:
    """Adapt an agent's settings to the training of the model.

    The history is not longer than in training. An agent without a default model allows null decisions (keep the active
    call) if the model was trained with such decisions. If the agent does not allow null, but the checkpoint has a
    confidence gate, a null decision means that the instruction is not understood.
    """
    metadata = metadata_of(model)
    if metadata is None:
        return agent
    history = min(agent.history, metadata.history)
    if not metadata.knows(agent.tools.schemas):  # null is allowed only with the tools of the training
        return replace(agent, history=history)
    null_is_doubt = metadata.null_is_doubt and not agent.allow_null
    allow_null = agent.allow_null or null_is_doubt or (not agent.model and metadata.allow_null)
    return replace(agent, history=history, allow_null=allow_null, null_is_doubt=null_is_doubt)


def has_heads(model: str) -> bool:
    """Return whether the model has heads (an output per argument), which return the probabilities of values."""
    return not (model in SCRIPTED or is_endpoint(model) or is_chat_model(model))


def hysteresis_for(text: str | None, model: str) -> float | None:
    """Return the probability margin of the setting loop.hysteresis. Raises UserError if the model has no heads."""
    if text is None:
        return None
    if not has_heads(model):
        problem = f"loop.hysteresis needs probabilities of values, but the model {model} does not return any."
        hint = (
            "Do not set loop.hysteresis, or use a checkpoint with heads: a bundled one, or your own (docs/training.md)."
        )
        raise UserError(problem, hint)
    return margin_of(text)


def gate_of(model: str, tools: Sequence[ToolSchema]) -> float | None:
    """Return the checkpoint's minimum confidence for calls of these tools, or None if the checkpoint has no minimum."""
    metadata = metadata_of(model)
    return metadata.gate if metadata is not None and metadata.knows(tools) else None


def with_gate(config: Config, model: str, tools: Sequence[ToolSchema]) -> Config:
    """Return the settings with the model's minimum confidence for these tools, unless the settings have a minimum."""
    gate = gate_of(model, tools) if config.min_confidence is None else None
    return config if gate is None else replace(config, min_confidence={"function": gate})


def model_for(tools: Sequence[ToolSchema], named: str | None, hint: str = NAME_IT) -> str:
    """Return the model `named`, or the bundled model that was trained on exactly these tools if `named` is None.

    Raises UserError if there is no such model, or if the named model was trained on other tools, because its calls
    would be legal but meaningless. `hint` is the hint of the error, where {known} is replaced by possible models.
    """
    tool_set_counts = {n: len(m.tool_sets) for n in bundled_models() if (m := metadata_of(n)) and m.knows(tools)}
    bundled = min(tool_set_counts, key=tool_set_counts.__getitem__, default=None)  # the model with the fewest tool sets
    model = named or bundled
    if model is None or trained_on(tools, model) is False:
        problem = "No bundled model was trained on these tools, and no other model was named."
        if model is not None:
            problem = (
                f"The model {Path(model).name} was trained on other tools: its calls would be legal but meaningless."
            )
            problem += first_difference(tools, model)
        known = ", ".join(f'"{name}"' for name in (bundled, "random") if name)
        raise UserError(problem, hint.format(known=f'{known} or "noop"'))
    return model


def first_difference(tools: Sequence[ToolSchema], model: str) -> str:
    """Return a sentence with the first difference between these tools and the model's tools, or "" if it is unknown."""
    metadata = metadata_of(model)
    first = None if metadata is None else metadata.difference(tools)
    return "" if first is None else f" First difference: {first}."


def training_notice(tools: Sequence[ToolSchema], model: str) -> str | None:
    """Return a notice for the user if it is not certain that the model was trained on these tools, else None."""
    if model in SCRIPTED or is_endpoint(model) or trained_on(tools, model) is not None:
        return None
    if is_chat_model(model):
        return f"{Path(model).name} is a chat model, not trained on these tools (docs/engines.md)."
    if (metadata := metadata_of(model)) is not None and metadata.any_tools:
        return f"The model {Path(model).name} accepts any tools, and was not trained on these."
    return f"It is not known whether the model {Path(model).name} was trained on these tools."


def rate_mismatch(model: str, hz: float) -> str | None:
    """Return a notice for the user if the model was trained at another tick rate, else None."""
    metadata = metadata_of(model)
    if metadata is None or metadata.rate_hz in (None, hz):
        return None
    return f"The model {Path(model).name} was trained at {metadata.rate_hz:g} Hz, but this run has {hz:g} Hz (--hz)."
