"""What the `openai` client libraries send to `POST /v1/chat/completions`, and what a decision is told of it.

System messages and the last user message are the instruction; earlier tool calls, each with its result, the history;
`environment` (a field of our own, a list of strings) the observation; `include_content_head` (SimpleTool's) asks for
what the model says beside its call. A `response_format` with a JSON schema is one more tool, whose arguments are the
answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from rtcontrol.gateway.access import Refusal
from rtcontrol.gateway.mistake import Mistake, name_of
from rtcontrol.models.call import Call

FORMAT = "response_format.json_schema"


class Function(BaseModel):
    name: str
    arguments: str = "{}"


class ToolCall(BaseModel):
    id: str | None = None
    function: Function

    def call(self) -> Call:
        """Arguments that are no JSON object are left out."""
        try:
            arguments = json.loads(self.function.arguments)
        except ValueError:
            arguments = None
        return Call(self.function.name, arguments if isinstance(arguments, dict) else {})


class ContentPart(BaseModel):
    type: str
    text: str = ""


class ChatMessage(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    def text(self) -> str:
        return self.content or "" if not isinstance(self.content, list) else "\n".join(p.text for p in self.content)


class StreamOptions(BaseModel):
    include_usage: bool = False


class Named(BaseModel):
    name: str


class NamedTool(BaseModel):
    type: Literal["function"]
    function: Named


class AllowedTools(BaseModel):
    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class SomeTools(BaseModel):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class JSONSchema(BaseModel):
    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(BaseModel):
    type: str
    json_schema: JSONSchema | None = None


@dataclass(frozen=True)
class Made:
    """A call of this conversation, and its result, where there is one."""

    call: Call
    result: str | None

    def text(self) -> str:
        return self.call.text() if self.result is None else f"{self.call.text()} -> {self.result}"


@dataclass(frozen=True)
class Offer:
    """What may be called: the tools, where each stands in the request, which of them is the `answer` (its arguments are
    the message's content), and whether one of them `must` be called."""

    tools: tuple[dict[str, Any], ...]
    places: tuple[str, ...]
    answer: str | None
    must: bool

    def without(self, name: str) -> Offer:
        kept = [i for i, tool in enumerate(self.tools) if name_of(tool) != name]
        return Offer(tuple(self.tools[i] for i in kept), tuple(self.places[i] for i in kept), self.answer, self.must)

    def param(self, mistake: Mistake) -> str:
        """The field of the request that a mistake is about."""
        if mistake.tool is None:
            return mistake.about
        place, parameter = self.places[mistake.tool], mistake.parameter
        inside = ".schema" if place == FORMAT else ".function.parameters"
        return place if parameter is None else f"{place}{inside}.properties.{parameter}"


class ChatRequest(BaseModel):
    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=256)]
    tools: Annotated[list[dict[str, Any]], Field(max_length=64)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | SomeTools | None = None
    parallel_tool_calls: bool | None = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = 1
    response_format: ResponseFormat | None = None
    environment: list[str] | None = None
    include_content_head: bool | None = False

    def instruction(self) -> str:
        """The standing orders and the last thing the user said."""
        standing = [m.text() for m in self.messages if m.role in ("system", "developer")]
        said = [m.text() for m in self.messages if m.role == "user"][-1:]
        return "\n".join(t for t in (*standing, *said) if t)

    def observation(self) -> str:
        return ", ".join(self.environment or [])

    def made(self, since: int = 0) -> list[Made]:
        """The calls of the messages from the `since`th on, in their order."""
        results = {m.tool_call_id: m.text() for m in self.messages if m.role == "tool"}
        return [Made(c.call(), results.get(c.id) if c.id else None) for c in self._calls(since)]

    def answered(self) -> list[Made]:
        """Those with a result since the user last spoke."""
        spoke = max((i for i, m in enumerate(self.messages) if m.role == "user"), default=0)
        return [one for one in self.made(spoke) if one.result is not None]

    def _calls(self, since: int = 0) -> Iterator[ToolCall]:
        for message in self.messages[since:]:
            yield from message.tool_calls or ()

    def offer(self) -> Offer:
        """What may be called. Raises Refusal for what is not offered, or makes no sense."""
        self._check()
        tools = {f"tools[{i}]": tool for i, tool in enumerate(self.tools or [])}
        names = [name_of(tool) for tool in tools.values()]
        choice = self.tool_choice or "auto"
        must = choice == "required" or isinstance(choice, NamedTool)
        if choice == "none":
            tools = {}
        elif isinstance(choice, NamedTool):
            tools = _chosen(tools, [choice.function.name], "tool_choice.function.name")
        elif isinstance(choice, SomeTools):
            wanted, must = (
                [t.function.name for t in choice.allowed_tools.tools],
                choice.allowed_tools.mode == "required",
            )
            tools = _chosen(tools, wanted, "tool_choice.allowed_tools.tools")
        answer = None if self.response_format is None or must else self.response_format.json_schema
        if answer is not None:
            if answer.name in names:
                raise Refusal(
                    400, "invalid", f"A tool is called {answer.name!r}, too.", "Rename one.", param=f"{FORMAT}.name"
                )
            about = answer.description or "Answer with this."
            body = {"name": answer.name, "description": about, "parameters": answer.schema_}
            tools[FORMAT] = {"type": "function", "function": body}
        if not tools:
            raise Refusal(
                400,
                "unsupported",
                "tool_choice is none." if names else "No tools.",
                "This server writes no prose: give `tools`, with tool_choice auto or required, or a `response_format` "
                "of type json_schema.",
                param="tool_choice" if names else "tools",
            )
        return Offer(
            tuple(tools.values()), tuple(tools), None if answer is None else answer.name, must or answer is not None
        )

    def _check(self) -> None:
        if self.n not in (None, 1):
            raise Refusal(400, "unsupported", f"n = {self.n}.", "Ask for one choice.", param="n")
        kind = "text" if self.response_format is None else self.response_format.type
        if kind not in ("text", "json_schema"):
            what = f"response_format is {kind[:40]!r}."
            remedy = "Send `json_schema` with the schema, or describe the answer as a tool."
            raise Refusal(400, "unsupported", what, remedy, param="response_format.type")
        if kind == "json_schema" and self.response_format is not None and self.response_format.json_schema is None:
            raise Refusal(400, "invalid", "A response_format without json_schema.", "Give its schema.", param=FORMAT)
        known = {call.id for call in self._calls()}
        for i, message in enumerate(self.messages):
            for k, part in enumerate(message.content if isinstance(message.content, list) else ()):
                if part.type != "text":
                    what = f"A content part of type {part.type[:40]!r}."
                    place = f"messages[{i}].content[{k}].type"
                    raise Refusal(400, "unsupported", what, "This model reads text only.", param=place)
            if message.role == "tool" and message.tool_call_id not in known:
                what = f"messages[{i}] is the result of no call of this conversation."
                remedy = "Send the assistant message with its tool_calls before it, and the call's id with it."
                raise Refusal(400, "invalid", what, remedy, param=f"messages[{i}].tool_call_id")


def _chosen(tools: dict[str, dict[str, Any]], names: list[str], param: str) -> dict[str, dict[str, Any]]:
    """Of the tools those named."""
    if unknown := [name for name in names if name not in map(name_of, tools.values())]:
        what = f"tool_choice names {unknown[0][:80]!r}, which is none of the tools."
        raise Refusal(400, "invalid", what, "Name one of them.", param=param)
    return {place: tool for place, tool in tools.items() if name_of(tool) in names}
