"""`POST /v1/function_call`: SimpleTool's request and response, so that its browser games run against this server.

Arguments are named and typed by the *chosen* function's schema (the original names them by the union over all tools,
lower-cases strings and guesses numbers from text). `content` is always null.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field

from rtcontrol.models.call import Call
from rtcontrol.models.schema.tool_schema import ABSENT, MAX_HEADS, ToolSchema


class TextMessage(BaseModel):
    role: str
    content: str


class FunctionCallRequest(BaseModel):
    """The query is the last user message; `environment` lines are the observation, `history` the calls so far. The
    original's sampling options are taken, and change nothing."""

    messages: Annotated[list[TextMessage], Field(min_length=1, max_length=256)]
    tools: list[dict[str, Any]] = []
    environment: list[str] | None = None
    history: list[str] | None = None

    def instruction(self) -> str:
        return next((m.content for m in reversed(self.messages) if m.role == "user"), "")

    def observation(self) -> str:
        return ", ".join(self.environment or [])


class FunctionCallResponse(BaseModel):
    success: bool
    function: str | None = None
    args: dict[str, Any] = {}
    heads: dict[str, str] = {}
    content: str | None = None
    latency_ms: float = 0
    error: str | None = None


def respond(
    call: Call | None, schemas: Sequence[ToolSchema], latency_ms: float, held: str | None = None
) -> FunctionCallResponse:
    """The decision in the original's shape; a null function is `No function called`, as there, or why it was `held`."""
    active = min(MAX_HEADS, max(len(s.parameters) for s in schemas))
    heads = {"function": "", **{f"arg{i + 1}": "" for i in range(active)}}
    if call is None:
        return FunctionCallResponse(
            success=False, heads=heads, latency_ms=latency_ms, error=held or "No function called"
        )
    schema = next(s for s in schemas if s.name == call.name)
    heads["function"] = call.name
    heads |= {f"arg{i + 1}": text for i, text in enumerate(_texts(schema, call))}
    return FunctionCallResponse(
        success=True, function=call.name, args=dict(call.arguments), heads=heads, latency_ms=latency_ms
    )


def _texts(schema: ToolSchema, call: Call) -> list[str]:
    values = [slot.value(call.arguments) for slot in schema.slots()]
    return ["" if v is ABSENT else v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
