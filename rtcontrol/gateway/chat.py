"""Serve `POST /v1/chat/completions`, in the format of the `openai` client libraries.

The last user message is the instruction. System messages precede the instruction if the model was not trained on the
tools; otherwise they are ignored. Earlier calls are the history. The observation is in the field `environment` (a list
of strings), which OpenAI's format does not have. The JSON schema of `response_format` becomes a tool; the arguments of
its call are the reply's text.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rtcontrol.gateway.bodies import DECODER
from rtcontrol.gateway.decide import TimedDecision
from rtcontrol.gateway.gate import Refusal
from rtcontrol.models.call import Call
from rtcontrol.models.conversation import CallWithResult, ConversationTurn, UnpairedResult, match_results
from rtcontrol_client.wire.errors import WireError
from rtcontrol_client.wire.limits import LIMITS, check_value

Decide = Callable[..., Awaitable[TimedDecision]]


class Function(BaseModel):
    """The name of a function. In a call, `arguments` has the arguments as a JSON string."""

    name: str
    arguments: str | None = None


class ToolCall(BaseModel):
    id: str | None = None
    function: Function

    def to_call(self, field: str) -> Call:
        """Return the call with parsed arguments. If they are not a JSON object, raise Refusal about this `field`."""
        text = self.function.arguments
        try:
            # If a tool has no parameters, some clients send "null" or an empty string.
            value = {} if text is None or text.strip() in ("", "null") else DECODER.decode(text)
            check_value(value, LIMITS)
        except (ValueError, RecursionError, WireError):
            value = None
        if not isinstance(value, dict):
            hint = "Send the call as this server returned it."
            raise Refusal(400, "invalid", f"{field} is not a JSON object.", hint, param=field)
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

    def to_turn(self) -> ConversationTurn:
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


class JsonSchema(BaseModel):
    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")

    def to_tool(self) -> dict[str, Any]:
        """Return the schema as a tool."""
        return {"name": self.name, "description": self.description or "The reply.", "parameters": self.schema_}


class SchemaFormat(BaseModel):
    type: Literal["json_schema"]
    json_schema: JsonSchema


# Parameters that are ignored, because decisions are not sampled, and never cut off.
IGNORED = {
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
}
IGNORED |= {"max_tokens", "max_completion_tokens", "parallel_tool_calls", "prediction", "reasoning_effort", "verbosity"}
IGNORED |= {"service_tier", "store", "metadata", "user", "safety_identifier", "chat_template_kwargs"}
IGNORED |= {"prompt_cache_key", "prompt_cache_retention"}


class ChatRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096)]
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "required"] | ToolChoice | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = 1
    logprobs: Literal[False] | None = None  # replies have no log probabilities of tokens
    top_logprobs: Literal[0] | None = None
    response_format: Annotated[TextFormat | SchemaFormat, Field(discriminator="type")] | None = None
    modalities: list[Literal["text"]] | None = None
    environment: list[str] | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_ignored_parameters(cls, body: Any) -> Any:
        """Drop empty parameters, and those that cannot change the answer. Pydantic refuses other unknown names."""
        if not isinstance(body, dict):
            return body
        return {
            key: value
            for key, value in body.items()
            if key in cls.model_fields or not (key in IGNORED or value is None or value in ([], {}, False))
        }

    def system_text(self) -> str:
        """Return the text of all system and developer messages."""
        texts = [m.text() for m in self.messages if m.role in ("system", "developer")]
        return "\n".join(filter(None, texts))

    def instruction(self) -> str:
        """Return the text of the last user message."""
        return next((m.text() for m in reversed(self.messages) if m.role == "user"), "")

    def parse_calls(self, since: int = 0) -> list[CallWithResult]:
        """Return the calls in the messages from index `since` on, with their results. Raises Refusal if a result does
        not belong to a call."""
        try:
            results = match_results([message.to_turn() for message in self.messages])
        except UnpairedResult as error:
            hint = "Send the assistant message with the call before the result, and each call's result once, by id."
            raise Refusal(400, "invalid", f"{error}.", hint, param=f"messages[{error.index}].tool_call_id") from None
        return [
            CallWithResult(
                call.to_call(f"messages[{i}].tool_calls[{k}].function.arguments"),
                self.messages[results[i, k]].text() if (i, k) in results else None,
            )
            for i, message in enumerate(self.messages)
            if i >= since
            for k, call in enumerate(message.tool_calls or ())
        ]

    def calls_with_results(self) -> list[CallWithResult]:
        """Return the calls after the last user message that have a result."""
        last = max((i for i, m in enumerate(self.messages) if m.role == "user"), default=0)
        return [call for call in self.parse_calls(last) if call.result is not None]

    @property
    def must_call(self) -> bool:
        """Return whether the reply must have a call."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, ToolChoice)

    @property
    def reply_schema(self) -> JsonSchema | None:
        """Return the JSON schema of the reply's text, or None without a schema or if a call is required."""
        form = self.response_format
        return form.json_schema if isinstance(form, SchemaFormat) and not self.must_call else None

    def offered_tools(self, default: Sequence[dict[str, Any]] = ()) -> tuple[dict[str, Any], ...]:
        """Return the tools that may be called: the request's tools, and a tool for its reply schema; or else the
        server's `default`. Raises Refusal."""
        if self.reply_schema is not None:
            if any(_tool_name(tool) == self.reply_schema.name for tool in self.tools or ()):
                problem = f"response_format has the name of the tool {self.reply_schema.name[:80]!r}."
                raise Refusal(400, "invalid", problem, "Rename one of them.", "response_format.json_schema.name")
            return (*(self.tools or ()), self.reply_schema.to_tool())
        tools = tuple(self.tools or default)
        if not tools:
            hint = "Send `tools`: this server only calls tools, and writes no text."
            raise Refusal(400, "unsupported", "The request has no tools.", hint, "tools")
        if not isinstance(self.tool_choice, ToolChoice):
            return tools
        name = self.tool_choice.function.name
        if not (tools := tuple(tool for tool in tools if _tool_name(tool) == name)):
            problem = f"tool_choice names {name[:80]!r}, which is not one of the tools."
            raise Refusal(400, "invalid", problem, "Name one of the tools.", "tool_choice.function.name")
        return tools


def _tool_name(tool: dict[str, Any]) -> Any:
    body = tool.get("function", tool)
    return body.get("name") if isinstance(body, dict) else None


@dataclass(frozen=True)
class ChatReply:
    """The reply to a request: a decision, and a call or a text. `no_call_reason`: why there is no call, or None."""

    timed: TimedDecision
    call: Call | None
    content: str | None = None
    no_call_reason: str | None = None

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

    def rtcontrol_field(self) -> dict[str, Any]:
        """Return the value of the response field `rtcontrol`."""
        rtcontrol_field = {"confidence": dict(self.timed.decision.confidence), **self.timed.timing()}
        return rtcontrol_field if self.no_call_reason is None else {**rtcontrol_field, "stopped": self.no_call_reason}


async def decide_reply(request: ChatRequest, tools: Sequence[dict[str, Any]], decide: Decide) -> ChatReply:
    """Decide a request, and return the reply: a call, a text, or the reason for no call. Raises Refusal."""
    history, calls_with_results = [call.text() for call in request.parse_calls()], request.calls_with_results()
    must_call = request.must_call or request.reply_schema is not None
    may_be_null = bool(calls_with_results) and not must_call
    observation = ", ".join(request.environment or [])
    timed = await decide(tools, request.instruction(), observation, history, may_be_null, request.system_text())
    if timed.hold_reason is not None:
        return ChatReply(timed, None, timed.hold_reason, timed.hold_reason)
    call = timed.decision.call
    if call is not None and request.reply_schema is not None and call.name == request.reply_schema.name:
        return ChatReply(timed, None, json.dumps(dict(call.arguments), ensure_ascii=False))
    if call is None:
        last = calls_with_results[-1].result if calls_with_results else None
        return ChatReply(timed, None, last or "", "The model calls nothing.")
    repeated = next((earlier.result for earlier in reversed(calls_with_results) if earlier.call == call), None)
    if repeated is not None and request.reply_schema is not None:
        return await decide_reply(request, [request.reply_schema.to_tool()], decide)
    if repeated is not None and not must_call:  # otherwise a client would execute the same call for ever
        return ChatReply(timed, None, repeated, f"{call.text()} was already called, and has a result.")
    return ChatReply(timed, call)


def completion_body(request: ChatRequest, answer: ChatReply) -> dict[str, Any]:
    """Return the body of the response to a request without streaming."""
    choice = {"index": 0, "message": answer.message(), "finish_reason": answer.finish_reason, "logprobs": None}
    envelope = _envelope(request, "chat.completion")
    return {**envelope, "choices": [choice], "usage": _usage(answer.timed), "rtcontrol": answer.rtcontrol_field()}


def completion_events(request: ChatRequest, answer: ChatReply) -> Iterator[str]:
    """Yield the reply as server-sent events: the message, the finish reason and, if requested, the token counts."""
    envelope, message = _envelope(request, "chat.completion.chunk"), answer.message()
    for call in message.get("tool_calls", ()):
        call["index"] = 0
    first = {"index": 0, "delta": message, "finish_reason": None, "logprobs": None}
    last = {"index": 0, "delta": {}, "finish_reason": answer.finish_reason, "logprobs": None}
    events: list[dict[str, Any]] = [{"choices": [first]}, {"choices": [last], "rtcontrol": answer.rtcontrol_field()}]
    if request.stream_options is not None and request.stream_options.include_usage:
        events.append({"choices": [], "usage": _usage(answer.timed)})
    for event in events:  # as ASCII: many clients also end lines at U+2028, U+2029 or U+0085
        yield f"data: {json.dumps({**envelope, **event})}\n\n"
    yield "data: [DONE]\n\n"


def _envelope(request: ChatRequest, kind: str) -> dict[str, Any]:
    name = f"chatcmpl-{secrets.token_hex(12)}"
    return {"id": name, "object": kind, "created": int(time.time()), "model": request.model}


def _usage(timed: TimedDecision) -> dict[str, Any]:
    """Return the token counts. The model selects values and generates no tokens, so each output head counts as one
    completion token."""
    decision = timed.decision
    prompt = decision.reused_tokens + decision.tokens
    heads = len(decision.confidence)
    usage = {"prompt_tokens": prompt, "completion_tokens": heads, "total_tokens": prompt + heads}
    return {**usage, "prompt_tokens_details": {"cached_tokens": decision.reused_tokens}}
