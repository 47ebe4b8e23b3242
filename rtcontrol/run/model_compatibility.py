"""Which model may decide for given tools: never one that was trained on others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rtcontrol.agents import Agent
from rtcontrol.hosts.deciders import PLAIN
from rtcontrol.hosts.remote_api import is_endpoint
from rtcontrol.loop.config import RunConfig
from rtcontrol.models.checkpoint.checkpoint import ZOO, chats, zoo
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.decode.hysteresis import margin_of
from rtcontrol.models.errors import UserError, user_path
from rtcontrol.models.schema.tool_schema import ToolSchema

Config = TypeVar("Config", bound=RunConfig)
NAME_IT = (
    "Use the model {known} (a client's `model`, a command's --model), or start with --model and a checkpoint that was "
    "trained on these tools, or a chat model (docs/engines.md). `rtcontrol fit` makes one (docs/training.md)."
)


def trained_on(tools: Sequence[ToolSchema], model: str) -> bool | None:
    """Return whether the model was trained on exactly these tools, as its checkpoint says. None: not known, one that
    reads any tools, or nothing that is trained."""
    learnt = learnt_of(model)
    return None if learnt is None else learnt.knows(tools) or (None if learnt.any_tools else False)


def learnt_of(model: str) -> TrainingMetadata | None:
    """Return what the checkpoint of a bundled name, a folder or a hub id says that it learnt; None where it does not,
    for what is not a checkpoint, and for one that is not on this disk (its tools are known when it was fetched)."""
    if model in PLAIN or is_endpoint(model):
        return None
    folder = ZOO / model if model in zoo() else user_path(model)
    return TrainingMetadata.of(folder) if folder.is_dir() else None


def shown(agent: Agent, model: str) -> Agent:
    """Return the agent as the model learnt to be prompted: with no more history than in its training, and a call that
    may stay active where that was learnt and the agent is of nothing but tools.

    A null function of a model with a gate says that it does not understand, where the agent does not ask for null.
    """
    learnt = learnt_of(model)
    if learnt is None:
        return agent
    history = min(agent.history, learnt.history)
    if not learnt.knows(agent.tools.schemas):  # what it learnt of null was said of other tools
        return replace(agent, history=history)
    doubt = learnt.allow_null and learnt.gate is not None and not agent.allow_null
    allow_null = agent.allow_null or doubt or (not agent.model and learnt.allow_null)
    return replace(agent, history=history, allow_null=allow_null, null_is_doubt=doubt)


def has_heads(model: str) -> bool:
    """Return whether the model tells how probable each value is."""
    return not (model in PLAIN or is_endpoint(model) or chats(model))


def hysteresis_for(text: str | None, model: str) -> float | None:
    """Return the margin of loop.hysteresis. Raises UserError for a model without heads."""
    if text is None:
        return None
    if not has_heads(model):
        problem = f"loop.hysteresis compares the probabilities of values, and the model {model} tells none."
        hint = (
            "Leave loop.hysteresis out, or use a checkpoint with heads: a bundled one, or your own (docs/training.md)."
        )
        raise UserError(problem, hint)
    return margin_of(text)


def gate_of(model: str, tools: Sequence[ToolSchema]) -> float | None:
    """Return the gate of the function head that the model's checkpoint names for these tools."""
    learnt = learnt_of(model)
    return learnt.gate if learnt is not None and learnt.knows(tools) else None


def gated(config: Config, model: str, tools: Sequence[ToolSchema]) -> Config:
    """Return the settings with the model's gate for these tools, unless they have their own."""
    gate = gate_of(model, tools) if config.min_confidence is None else None
    return config if gate is None else replace(config, min_confidence={"function": gate})


def model_for(tools: Sequence[ToolSchema], named: str | None, hint: str = NAME_IT) -> str:
    """Return the model that is named, or else the bundled one that was trained on exactly these tools.

    Raises UserError where there is none, and for one that was trained on others: its calls would be legal nonsense.
    The `hint` says how the caller comes to one of {known}.
    """
    knowing = {name: len(learnt.tool_sets) for name in zoo() if (learnt := learnt_of(name)) and learnt.knows(tools)}
    bundled = min(knowing, key=knowing.__getitem__, default=None)  # the one that learnt little else
    model = named or bundled
    if model is None or trained_on(tools, model) is False:
        problem = "No model here was trained on these tools, and none was named."
        if model is not None:
            problem = (
                f"The model {Path(model).name} was trained on other tools: its calls would be legal, and nonsense."
            )
            problem += difference(tools, model)
        known = ", ".join(f'"{name}"' for name in (bundled, "random") if name)
        raise UserError(problem, hint.format(known=f'{known} or "noop"'))
    return model


def difference(tools: Sequence[ToolSchema], model: str) -> str:
    """Return a sentence that names the first difference from the tools of a model; empty if there is none to name."""
    learnt = learnt_of(model)
    first = None if learnt is None else learnt.difference(tools)
    return "" if first is None else f" First difference: {first}."


def training_notice(tools: Sequence[ToolSchema], model: str) -> str | None:
    """Return a notice of a model that may not have been trained on these tools; None where there is nothing to say."""
    if model in PLAIN or is_endpoint(model) or trained_on(tools, model) is not None:
        return None
    if chats(model):
        return f"{Path(model).name} is a chat model, not trained on these tools: it tries them (docs/engines.md)."
    if (learnt := learnt_of(model)) is not None and learnt.any_tools:
        return f"The model {Path(model).name} reads any tools, and was not trained on these."
    return f"Whether the model {Path(model).name} was trained on these tools is not known."


def rate_mismatch(model: str, hz: float) -> str | None:
    """Return a notice of a model that was trained at another rate: a call's effect is another then."""
    learnt = learnt_of(model)
    if learnt is None or learnt.rate_hz in (None, hz):
        return None
    return f"The model {Path(model).name} was trained at {learnt.rate_hz:g} Hz, and decides at {hz:g} here (--hz)."
