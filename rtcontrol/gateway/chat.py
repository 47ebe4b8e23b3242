"""`POST /v1/chat/completions`, in the form that the `openai` client libraries use.

The last user message is the instruction. System messages are put before the instruction if the model was not trained on
the tools, and are left out otherwise. Earlier calls with their results are the history; `environment` (our extension,
a list of strings) is the observation.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rtcontrol.gateway.bodies import DECODER
from rtcontrol.gateway.decide import Timed
from rtcontrol.gateway.gate import Refusal
from rtcontrol.models.call import Call
from rtcontrol.models.conversation import CallWithResult, ConversationTurn, UnpairedResult, match_results
from rtcontrol_client.wire.errors import WireError
from rtcontrol_client.wire.limits import LIMITS, check_value

Decide = Callable[..., Awaitable[Timed]]


class Function(BaseModel):
    """A function's name, and its `arguments` as JSON in a string."""

    name: str
    arguments: str | None = None


class ToolCall(BaseModel):
    id: str | None = None
    function: Function

    def call(self, place: str) -> Call:
        """Return the call. Raises Refusal that names `place` if the arguments are not a JSON object."""
        text = self.function.arguments
        try:
            # Some clients send "null" or "" for a tool without parameters.
            value = {} if text is None or text.strip() in ("", "null") else DECODER.decode(text)
            check_value(value, LIMITS)
        except (ValueError, RecursionError, WireError):
            value = None
        if not isinstance(value, dict):
            raise Refusal(400, "invalid", f"{place} is not a JSON object.", "Send the call unchanged.", param=place)
        return Call(self.function.name, value)


class ContentPart(BaseModel):
    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    def text(self) -> str:
        if not isinstance(self.content, list):
            return self.content or ""
        return "\n".join(part.text for part in self.content)

    def turn(self) -> ConversationTurn:
        result = (self.tool_call_id or None, None) if self.role == "tool" else None
        calls = [(call.id or None, call.function.name) for call in self.tool_calls or ()]
        return ConversationTurn(calls, result, self.role == "user")


class StreamOptions(BaseModel):
    include_usage: bool = False


class ToolChoice(BaseModel):
    type: Literal["function"]
    function: Function


class TextFormat(BaseModel):
    type: Literal["text"]


class ChatRequest(BaseModel):
    model_config = ConfigDict(extra="allow")

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=256)]
    tools: list[dict[str, Any]] | None = None
    functions: None = None  # refused: this field of OpenAI's first API would be ignored, and other tools called
    tool_choice: Literal["auto", "required"] | ToolChoice | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = 1
    response_format: TextFormat | None = None
    environment: list[str] | None = None

    def orders(self) -> str:
        """Return the text of all system and developer messages."""
        texts = [m.text() for m in self.messages if m.role in ("system", "developer")]
        return "\n".join(filter(None, texts))

    def instruction(self) -> str:
        """Return the text of the last user message."""
        return next((m.text() for m in reversed(self.messages) if m.role == "user"), "")

    def calls(self, since: int = 0) -> list[CallWithResult]:
        """Return the calls of the messages from index `since` on, with their results. Raises Refusal."""
        try:
            results = match_results([message.turn() for message in self.messages])
        except UnpairedResult as error:
            hint = "Send the assistant message with the call before it, and each call's result once, with its id."
            raise Refusal(400, "invalid", f"{error}.", hint, param=f"messages[{error.index}].tool_call_id") from None
        return [
            CallWithResult(
                call.call(f"messages[{i}].tool_calls[{k}].function.arguments"),
                self.messages[results[i, k]].text() if (i, k) in results else None,
            )
            for i, message in enumerate(self.messages)
            if i >= since
            for k, call in enumerate(message.tool_calls or ())
        ]

    def answered(self) -> list[CallWithResult]:
        """Return the calls after the last user message that have a result."""
        last = max((i for i, m in enumerate(self.messages) if m.role == "user"), default=0)
        return [call for call in self.calls(last) if call.result is not None]

    @property
    def required(self) -> bool:
        """Whether the request demands a call."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, ToolChoice)

    def offer(self, default: Sequence[dict[str, Any]] = ()) -> tuple[dict[str, Any], ...]:
        """Return the tools that may be called: the request's, or else the server's `default`. Raises Refusal."""
        tools = tuple(self.tools or default)
        if not tools:
            raise Refusal(400, "unsupported", "No tools.", "This server writes no prose: give `tools`.", "tools")
        if not isinstance(self.tool_choice, ToolChoice):
            return tools
        name = self.tool_choice.function.name
        if not (tools := tuple(tool for tool in tools if _name(tool) == name)):
            problem = f"tool_choice names {name[:80]!r}, which is not one of the tools."
            raise Refusal(400, "invalid", problem, "Name one of them.", "tool_choice.function.name")
        return tools


def _name(tool: dict[str, Any]) -> Any:
    body = tool.get("function", tool)
    return body.get("name") if isinstance(body, dict) else None


# -- the answer -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChatReply:
    """A decision with the resulting call or text. `stopped`: the reason why nothing is called."""

    timed: Timed
    call: Call | None
    content: str | None = None
    stopped: str | None = None

    @property
    def finish_reason(self) -> str:
        return "stop" if self.call is None else "tool_calls"

    def message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.content, "refusal": None}
        if self.call is not None:
            arguments = json.dumps(dict(self.call.arguments), ensure_ascii=False)
            function = {"name": self.call.name, "arguments": arguments}
            message["tool_calls"] = [{"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}]
        return message

    def extra(self) -> dict[str, Any]:
        """Return the content of the response field `rtcontrol`."""
        extra = {"confidence": dict(self.timed.decision.confidence), **self.timed.timing()}
        return extra if self.stopped is None else {**extra, "stopped": self.stopped}


async def decided(request: ChatRequest, tools: Sequence[dict[str, Any]], decide: Decide) -> ChatReply:
    """Return the reply to a request, with a call or the reason why nothing is called. Raises Refusal."""
    history, answered = [call.text() for call in request.calls()], request.answered()
    may_be_null = bool(answered) and not request.required
    observation = ", ".join(request.environment or [])
    timed = await decide(tools, request.instruction(), observation, history, may_be_null, request.orders())
    if timed.held is not None:
        return ChatReply(timed, None, timed.held, timed.held)
    call = timed.decision.call
    if call is None:
        last = answered[-1].result if answered else None
        return ChatReply(timed, None, last or "", "The model calls nothing.")
    repeated = next((earlier.result for earlier in reversed(answered) if earlier.call == call), None)
    if repeated is not None and not request.required:  # calling the tool again would repeat the same result for ever
        return ChatReply(timed, None, repeated, f"{call.text()} was already called, and its result is known.")
    return ChatReply(timed, call)


def completion(request: ChatRequest, answer: ChatReply) -> dict[str, Any]:
    """Return the response body of a request without streaming."""
    choice = {"index": 0, "message": answer.message(), "finish_reason": answer.finish_reason, "logprobs": None}
    envelope = _envelope(request, "chat.completion")
    return {**envelope, "choices": [choice], "usage": _usage(answer.timed), "rtcontrol": answer.extra()}


def chunks(request: ChatRequest, answer: ChatReply) -> Iterator[str]:
    """Yield the reply as server-sent events: the message, the finish reason and, if requested, the usage."""
    envelope, message = _envelope(request, "chat.completion.chunk"), answer.message()
    for call in message.get("tool_calls", ()):
        call["index"] = 0
    first = {"index": 0, "delta": message, "finish_reason": None, "logprobs": None}
    last = {"index": 0, "delta": {}, "finish_reason": answer.finish_reason, "logprobs": None}
    events: list[dict[str, Any]] = [{"choices": [first]}, {"choices": [last], "rtcontrol": answer.extra()}]
    if request.stream_options is not None and request.stream_options.include_usage:
        events.append({"choices": [], "usage": _usage(answer.timed)})
    for event in events:
        yield f"data: {json.dumps({**envelope, **event}, ensure_ascii=False)}\n\n"
    yield "data: [DONE]\n\n"


def _envelope(request: ChatRequest, kind: str) -> dict[str, Any]:
    name = f"chatcmpl-{secrets.token_hex(12)}"
    return {"id": name, "object": kind, "created": int(time.time()), "model": request.model}


def _usage(timed: Timed) -> dict[str, Any]:
    """Return the token counts. As values are chosen and not written, each head counts as one answer token."""
    decision = timed.decision
    prompt = decision.reused_tokens + decision.tokens
    heads = len(decision.confidence)
    usage = {"prompt_tokens": prompt, "completion_tokens": heads, "total_tokens": prompt + heads}
    return {**usage, "prompt_tokens_details": {"cached_tokens": decision.reused_tokens}}
