"""What the `openai` client libraries send to `POST /v1/chat/completions`, and what a decision reads of it.

The last user message is the instruction; system messages go before it for a model that was not trained on the tools,
and are left out for one that was. Earlier calls, each with its result, are the history; `environment` (our extension,
a list of strings) is the observation. A `response_format` with a JSON schema is one more tool, whose arguments are the
answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rtcontrol.gateway import body
from rtcontrol.gateway.access import Refusal
from rtcontrol.gateway.decide import RequestError
from rtcontrol.models.call import Call
from rtcontrol.models.conversation import Made, Turn, Unpaired, results_of
from rtcontrol_client.wire.errors import WireError
from rtcontrol_client.wire.limits import LIMITS, check_value

FORMAT = "response_format.json_schema"


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
    type: str
    text: str | None = None
    refusal: str | None = None


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


class JSONSchema(BaseModel):
    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(BaseModel):
    type: str
    json_schema: JSONSchema | None = None


@dataclass(frozen=True)
class Offer:
    """What may be called: the tools, which of them is the `answer` (its arguments are the message's content), and
    whether one of them `must` be called."""

    tools: tuple[dict[str, Any], ...]
    answer: str | None
    must: bool

    def without(self, name: str) -> Offer:
        return Offer(tuple(tool for tool in self.tools if name_of(tool) != name), self.answer, self.must)

    def param(self, error: RequestError) -> str:
        """Return the field of the request that an error is about."""
        only_format = error.about == "tools" and self.answer is not None and len(self.tools) == 1
        return FORMAT if only_format else error.about


class ChatRequest(BaseModel):
    model_config = ConfigDict(extra="allow")

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=256)]
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = 1
    response_format: ResponseFormat | None = None
    functions: Any = None
    environment: list[str] | None = None

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
        """Return what may be called; the server's `own` tools where the request brings neither tools nor a format, or
        asks for a call all the same. Raises Refusal for what is not offered, or makes no sense."""
        self._check()
        named = self.tool_choice.function.name if isinstance(self.tool_choice, ToolChoice) else None
        must = named is not None or self.tool_choice == "required"
        wanted = self.response_format
        form = wanted.json_schema if wanted is not None and wanted.type == "json_schema" else None
        tools = list(self.tools or (own if form is None or must else ()))
        names = [name_of(tool) for tool in tools]
        if self.tool_choice == "none":
            tools = []
        elif named is not None:
            if named not in names:
                what = f"tool_choice names {named[:80]!r}, which is none of the tools."
                raise Refusal(400, "invalid", what, "Name one of them.", param="tool_choice.function.name")
            tools = [tool for tool in tools if name_of(tool) == named]
        answer = None if must else form
        if answer is not None:
            if answer.name in names:
                raise Refusal(
                    400, "invalid", f"A tool is called {answer.name!r}, too.", "Rename one.", param=f"{FORMAT}.name"
                )
            about = answer.description or "Answer with this."
            function = {"name": answer.name, "description": about, "parameters": answer.schema_}
            tools.append({"type": "function", "function": function})
        if not tools:
            raise Refusal(
                400,
                "unsupported",
                "tool_choice is none." if names else "No tools.",
                "This server writes no prose: give `tools`, with tool_choice auto or required, or a `response_format` "
                "of type json_schema.",
                param="tool_choice" if names else "tools",
            )
        return Offer(tuple(tools), None if answer is None else answer.name, must or answer is not None)

    def _check(self) -> None:
        self.made()
        if self.functions:
            what = "functions is the form before there were tools."
            raise Refusal(400, "unsupported", what, "Send `tools` and `tool_choice`.", param="functions")
        if self.n not in (None, 1):
            raise Refusal(400, "unsupported", f"n = {self.n}.", "Ask for one choice.", param="n")
        kind = "text" if self.response_format is None else self.response_format.type
        if kind not in ("text", "json_schema"):
            what = f"response_format is {kind[:40]!r}."
            remedy = "Send `json_schema` with the schema, or describe the answer as a tool."
            raise Refusal(400, "unsupported", what, remedy, param="response_format.type")
        if kind == "json_schema" and self.response_format is not None and self.response_format.json_schema is None:
            raise Refusal(400, "invalid", "A response_format without json_schema.", "Give its schema.", param=FORMAT)
        for i, message in enumerate(self.messages):
            for k, part in enumerate(message.content if isinstance(message.content, list) else ()):
                if part.type not in ("text", "refusal"):
                    what = f"A content part of type {part.type[:40]!r}."
                    place = f"messages[{i}].content[{k}].type"
                    raise Refusal(400, "unsupported", what, "This model reads text only.", param=place)
                if part.text is None and part.refusal is None:
                    place = f"messages[{i}].content[{k}]"
                    raise Refusal(400, "invalid", f"{place} has nothing to read.", "Fill its `text`.", param=place)


def name_of(tool: Any) -> str | None:
    """Return a tool's name, with or without the wrapper around it; None where it has none."""
    body = tool.get("function", tool) if isinstance(tool, dict) else None
    name = body.get("name") if isinstance(body, dict) else None
    return name if isinstance(name, str) and name else None
