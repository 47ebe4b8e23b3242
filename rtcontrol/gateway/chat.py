"""`POST /v1/chat/completions` as the `openai` client libraries send and read it.

The last user message is the instruction; system messages go before it for a model that was not trained on the tools,
and are left out for one that was. Earlier calls, each with its result, are the history; `environment` (our extension,
a list of strings) is the observation.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rtcontrol.gateway import body
from rtcontrol.gateway.access import Refusal
from rtcontrol.gateway.decide import RequestError, Timed, timing
from rtcontrol.models.call import Call
from rtcontrol.models.conversation import Made, Turn, Unpaired, results_of
from rtcontrol_client.wire.errors import WireError
from rtcontrol_client.wire.limits import LIMITS, check_value

Decide = Callable[..., Awaitable[Timed]]


class Function(BaseModel):
    """`arguments` are JSON in a string."""

    name: str
    arguments: str | None = None


class ToolCall(BaseModel):
    id: str | None = None
    function: Function

    def call(self, place: str) -> Call:
        """Raises Refusal, naming the `place`, for arguments that are not a JSON object."""
        given = self.function.arguments
        try:
            # "null" and "" are what some clients send for a tool without parameters.
            found = {} if given is None or given.strip() in ("", "null") else body.DECODER.decode(given)
            check_value(found, LIMITS)
        except (ValueError, RecursionError, WireError):
            found = None
        if not isinstance(found, dict):
            raise Refusal(400, "invalid", f"{place} is no JSON object.", "Send the call as it was made.", param=place)
        return Call(self.function.name, found)


class ContentPart(BaseModel):
    type: Literal["text", "refusal"]
    text: str | None = None
    refusal: str | None = None

    @model_validator(mode="after")
    def has_words(self) -> ContentPart:
        if self.text is None and self.refusal is None:
            raise ValueError("there is nothing to read: fill its `text`")
        return self


class ChatMessage(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    def text(self) -> str:
        if not isinstance(self.content, list):
            return self.content or ""
        return "\n".join(p.text or p.refusal or "" for p in self.content)

    def turn(self) -> Turn:
        result = (self.tool_call_id or None, None) if self.role == "tool" else None
        return Turn([(c.id or None, c.function.name) for c in self.tool_calls or ()], result, self.role == "user")


class StreamOptions(BaseModel):
    include_usage: bool = False


class NamedFunction(BaseModel):
    name: str


class ToolChoice(BaseModel):
    type: Literal["function"]
    function: NamedFunction


class TextFormat(BaseModel):
    type: Literal["text"]


@dataclass(frozen=True)
class Offer:
    """The tools that may be called, and whether one of them `must` be."""

    tools: tuple[dict[str, Any], ...]
    must: bool

    def without(self, name: str) -> Offer:
        return Offer(tuple(tool for tool in self.tools if name_of(tool) != name), self.must)


class ChatRequest(BaseModel):
    model_config = ConfigDict(extra="allow")

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=256)]
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = 1
    response_format: TextFormat | None = None
    functions: Any = None
    environment: list[str] | None = None

    @field_validator("functions")
    @classmethod
    def no_functions(cls, value: Any) -> Any:
        if value:
            raise ValueError("this is the form before there were tools: send `tools` and `tool_choice`")
        return value

    def orders(self) -> str:
        """Return the text of the system's and the developer's messages."""
        texts = [m.text() for m in self.messages if m.role in ("system", "developer")]
        return "\n".join(filter(None, texts))

    def instruction(self) -> str:
        """Return the user's last text."""
        return next((m.text() for m in reversed(self.messages) if m.role == "user"), "")

    def observation(self) -> str:
        return ", ".join(self.environment or [])

    def made(self, since: int = 0) -> list[Made]:
        """Return the calls of the messages from the `since`th on, in their order. Raises Refusal."""
        try:
            results = results_of([message.turn() for message in self.messages])
        except Unpaired as error:
            remedy = "Send the assistant message with the call before it, and each call's result once, with its id."
            raise Refusal(400, "invalid", f"{error}.", remedy, param=f"messages[{error.index}].tool_call_id") from None
        return [
            Made(
                one.call(f"messages[{i}].tool_calls[{k}].function.arguments"),
                self.messages[results[i, k]].text() if (i, k) in results else None,
            )
            for i, message in enumerate(self.messages)
            if i >= since
            for k, one in enumerate(message.tool_calls or ())
        ]

    def answered(self) -> list[Made]:
        """Return those with a result since the user last spoke."""
        spoke = max((i for i, m in enumerate(self.messages) if m.role == "user"), default=0)
        return [one for one in self.made(spoke) if one.result is not None]

    def offer(self, own: Sequence[dict[str, Any]] = ()) -> Offer:
        """Return what may be called; the server's `own` tools where the request brings none. Raises Refusal for what is
        not offered, or makes no sense."""
        self.made()
        named = self.tool_choice.function.name if isinstance(self.tool_choice, ToolChoice) else None
        tools = list(self.tools or own)
        if not tools or self.tool_choice == "none":
            raise Refusal(
                400,
                "unsupported",
                "tool_choice is none." if tools else "No tools.",
                "This server writes no prose: give `tools`, with tool_choice auto or required.",
                param="tool_choice" if tools else "tools",
            )
        if named is not None and not (tools := [tool for tool in tools if name_of(tool) == named]):
            what = f"tool_choice names {named[:80]!r}, which is none of the tools."
            raise Refusal(400, "invalid", what, "Name one of them.", param="tool_choice.function.name")
        return Offer(tuple(tools), named is not None or self.tool_choice == "required")


def name_of(tool: Any) -> str | None:
    """Return a tool's name, with or without the wrapper around it; None where it has none."""
    body = tool.get("function", tool) if isinstance(tool, dict) else None
    name = body.get("name") if isinstance(body, dict) else None
    return name if isinstance(name, str) and name else None


@dataclass(frozen=True)
class Answer:
    """All decisions that were made, the call that they came to, or the text. `stopped`: why nothing is called."""

    timed: Sequence[Timed]
    call: Call | None
    content: str | None
    stopped: str | None = None


async def decided(request: ChatRequest, offer: Offer, decide: Decide) -> Answer:
    """Return one call, or why there is none. Raises Refusal and Unavailable."""
    timed = await _decisions(request, offer, decide)
    if (held := timed[-1].held) is not None:
        return Answer(timed, None, held, held)
    call, answered = timed[-1].decision.call, request.answered()
    again = _result(call, answered)
    if call is None or (again is not None and not offer.must):
        result = again or (answered[-1].result if answered else None)
        why = "The model calls nothing." if call is None else f"{call.text()} was called, and its result is known."
        return Answer(timed, None, result or "", why)
    return Answer(timed, call, None)


async def _decisions(request: ChatRequest, offer: Offer, decide: Decide) -> list[Timed]:
    """Decide until there is a call whose result is not known. Where something must be called, a function whose result
    is known is left out: the same question again would get the same answer, for ever."""
    answered, history, timed = request.answered(), [one.text() for one in request.made()], list[Timed]()
    may_be_null = bool(answered) and not offer.must
    while True:
        told = request.instruction(), request.observation(), history, may_be_null, request.orders()
        try:
            timed.append(await decide(offer.tools, *told))
        except RequestError as error:
            code = "context_length_exceeded" if error.about == "messages" else "invalid_request"
            raise Refusal(400, code, error.what, error.remedy, error.about) from None
        call = timed[-1].decision.call
        if call is None or timed[-1].held or not offer.must or _result(call, answered) is None:
            return timed
        offer = offer.without(call.name)
        if not offer.tools:
            return timed


def _result(call: Call | None, answered: Sequence[Made]) -> str | None:
    """Return the result of this very call, the last one."""
    return next((one.result for one in reversed(answered) if one.call == call), None)


def completion(request: ChatRequest, answer: Answer) -> dict[str, Any]:
    """Return the whole answer."""
    calls = _tool_calls(answer)
    message = {"role": "assistant", "content": answer.content, "refusal": None}
    choice = {
        "index": 0,
        "message": {**message, **({"tool_calls": calls} if calls else {})},
        "finish_reason": "tool_calls" if calls else "stop",
        "logprobs": None,
    }
    envelope = _envelope(request, "chat.completion")
    return {**envelope, "choices": [choice], "usage": _usage(answer.timed), "rtcontrol": _extra(answer)}


def chunks(request: ChatRequest, answer: Answer) -> Iterator[str]:
    """Return the answer as server-sent events."""
    envelope, calls = _envelope(request, "chat.completion.chunk"), _tool_calls(answer)

    def event(delta: dict[str, Any], finish: str | None = None, **more: Any) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return f"data: {json.dumps({**envelope, 'choices': [choice], **more}, ensure_ascii=False)}\n\n"

    yield event({"role": "assistant", "content": answer.content, "refusal": None})
    for call in calls:
        yield event({"tool_calls": [{"index": 0, **call}]})
    yield event({}, "tool_calls" if calls else "stop", rtcontrol=_extra(answer))
    if request.stream_options is not None and request.stream_options.include_usage:
        yield f"data: {json.dumps({**envelope, 'choices': [], 'usage': _usage(answer.timed)})}\n\n"
    yield "data: [DONE]\n\n"


def model(name: str, since: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": since, "owned_by": "rtcontrol"}


def _envelope(request: ChatRequest, kind: str) -> dict[str, Any]:
    name = f"chatcmpl-{secrets.token_hex(12)}"
    return {"id": name, "object": kind, "created": int(time.time()), "model": request.model}


def _tool_calls(answer: Answer) -> list[dict[str, Any]]:
    if (call := answer.call) is None:
        return []
    function = {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)}
    return [{"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}]


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


def _extra(answer: Answer) -> dict[str, Any]:
    return {
        "confidence": dict(answer.timed[-1].decision.confidence),
        **timing(answer.timed),
        **({"stopped": answer.stopped} if answer.stopped else {}),
    }
