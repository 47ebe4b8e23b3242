"""Decides by a chat model over HTTP: OpenAI's `/v1/chat/completions` with tools, as any server of chat models has it
(`chat:URL#NAME`)."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rtcontrol.hosts.deciders import SteppedDecider
from rtcontrol.hosts.protocol import DecisionLost, DecisionRequest
from rtcontrol.hosts.remote_api import LONGEST_S, address, posted, read_answer, time_of
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.web import WebAnswer, WebClient

CHAT = "chat"
ROUTE = "/chat/completions"
UNNAMED = re.compile(r"[^a-zA-Z0-9_-]")
NAME_LENGTH = 64
NOT_UNDERSTOOD = "not_understood"
NO_CALL = "None of the other functions is what was asked for, or it is not clear which, or a value is out of range."
TOLD = (
    "You map what a person says to a machine to exactly one function call. Call one function, with the values that "
    "were said. Where no function is plainly meant, call {none}. Never guess."
)
TOLD_ALWAYS = "Call exactly one function for what is asked, with the values that are said."


class Unreadable(ValueError):
    """An answer that is no chat completion with calls."""


def named_tools(tools: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The tools with names that the API takes, and what each stands for: letters, digits, `_` and `-`, 64 at most."""
    names: dict[str, str] = {}
    found = []
    for tool in tools:
        body = dict(tool.get("function", tool))
        own = str(body["name"])
        name, n = UNNAMED.sub("_", own)[:NAME_LENGTH], 1
        while name in names:
            n += 1
            name = f"{UNNAMED.sub('_', own)[: NAME_LENGTH - 4]}_{n}"
        names[name] = own
        found.append({"type": "function", "function": {**body, "name": name}})
    return names, found


def read_calls(said: Any, names: Mapping[str, str]) -> tuple[tuple[Call, ...], Mapping[str, Any]]:
    """The calls, and the tokens used; arguments may be a JSON text or its object. Raises Unreadable."""
    try:
        message = said["choices"][0]["message"]
        calls = [_call(one["function"], names) for one in message.get("tool_calls") or []]
        used = said.get("usage")
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        raise Unreadable from None
    return tuple(calls), used if isinstance(used, Mapping) else {}


def _call(function: Mapping[str, Any], names: Mapping[str, str]) -> Call:
    arguments = function.get("arguments") or "{}"
    read = json.loads(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(read, dict):
        raise TypeError
    return Call(names.get(function["name"], str(function["name"])), read)


@dataclass(frozen=True)
class ChatSource:
    """`url` is that of the route, `model` the name that is asked for. With `allow_null` it may say that no call is
    meant."""

    url: str
    model: str
    tools: tuple[dict[str, Any], ...]
    allow_null: bool = False
    key: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, name: str, tools: Sequence[dict[str, Any]], allow_null: bool = False) -> ChatSource:
        """From `chat:URL#MODEL`; the key is in the environment. Raises UserError."""
        url, model, key = address(name, ROUTE)
        return cls(url, model or "default", tuple(tools), allow_null, key)

    def build(self) -> ChatDecider:
        return ChatDecider(self)


class ChatDecider(SteppedDecider):
    """Asks an endpoint, on a connection that is kept open and a thread of its own; one decision at a time."""

    def __init__(self, source: ChatSource) -> None:
        self._source = source
        self._names, tools = named_tools(source.tools)
        self._none = NOT_UNDERSTOOD
        while self._none in self._names:
            self._none += "_"
        if source.allow_null:
            empty = {"type": "object", "properties": {}}
            tools.append(
                {"type": "function", "function": {"name": self._none, "description": NO_CALL, "parameters": empty}}
            )
        told = TOLD.format(none=self._none) if source.allow_null else TOLD_ALWAYS
        self._system = {"role": "system", "content": told}
        self._same = {"model": source.model, "tools": tools, "tool_choice": "required", "temperature": 0}
        self._web = WebClient(source.url, {"authorization": f"Bearer {source.key}"} if source.key is not None else {})

    def decide_in_steps(self, request: DecisionRequest) -> Generator[None, None, Decision]:
        """Raises DecisionLost. Where it is given up, the request is closed."""
        calls = f"Calls so far: {'; '.join(request.history)}" if request.history else ""
        content = "\n\n".join(text for text in (request.instruction, calls, request.observation) if text)
        body = {**self._same, "messages": [self._system, {"role": "user", "content": content}]}
        return self._read((yield from posted(self._web, body, time_of(request) or LONGEST_S)))

    def _read(self, answer: WebAnswer) -> Decision:
        found = read_answer(answer)
        try:
            calls, used = read_calls(found, self._names)
        except Unreadable:
            raise DecisionLost("malformed", "the answer is no chat completion with a call") from None
        if len(calls) != 1:
            what = "it wrote words in place of a call" if not calls else f"it made {len(calls)} calls in place of one"
            raise DecisionLost("malformed", what)
        call = None if calls[0].name == self._none and self._source.allow_null else calls[0]
        tokens = used.get("prompt_tokens")
        return replace(Decision(call), forward_passes=1, tokens=tokens if type(tokens) is int and tokens >= 0 else 0)

    def info(self) -> dict[str, Any]:
        source = self._source
        return {"engine": CHAT, "model": source.model, "url": source.url, "tools": len(source.tools)}
