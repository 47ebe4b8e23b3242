"""`POST /v1/chat/completions` with `tools`: what the `openai` client libraries send and read.

System and user text become the instruction, earlier tool calls the history; `environment` (a field of our own, a list
of strings) is the observation. Every answer is one tool call, except where the model leaves things as they are.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from rtcontrol.gateway.access import Refusal
from rtcontrol.gateway.decide import Timed
from rtcontrol.models.call import Call


class Function(BaseModel):
    name: str
    arguments: str = "{}"


class ToolCall(BaseModel):
    function: Function


class ContentPart(BaseModel):
    type: str
    text: str = ""


class ChatMessage(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    tool_calls: list[ToolCall] | None = None

    def text(self) -> str:
        """Raises Refusal for what is no text."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        if other := [p.type for p in self.content if p.type != "text"]:
            raise Refusal(400, "unsupported", f"A content part of type {other[0]!r}.", "This model reads text only.")
        return "\n".join(p.text for p in self.content)


class StreamOptions(BaseModel):
    include_usage: bool = False


class NamedFunction(BaseModel):
    name: str


class NamedTool(BaseModel):
    type: Literal["function"] = "function"
    function: NamedFunction


class ResponseFormat(BaseModel):
    type: str


class ChatRequest(BaseModel):
    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=256)]
    tools: Annotated[list[dict[str, Any]], Field(max_length=64)] = []
    tool_choice: Literal["none", "auto", "required"] | NamedTool = "auto"
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = 1
    response_format: ResponseFormat | None = None
    environment: list[str] | None = None

    def instruction(self) -> str:
        """The standing orders and the last thing the user said."""
        standing = [m.text() for m in self.messages if m.role in ("system", "developer")]
        said = [m.text() for m in self.messages if m.role == "user"][-1:]
        return "\n".join(t for t in (*standing, *said) if t)

    def observation(self) -> str:
        return ", ".join(self.environment or [])

    def history(self) -> list[str]:
        return [_call_text(c.function) for m in self.messages for c in m.tool_calls or []]

    def chosen_tools(self) -> list[dict[str, Any]]:
        """The tools that may be called. Raises Refusal for what is not offered."""
        if not self.tools:
            raise Refusal(
                400, "unsupported", "No tools.", "Give `tools`: this server answers with function calls only."
            )
        if self.n not in (None, 1):
            raise Refusal(400, "unsupported", f"n = {self.n}.", "Ask for one choice.")
        if self.tool_choice == "none":
            raise Refusal(
                400, "unsupported", "tool_choice is none.", "This server writes no prose: use auto or required."
            )
        if self.response_format is not None and self.response_format.type != "text":
            what = f"response_format is {self.response_format.type[:40]!r}."
            raise Refusal(400, "unsupported", what, "Describe the answer as a tool: its arguments follow their schema.")
        if isinstance(self.tool_choice, str):
            return self.tools
        name = self.tool_choice.function.name
        chosen = [t for t in self.tools if isinstance(b := t.get("function", t), dict) and b.get("name") == name]
        if not chosen:
            raise Refusal(
                400, "invalid", f"tool_choice names {name!r}, which is none of the tools.", "Name one of them."
            )
        return chosen


def completion(request: ChatRequest, timed: Timed) -> dict[str, Any]:
    """The whole answer."""
    calls = _tool_calls(timed.decision.call)
    message = {"role": "assistant", "content": None if calls else "", "refusal": None}
    return {
        **_envelope(request, "chat.completion"),
        "choices": [
            {
                "index": 0,
                "message": {**message, **({"tool_calls": calls} if calls else {})},
                "finish_reason": _finish(timed),
                "logprobs": None,
            }
        ],
        "usage": _usage(timed),
        "rtcontrol": _extra(timed),
    }


def chunks(request: ChatRequest, timed: Timed) -> Iterator[str]:
    """The answer as server-sent events."""
    envelope = _envelope(request, "chat.completion.chunk")
    calls = _tool_calls(timed.decision.call)

    def event(delta: dict[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return f"data: {json.dumps({**envelope, 'choices': [choice]}, ensure_ascii=False)}\n\n"

    yield event({"role": "assistant", "content": None if calls else ""})
    for i, call in enumerate(calls):
        yield event({"tool_calls": [{"index": i, **call}]})
    yield event({}, _finish(timed))
    if request.stream_options is not None and request.stream_options.include_usage:
        last = {**envelope, "choices": [], "usage": _usage(timed), "rtcontrol": _extra(timed)}
        yield f"data: {json.dumps(last)}\n\n"
    yield "data: [DONE]\n\n"


def models(name: str, since: int) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": name, "object": "model", "created": since, "owned_by": "rtcontrol"}]}


def _envelope(request: ChatRequest, kind: str) -> dict[str, Any]:
    name = f"chatcmpl-{secrets.token_hex(12)}"
    return {"id": name, "object": kind, "created": int(time.time()), "model": request.model}


def _tool_calls(call: Call | None) -> list[dict[str, Any]]:
    if call is None:
        return []
    function = {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)}
    return [{"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}]


def _finish(timed: Timed) -> str:
    return "stop" if timed.decision.call is None else "tool_calls"


def _usage(timed: Timed) -> dict[str, Any]:
    decision = timed.decision
    prompt = decision.tokens + decision.reused_tokens
    # Values are chosen, not written: a head is what comes nearest to a token of an answer.
    heads = len(decision.confidence)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": heads,
        "total_tokens": prompt + heads,
        "prompt_tokens_details": {"cached_tokens": decision.reused_tokens},
    }


def _extra(timed: Timed) -> dict[str, Any]:
    return {
        "confidence": dict(timed.decision.confidence),
        "latency_ms": round(timed.latency_ms, 3),
        "decide_ms": round(timed.decide_ms, 3),
        "forward_passes": timed.decision.forward_passes,
    }


def _call_text(function: Function) -> str:
    try:
        arguments = json.loads(function.arguments)
    except ValueError:
        arguments = None
    return Call(function.name, arguments).text() if isinstance(arguments, dict) else function.name
