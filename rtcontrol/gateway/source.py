"""The recipe of what decides requests that bring their own tools."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from rtcontrol.hosts.deciders import PLAIN, NoopSource, QuestionSource, RandomSource, STSource
from rtcontrol.hosts.protocol import DeciderSource
from rtcontrol.hosts.remote_api import EndpointSource, is_endpoint
from rtcontrol.models.checkpoint.checkpoint import chats
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas
from rtcontrol.run.model_compatibility import model_for, trained_on

# A request cannot choose among models: its `model` is that of the server.
START_IT = (
    "Start the server with `rtcontrol serve --model M`: {known}, a checkpoint that was trained on these tools, or a "
    "chat model (docs/chat.md)."
)


def source(
    model: str | None,
    engine: str,
    tools: tuple[dict[str, Any], ...],
    value_tokens: int = 64,
    allow_null: bool = False,
) -> DeciderSource:
    """A free value has at most `value_tokens` tokens; with `allow_null` it may call nothing; without tools it answers
    questions. UserError for a model that cannot serve these."""
    if not tools:
        return questions_of(model, engine)
    model = model_for(tool_schemas(tools), model, START_IT)
    if model == "noop":
        return NoopSource()
    if model == "random":
        return RandomSource(tools)
    if model == "expert":
        raise UserError("The scripted expert knows its own tools only.", "Serve a model: `rtcontrol serve --model M`.")
    if is_endpoint(model):
        return EndpointSource.parse(model, tools, allow_null)
    from rtcontrol.models.decider import DeciderSpec

    given: dict[str, Any] = {"allow_null": allow_null, "value_tokens": value_tokens}
    return STSource(DeciderSpec(model=model, engine=engine, tools=tools, **given), patient=True)


def trained(model: str | None, tools: Sequence[ToolSchema]) -> tuple[bool | None, str | None]:
    """Whether the model was trained on these tools, and without any on questions (None: not known, or nothing that is
    trained), and the warning for everyone who asks it about what it may not have been trained on."""
    found = True if model is None else trained_on(tools, model)
    if model is not None and found is None and _chats(model):
        found = False
    if found or model in PLAIN or is_endpoint(model):
        return found, None
    name = public_name(model)
    what, given = ("these tools", "calls") if tools else ("questions", "answers")
    told = (
        f"Whether the model {name} was trained on {what} is not known"
        if found is None
        else f"The model {name} was not trained on {what}"
    )
    return found, f"{told}: its {given} are legal, and may be nonsense, however certain they are."


@lru_cache(maxsize=1)  # it reads the tokenizer
def _chats(model: str) -> bool:
    return model not in PLAIN and not is_endpoint(model) and chats(model)


def public_name(model: str | None) -> str:
    """The model's name as strangers may see it: without the folders of this machine."""
    return "default" if model is None or is_endpoint(model) else Path(model).name or model


def questions_of(model: str | None, engine: str) -> DeciderSource:
    """The recipe of what answers questions. UserError for a model that answers none."""
    if model is None or model in PLAIN or is_endpoint(model):
        raise UserError(
            "No model here answers questions." if model is None else f"The model {model} answers no questions.",
            "Start the server with one: `rtcontrol serve --model CHECKPOINT --http ADDRESS`.",
        )
    from rtcontrol.models.decider import DeciderSpec

    return QuestionSource(DeciderSpec(model=model, engine=engine, tools=()))
