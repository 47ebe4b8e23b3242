"""The recipe of what decides requests that bring their own tools."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from rtcontrol.hosts.deciders import PLAIN, NoopSource, QuestionSource, RandomSource, STSource
from rtcontrol.hosts.protocol import DeciderSource
from rtcontrol.hosts.remote_api import EndpointSource, is_endpoint
from rtcontrol.loop.confidence import ConfidenceGate
from rtcontrol.loop.operator import never_taught
from rtcontrol.models.call import Decision
from rtcontrol.models.checkpoint.checkpoint import chats
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas
from rtcontrol.run.api import why_held
from rtcontrol.run.model_compatibility import learnt_of, model_for, trained_on

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


class CheckpointGate:
    """The gate of one set of tools. Without `learnt` (a checkpoint that does not know them, or no checkpoint) it holds
    nothing back. `allow_null`: whether the request itself lets the model call nothing."""

    def __init__(self, learnt: TrainingMetadata | None = None, allow_null: bool = False) -> None:
        self._learnt = learnt
        gate = None if learnt is None else learnt.gate
        # A null function that was learnt with a gate says that the instruction is not understood.
        doubt = learnt is not None and gate is not None and learnt.allow_null and not allow_null
        self.allow_null = allow_null or doubt
        self._gate = ConfidenceGate({} if gate is None else {"function": gate}, (), doubt)

    @classmethod
    def of(cls, model: str | None, tools: Sequence[ToolSchema], allow_null: bool) -> CheckpointGate:
        """Return the gate of a model (None: the bundled one that knows the tools). UserError if it must not decide."""
        learnt = learnt_of(model_for(tools, model, START_IT)) if tools else None
        return cls(learnt if learnt is not None and learnt.knows(tools) else None, allow_null)

    def held(self, decision: Decision) -> str | None:
        """Return why the decision's call must not act; None if it may."""
        if (doubt := self._gate.doubt(decision)) is None:
            return None
        strange = f"; {never_taught(decision.unknown)}" if decision.unknown else ""
        return f"Nothing is called: {why_held(doubt, doubt.head, decision.call)}{strange}."

    def instruction(self, orders: str, said: str) -> str:
        """Return what the model is told: the orders of a system message only if it was not trained on these tools, for
        the sentences of its training have none."""
        return said if self._learnt is not None else "\n".join(filter(None, (orders, said)))
