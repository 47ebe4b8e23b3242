"""What the `openai` client libraries send to `POST /v1/chat/completions`, and what a decision is told of it.

The last user message is the instruction; system messages go before it for a model that was not trained on the tools,
and are left out for one that was. Earlier calls, each with its result, are the history; `environment` (a field of our
own, a list of strings) is the observation; `include_content_head` (SimpleTool's) asks for what the model says beside
its call. A `response_format` with a JSON schema is one more tool, whose arguments are the answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator, model_validator

from rtcontrol.gateway import body
from rtcontrol.gateway.access import Refusal
from rtcontrol.gateway.errors import RequestError, name_of
from rtcontrol.models.call import Call
from rtcontrol.models.conversation import Made, Turn, Unpaired, results_of
from rtcontrol_client.wire.errors import WireError
from rtcontrol_client.wire.limits import LIMITS, check_value

FORMAT = "response_format.json_schema"
TEXTS = ("text", "input_text", "output_text", "refusal")  # parts that are text
THOUGHTS = ("thinking", "reasoning")  # of an answer, whose words are not shown
# Of other APIs, what says how to answer, and where it stands here.
FORMS = ("format", "json_schema", "grammar", "structured_outputs")
GUIDED = ("guided_json", "guided_choice", "guided_regex", "guided_grammar")
ELSEWHERE = {
    "system": "Send it as a message with the role `system`.",
    **dict.fromkeys(("tool_config", "toolConfig"), "Send `tool_choice`."),
    **dict.fromkeys((*FORMS, *GUIDED), "Send a `response_format` of type json_schema."),
}
# `any` is Anthropic's and Mistral's word.
MODES = {"none": "none", "auto": "auto", "required": "required", "any": "required"}


class Function(BaseModel):
    """`arguments` are JSON in a string (an object is taken, too: Ollama's clients send one). Llama calls them
    `parameters`, LangChain `args`, Anthropic `input`."""

    name: str
    arguments: str | None = Field(None, validation_alias=AliasChoices("arguments", "parameters", "args", "input"))

    @field_validator("arguments", mode="before")
    @classmethod
    def _as_text(cls, given: Any) -> Any:
        return json.dumps(given, ensure_ascii=False) if isinstance(given, dict) else given


class ToolCall(BaseModel):
    """Its function, or in its place what is in that."""

    id: str | None = None
    function: Function

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, given: Any) -> Any:
        bare = isinstance(given, dict) and "function" not in given and "name" in given
        return {"id": given.get("id"), "function": given} if bare else given

    def call(self, place: str) -> Call:
        """Raises Refusal, naming the `place`, for arguments that are no JSON object."""
        given = self.function.arguments
        try:
            found = {} if given is None or not given.strip() else body.DECODER.decode(given)
            check_value(found, LIMITS)
        except (ValueError, RecursionError, WireError):
            found = 0
        if found is not None and not isinstance(found, dict):
            raise Refusal(400, "invalid", f"{place} is no JSON object.", "Send the call as it was made.", param=place)
        return Call(self.function.name, found or {})


class ContentPart(BaseModel):
    type: str
    text: str | None = None
    refusal: str | None = None


class ChatMessage(BaseModel):
    """`function_call`, and the role `function`, are the form before there were ids. Ollama's clients call a result's
    `name` `tool_name`."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: Function | None = None
    tool_call_id: str | None = None
    name: str | None = Field(None, validation_alias=AliasChoices("name", "tool_name"))

    def text(self) -> str:
        if not isinstance(self.content, list):
            return self.content or ""
        return "\n".join(p.text or p.refusal or "" for p in self.content)

    def called(self) -> dict[str, ToolCall]:
        """The calls, by their places in the message."""
        found = {f"tool_calls[{k}].function": one for k, one in enumerate(self.tool_calls or ())}
        return found or ({} if self.function_call is None else {"function_call": ToolCall(function=self.function_call)})

    def turn(self) -> Turn:
        result = (self.tool_call_id or None, self.name) if self.role in ("tool", "function") else None
        return Turn([(c.id or None, c.function.name) for c in self.called().values()], result, self.role == "user")


class StreamOptions(BaseModel):
    include_usage: bool = False


class ToolChoice(BaseModel):
    """What a request's `tool_choice` comes to: `names` are the tools that it leaves, None: all of them; `param` is
    where they stand."""

    mode: Literal["none", "auto", "required"]
    names: list[str] | None = None
    param: str = "tool_choice"

    @classmethod
    def read(cls, given: Any) -> dict[str, Any]:
        """Chat completions' forms, the Responses API's and Anthropic's. Raises ValueError."""
        kind = given.get("type") if isinstance(given, dict) else given
        if (
            isinstance(kind, str)
            and kind in MODES
            and (given == kind or set(given) <= {"type", "disable_parallel_tool_use"})
        ):
            return {"mode": MODES[kind]}
        if kind in ("function", "tool"):
            name, param = _named(given, "tool_choice")
            return {"mode": "required", "names": [name], "param": param}
        if kind == "allowed_tools":
            inside = "allowed_tools" in given
            told = given["allowed_tools"] if inside else given
            mode, tools = (told.get("mode"), told.get("tools")) if isinstance(told, dict) else (None, None)
            if mode in ("auto", "required") and isinstance(tools, list):
                param = "tool_choice.allowed_tools.tools" if inside else "tool_choice.tools"
                names = [_named(tool, f"{param}[{i}]")[0] for i, tool in enumerate(tools)]
                return {"mode": mode, "names": names, "param": param}
            raise ValueError("allowed_tools has a mode, auto or required, and a list of tools")
        known = '{"type": "function", "function": {"name": ...}} and {"type": "allowed_tools", ...}'
        raise ValueError(f"it is none of none, auto, required, {known}")


def _named(given: Any, param: str) -> tuple[str, str]:
    """The name in `{"type": "function", "function": {"name"}}`, or in the shorter `{"type", "name"}`; and its place."""
    inside = isinstance(given, dict) and "function" in given
    named, place = (given["function"], f"{param}.function.name") if inside else (given, f"{param}.name")
    name = named.get("name") if isinstance(named, dict) else None
    if not isinstance(name, str):
        raise ValueError(f"{place} is no string: which function is meant is not said")
    return name, place


class JSONSchema(BaseModel):
    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(BaseModel):
    type: str
    json_schema: JSONSchema | None = None


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

    def param(self, mistake: RequestError) -> str:
        """The field of the request that a mistake is about."""
        if mistake.tool is None:
            return mistake.about
        place, parameter = self.places[mistake.tool], mistake.parameter
        inside = ".schema" if place == FORMAT else ".function.parameters"
        return place if parameter is None else f"{place}{inside}.properties.{parameter}"


class ChatRequest(BaseModel):
    model_config = ConfigDict(extra="allow")

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=256)]
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = 1
    response_format: ResponseFormat | None = None
    functions: Any = None
    function_call: Any = None
    environment: list[str] | None = None
    include_content_head: bool | None = False

    def orders(self) -> str:
        """Return the text of the system's and the developer's messages."""
        texts = [m.text() for m in self.messages if m.role in ("system", "developer")]
        return "\n".join(filter(None, texts))

    def instruction(self) -> str:
        """Return the user's last text."""
        return next((m.text() for m in reversed(self.messages) if m.role == "user"), "")

    def observation(self) -> str:
        return ", ".join(self.environment or [])

    @field_validator("tool_choice", mode="before")
    @classmethod
    def _choice(cls, given: Any) -> Any:
        return given if given is None else ToolChoice.read(given)

    def made(self, since: int = 0) -> list[Made]:
        """The calls of the messages from the `since`th on, in their order. Raises Refusal."""
        try:
            results = results_of([message.turn() for message in self.messages])
        except Unpaired as error:
            place = "tool_call_id" if self.messages[error.index].role == "tool" else "name"
            remedy = "Send the assistant message with the call before it, and each call's result once, with its id."
            raise Refusal(400, "invalid", f"{error}.", remedy, param=f"messages[{error.index}].{place}") from None
        return [
            Made(
                one.call(f"messages[{i}].{place}.arguments"),
                self.messages[results[i, k]].text() if (i, k) in results else None,
            )
            for i, message in enumerate(self.messages)
            if i >= since
            for k, (place, one) in enumerate(message.called().items())
        ]

    def answered(self) -> list[Made]:
        """Those with a result since the user last spoke."""
        spoke = max((i for i, m in enumerate(self.messages) if m.role == "user"), default=0)
        return [one for one in self.made(spoke) if one.result is not None]

    def offer(self, own: Sequence[dict[str, Any]] = ()) -> Offer:
        """What may be called; the server's `own` tools where the request brings neither tools nor a format, or asks
        for a call all the same. Raises Refusal for what is not offered, or makes no sense."""
        self._check()
        choice = self.tool_choice or ToolChoice(mode="auto")
        must = choice.mode == "required"
        wanted = self.response_format
        form = wanted.json_schema if wanted is not None and wanted.type == "json_schema" else None
        given = self.tools or (own if form is None or must or choice.names is not None else ())
        tools = {f"tools[{i}]": tool for i, tool in enumerate(given)}
        names = [name_of(tool) for tool in given]
        if choice.mode == "none":
            tools = {}
        elif choice.names is not None:
            tools = _chosen(tools, choice.names, choice.param)
        answer = None if must else form
        if answer is not None:
            if answer.name in names:
                raise Refusal(
                    400, "invalid", f"A tool is called {answer.name!r}, too.", "Rename one.", param=f"{FORMAT}.name"
                )
            about = answer.description or "Answer with this."
            function = {"name": answer.name, "description": about, "parameters": answer.schema_}
            tools[FORMAT] = {"type": "function", "function": function}
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
        self.made()
        if old := [field for field in ("functions", "function_call") if getattr(self, field)]:
            what = f"{old[0]} is the form before there were tools."
            raise Refusal(400, "unsupported", what, "Send `tools` and `tool_choice`.", param=old[0])
        if other := [field for field in ELSEWHERE if (self.model_extra or {}).get(field)]:
            what = f"`{other[0]}` is a field of another API, and is not read."
            raise Refusal(400, "unsupported", what, ELSEWHERE[other[0]], param=other[0])
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
                if part.type in THOUGHTS and message.role == "assistant":
                    continue
                if part.type not in TEXTS:
                    what = f"A content part of type {part.type[:40]!r}."
                    place = f"messages[{i}].content[{k}].type"
                    raise Refusal(400, "unsupported", what, "This model reads text only.", param=place)
                if part.text is None and part.refusal is None:
                    place = f"messages[{i}].content[{k}]"
                    raise Refusal(400, "invalid", f"{place} has nothing to read.", "Fill its `text`.", param=place)


def _chosen(tools: dict[str, dict[str, Any]], names: list[str], param: str) -> dict[str, dict[str, Any]]:
    """Of the tools those named."""
    if unknown := [name for name in names if name not in map(name_of, tools.values())]:
        what = f"tool_choice names {unknown[0][:80]!r}, which is none of the tools."
        raise Refusal(400, "invalid", what, "Name one of them.", param=param)
    return {place: tool for place, tool in tools.items() if name_of(tool) in names}
