"""`POST /v1/chat/completions` with `tools`: what the `openai` client libraries send and read.

System and user text become the instruction, earlier tool calls the history; `environment` (a field of our own, a list
of strings) is the observation. Every answer is one tool call, except where the model leaves things as they are, or
`parallel_tool_calls` lets it make several: so many decisions, each with the calls before it in its history.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from rtcontrol.gateway.access import Refusal
from rtcontrol.gateway.decide import Timed, Unavailable
from rtcontrol.loop.config import MAX_CALLS
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError


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
    parallel_tool_calls: bool | None = False
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


async def decided(request: ChatRequest, decide: Callable[..., Awaitable[Timed]], limit_s: float) -> list[Timed]:
    """Its decisions: one, or so many until one is null, repeats a call, fails, or is not there within `limit_s` of the
    request; that one is left out, unless it is the first. Raises whatever the first one raises."""
    began, history = time.monotonic(), request.history()
    told = request.chosen_tools(), request.instruction(), request.observation()
    made = [await decide(*told, history)]
    while request.parallel_tool_calls and len(made) < MAX_CALLS and (last := made[-1].decision.call) is not None:
        history.append(last.text())
        try:
            next_ = await asyncio.wait_for(decide(*told, history), limit_s - (time.monotonic() - began))
        except (TimeoutError, Unavailable, UserError):
            break
        if next_.decision.call is None or next_.decision.call in [one.decision.call for one in made]:
            break
        made.append(next_)
    return made


def completion(request: ChatRequest, timed: Sequence[Timed]) -> dict[str, Any]:
    """The whole answer."""
    calls = _tool_calls(timed)
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


def chunks(request: ChatRequest, timed: Sequence[Timed]) -> Iterator[str]:
    """The answer as server-sent events."""
    envelope = _envelope(request, "chat.completion.chunk")
    calls = _tool_calls(timed)

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


def _tool_calls(timed: Sequence[Timed]) -> list[dict[str, Any]]:
    calls = [call for one in timed if (call := one.decision.call) is not None]
    functions = [{"name": c.name, "arguments": json.dumps(dict(c.arguments), ensure_ascii=False)} for c in calls]
    return [{"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": f} for f in functions]


def _finish(timed: Sequence[Timed]) -> str:
    return "stop" if timed[0].decision.call is None else "tool_calls"


def _usage(timed: Sequence[Timed]) -> dict[str, Any]:
    decisions = [one.decision for one in timed]
    cached = sum(d.reused_tokens for d in decisions)
    prompt = cached + sum(d.tokens for d in decisions)
    # Values are chosen, not written: a head is what comes nearest to a token of an answer.
    heads = sum(len(d.confidence) for d in decisions)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": heads,
        "total_tokens": prompt + heads,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _extra(timed: Sequence[Timed]) -> dict[str, Any]:
    """`confidence` is the first call's; `confidences` are all, where there are several."""
    confidences = [dict(one.decision.confidence) for one in timed]
    return {
        "confidence": confidences[0],
        **({"confidences": confidences} if len(timed) > 1 else {}),
        "latency_ms": round(sum(one.latency_ms for one in timed), 3),
        "decide_ms": round(sum(one.decide_ms for one in timed), 3),
        "forward_passes": sum(one.decision.forward_passes for one in timed),
    }


def _call_text(function: Function) -> str:
    try:
        arguments = json.loads(function.arguments)
    except ValueError:
        arguments = None
    return Call(function.name, arguments).text() if isinstance(arguments, dict) else function.name
