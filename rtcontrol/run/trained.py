"""Which model may decide for given tools: never one that was trained on others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rtcontrol.hosts.deciders import PLAIN
from rtcontrol.hosts.endpoint import is_endpoint
from rtcontrol.models.checkpoint import chats, zoo
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema import ToolSchema
from rtcontrol.run import assemble

NAME_IT = (
    "Use the model {known} (a client's `model`, a command's --model), or start with --model and a checkpoint that was "
    "trained on these tools, or a chat model (docs/chat.md)."
)


def trained_on(tools: Sequence[ToolSchema], model: str) -> bool | None:
    """Whether the model was trained on exactly these tools. None: not known, or nothing that is trained."""
    if model in PLAIN:
        return None
    if any(agent.model == model and _same(agent.tools.schemas, tools) for agent in assemble.agents().values()):
        return True
    return False if model in zoo() else None


def model_for(tools: Sequence[ToolSchema], asked: str | None, remedy: str = NAME_IT) -> str:
    """The model asked for, or else the bundled one that was trained on exactly these tools.

    UserError where there is none, and for one that was trained on others: its calls would be legal nonsense.
    `remedy` says how whoever asks comes to one of {known}.
    """
    agents = assemble.agents().values()
    own = next((agent.model for agent in agents if _same(agent.tools.schemas, tools)), None)
    model = asked or own
    if model is None or trained_on(tools, model) is False:
        what = "No model here was trained on these tools, and none was named."
        if model is not None:
            what = f"The model {Path(model).name} was trained on other tools: its calls would be legal, and nonsense."
        known = ", ".join(f'"{m}"' for m in (own, "random") if m)
        raise UserError(what, remedy.format(known=f'{known} or "noop"'))
    return model


def said_of(tools: Sequence[ToolSchema], model: str) -> str | None:
    """What people must know of a model that may not have been trained on these tools, None where there is nothing."""
    if model in PLAIN or is_endpoint(model) or trained_on(tools, model) is not None:
        return None
    if chats(model):
        return f"{Path(model).name} is a chat model, not trained on these tools: it tries them (docs/chat.md)."
    return f"Whether the model {Path(model).name} was trained on these tools is not known."


def _same(a: Sequence[ToolSchema], b: Sequence[ToolSchema]) -> bool:
    return json.dumps([s.canonical_json() for s in a]) == json.dumps([s.canonical_json() for s in b])
