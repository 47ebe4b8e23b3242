"""What a session of the Python API is given, checked: its gate, its safe call; and why a decision is held, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rtcontrol.agents import InvalidCall, Tools
from rtcontrol.loop.confidence_monitor import ConfidenceGate, Doubt, heads_of
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.decode.hysteresis import Hysteresis
from rtcontrol.models.errors import UserError


def kind_of(given: object) -> str:
    """What was given in place of something else, for people."""
    return "None" if given is None else "a text" if isinstance(given, str) else f"a {type(given).__name__}"


def why_held(doubt: Doubt, head: str, call: Call | None) -> str:
    """Why a decision is held back, in words."""
    if call is None:
        return "what is told is not understood: the model answers that it asks for nothing here"
    return f"{head} is {doubt.confidence:.3f} sure, and acts from {doubt.least:.3f} on"


def confidence_gate(
    tools: Tools, asked: float | Mapping[str, float] | None, learnt: TrainingMetadata | None, allow_null: bool | None
) -> ConfidenceGate:
    """The gate that was asked for, else that of a checkpoint that knows the tools. Raises UserError."""
    if asked is None and learnt is not None and learnt.gate is not None:
        return ConfidenceGate({"function": learnt.gate}, tools, null_is_doubt=learnt.allow_null and allow_null is None)
    floors: Any = asked if isinstance(asked, Mapping) else {"": asked or 0.0}
    known = {"function"}.union(*((*names, *names.values()) for names in heads_of(tools).values()))
    for head, least in floors.items():
        if head and head not in known:
            remedy = f"There are {', '.join(sorted(known))}."
            raise UserError(f"min_confidence names {str(head)[:80]!r}, which no tool has.", remedy)
        if isinstance(least, bool) or not isinstance(least, int | float) or not 0 <= least <= 1:
            raise UserError(f"min_confidence={str(asked)[:80]} is no probability.", "Give 0 (no gate) to 1.")
    return ConfidenceGate(floors, tools)


def hysteresis_of(text: object) -> Hysteresis | None:
    """What was asked for. Raises UserError."""
    if text is not None and not isinstance(text, str):
        raise UserError(f"hysteresis={str(text)[:80]} is no text.", 'Give "margin=0.2", "ticks=3" or both.')
    return None if text is None else Hysteresis.parse(text)


def check_safe(tools: Tools, safe_call: Call | None) -> None:
    """Raises UserError for what is no call of these tools."""
    if safe_call is None:
        return
    try:
        if not isinstance(safe_call, Call):
            raise InvalidCall(f"it is {kind_of(safe_call)}")
        tools.validate(safe_call)
    except InvalidCall as error:
        raise UserError(f"The safe call is none of these tools ({error}).", "Give such as Call('stop', {}).") from None
