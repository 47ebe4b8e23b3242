"""Chats in OpenAI's format, one a line: `messages` with calls, and `tools`. Mobile Actions is such a set."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.conversation import ConversationTurn, Made, Unpaired, results_of
from rtcontrol.models.data.sample import Dropped, Sample, Unusable
from rtcontrol.models.data.types import arguments_of, list_of, tool
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.definition import definition

CONTEXT = ("system", "developer")
RESULT = ("tool", "function")
TEXTS = ("text", "input_text", "output_text")
WRITTEN = ("<tool_call>", "<functioncall>", "[TOOL_CALLS]")  # starts a call in an answer's text
SHAPE = "a line that is not a chat with tools"
Message = Mapping[str, Any]


def chat(value: Mapping[str, Any], source: str, where: str) -> Iterator[Sample | Dropped]:
    """Yield a sample for each answer with calls; the calls before it and their results are its history.

    Arguments, tools, calls and messages may be values or their JSON. An answer of `weight` 0 is history only. A call
    after an answer in words is dropped, since the prompt does not show those words. Raises Unusable for a chat without
    a call, and where no further one can be read.
    """
    messages, tools = list_of(value["messages"], "messages"), [_tool(each) for each in list_of(value["tools"], "tools")]
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in tools}
    results, weight = _results(messages), _weight(value)
    calls: list[list[Call]] = []
    context: list[str] = []
    query: list[str] = []
    any_call = in_words = False
    for index, message in enumerate(messages):
        role, content = message["role"], message.get("content")
        calls.append([_call(body, schemas) for _, body in _bodies(message)])
        if role in CONTEXT:
            context.append(_text(content))
        elif role == "user":
            follows = index > 0 and messages[index - 1]["role"] in ("user", *CONTEXT)
            query = [*query, _text(content)] if follows else [_text(content)]
        elif role == "assistant":
            any_call |= bool(calls[index])
            message_weight = weight * _weight(message)
            if not calls[index]:
                _check_words(content)
                in_words |= bool(message_weight)
                continue
            if not message_weight:
                yield Dropped("an answer of weight 0", where, f"messages[{index}]", source)
                continue
            if in_words:
                raise Unusable("a call in a later turn")
            if not any(map(str.strip, query)):
                raise Unusable("no query")
            row_id = str(value.get("id", where.rpartition("/")[2]))
            texts = "\n".join(query), "\n".join(filter(None, context)).strip()
            shown, history = tuple(calls[index]), _history(messages, calls, results, index)
            yield Sample(row_id, source, where, *texts, tuple(tools), shown, history, message_weight)
        elif role not in RESULT:
            raise Unusable("a message of another role", str(role))
    if not any_call:
        raise Unusable("no call")


def _history(
    messages: Sequence[Message], calls: Sequence[Sequence[Call]], results: Mapping[tuple[int, int], int], before: int
) -> tuple[str, ...]:
    """Return the texts of the calls before this message, with those results that are before it too."""
    history = []
    for index in range(before):
        for k, call in enumerate(calls[index]):
            end = results.get((index, k), before)
            result = _result(messages[end].get("content")) if end < before else None
            history.append(Made(call, result).text())
    return tuple(history)


def _bodies(message: Message) -> list[tuple[Any, Mapping[str, Any]]]:
    """Return id and function of each call."""
    calls = message.get("tool_calls")
    return [(call.get("id"), call.get("function", call)) for call in list_of(calls, "tool_calls")] if calls else []


def _call(body: Mapping[str, Any], schemas: Mapping[str, Any]) -> Call:
    return Call(body["name"], _without_nulls(arguments_of(body.get("arguments")), schemas.get(body["name"], {})))


def _without_nulls(value: Any, schema: Any) -> Any:
    """Drop nulls of arguments that may be left out, at all depths: strict mode writes them so, and so do tables, whose
    columns include those of other tools."""
    if not isinstance(schema, Mapping):
        return value
    if isinstance(value, list):
        return [_without_nulls(item, schema.get("items", {})) for item in value]
    if isinstance(value, Mapping):  # of alternatives that which has all that it requires
        arms = [arm for key in ("anyOf", "oneOf") for arm in schema.get(key, ())]
        schema = next((a for a in arms if all(value.get(k) is not None for k in a.get("required", ()))), schema)
    if not isinstance(value, Mapping) or "properties" not in schema:
        return value
    kept, parts = schema.get("required", ()), schema["properties"]
    return {k: _without_nulls(v, parts.get(k, {})) for k, v in value.items() if v is not None or k in kept}


def _results(messages: Sequence[Message]) -> dict[tuple[int, int], int]:
    """Return the message that has the result of each call, by (message, number in it)."""
    turns = []
    for message in messages:
        calls = [(call_id or None, str(body["name"])) for call_id, body in _bodies(message)]
        result = (message.get("tool_call_id") or None, message.get("name")) if message["role"] in RESULT else None
        turns.append(ConversationTurn(calls, result, message["role"] == "user"))
    try:
        return results_of(turns)
    except Unpaired as error:
        raise Unusable("a result of no call before it", f"messages[{error.index}]") from None


def _weight(of: Mapping[str, Any]) -> float:
    weight = of.get("weight")
    if weight is None:
        return 1.0
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
        raise Unusable("a weight that is not a number, zero or above", repr(weight)[:80])
    return float(weight)


def _tool(value: Any) -> dict[str, Any]:
    try:
        body = definition(_columns(value))
    except UserError as error:
        raise Unusable("a tool that cannot be decoded", error.what) from None
    return tool(body.name, body.description, body.schema)


def _columns(value: Any) -> Any:
    """Return a value without the nulls of a table, whose columns include those of other tools."""
    if isinstance(value, Mapping):
        return {k: _columns(v) for k, v in value.items() if v is not None}
    return value


def _check_words(content: Any) -> None:
    """Raise Unusable for an answer with calls written in its text."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    if any(part.get("type") not in (*TEXTS, "refusal", "thinking", "reasoning") for part in parts):
        raise Unusable("a message that is not all text")
    if any(mark in str(part.get("text")) for part in parts for mark in WRITTEN):
        raise Unusable("calls that are written in an answer's text")


def _result(content: Any) -> str:
    """Return a call's result: a text, as a message has it, or the JSON of any other value."""
    typed = isinstance(content, list) and all(isinstance(part, Mapping) and "type" in part for part in content)
    if content is None or typed or isinstance(content, str):
        return _text(content)
    return json.dumps(content, ensure_ascii=False)


def _text(content: Any) -> str:
    """Return a message's text: of a string, a list of parts of text, or nothing."""
    if content is None or isinstance(content, str):
        return content or ""
    if any(part.get("type") not in TEXTS for part in content):
        raise Unusable("a message that is not all text")
    return "\n".join(part["text"] for part in content)
