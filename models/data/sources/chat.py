"""Chats, one a line: `messages` with calls, and `tools`, in OpenAI's format. Mobile Actions is such a set."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.conversation import ConversationTurn, Made, Unpaired, results_of
from rtcontrol.models.data.sample import Dropped, Sample, Unusable
from rtcontrol.models.data.sources import files
from rtcontrol.models.data.written import arguments_of, listed, tool
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.definition import definition

CONTEXT = ("system", "developer")
RESULT = ("tool", "function")
TEXTS = ("text", "input_text", "output_text")
WRITTEN = ("<tool_call>", "<functioncall>", "[TOOL_CALLS]")  # begins a call in an answer's text
SHAPE = "a line that is no chat with tools"


def samples(path: Path, source: str, where_is: Mapping[str, Any] | None = None) -> Iterator[Sample | Dropped]:
    """A sample of each answer that calls something, with the calls before it, and their results, as its history.
    Arguments, tools, calls and messages may be values or their JSON.

    An answer of `weight` 0 teaches nothing, and is part of the history. A call behind an answer in words is none to
    learn: those words are not shown. Lines whose keys are others than `where_is` asks for are passed over, being of
    another part of the set.
    """
    wanted = (
        (where, value)
        for where, value in files.items(path)
        if not isinstance(value, Mapping) or all(value.get(k) == v for k, v in (where_is or {}).items())
    )
    return files.samples(wanted, lambda value, where: chat(value, source, where), source, SHAPE)


def chat(value: Mapping[str, Any], source: str, where: str) -> Iterator[Sample | Dropped]:
    """Of one chat. Raises Unusable where there is none, or no further one."""
    messages, tools = listed(value["messages"], "messages"), [_tool(one) for one in listed(value["tools"], "tools")]
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in tools}
    results, weight = _results(messages), _weight(value)
    calls: list[list[Call]] = []
    context: list[str] = []
    asked: list[str] = []
    found, over = 0, False
    for at, message in enumerate(messages):
        role = message["role"]
        calls.append([_call(body, schemas) for _, body in _bodies(message)])
        if role in CONTEXT:
            context.append(_text(message.get("content")))
        elif role == "user":
            said = _text(message.get("content"))
            asked = [*asked, said] if at and messages[at - 1]["role"] in ("user", *CONTEXT) else [said]
        elif role == "assistant":
            own = weight * _weight(message)
            if not own and calls[at]:
                yield Dropped("an answer of weight 0", where, f"messages[{at}]", source)
            elif not calls[at]:
                _check_words(message.get("content"))
                over = over or bool(own)
            elif over:
                raise Unusable("a call in a later turn")
            elif not any(map(str.strip, asked)):
                raise Unusable("no query")
            else:
                history = [
                    Made(call, _result(messages[end].get("content")) if (end := results.get((i, k), at)) < at else None)
                    for i in range(at)
                    for k, call in enumerate(calls[i])
                ]
                yield Sample(
                    str(value.get("id", where.rpartition("/")[2])),
                    source,
                    where,
                    "\n".join(asked),
                    "\n".join(filter(None, context)).strip(),
                    tuple(tools),
                    tuple(calls[at]),
                    tuple(made.text() for made in history),
                    weight=own,
                )
            found += bool(calls[at])
        elif role not in RESULT:
            raise Unusable("a message of another role", str(role))
    if not found:
        raise Unusable("no call")


def _bodies(message: Mapping[str, Any]) -> list[tuple[Any, Mapping[str, Any]]]:
    """Id and function of each call."""
    calls = message.get("tool_calls")
    return [(call.get("id"), call.get("function", call)) for call in listed(calls, "tool_calls")] if calls else []


def _call(body: Mapping[str, Any], schemas: Mapping[str, Any]) -> Call:
    return Call(body["name"], _without_nulls(arguments_of(body.get("arguments")), schemas.get(body["name"], {})))


def _without_nulls(value: Any, schema: Any) -> Any:
    """Null falls where the argument may be left out, in all depths: strict mode's word for that, and in a table
    (written out for tools with other keys) a column that the call does not have."""
    if not isinstance(schema, Mapping):
        return value
    if isinstance(value, list):
        return [_without_nulls(one, schema.get("items", {})) for one in value]
    if isinstance(value, Mapping):  # of alternatives that which has all that it requires
        arms = [arm for key in ("anyOf", "oneOf") for arm in schema.get(key, ())]
        schema = next((a for a in arms if all(value.get(k) is not None for k in a.get("required", ()))), schema)
    if not isinstance(value, Mapping) or "properties" not in schema:
        return value
    kept, parts = schema.get("required", ()), schema["properties"]
    return {k: _without_nulls(v, parts.get(k, {})) for k, v in value.items() if v is not None or k in kept}


def _results(messages: Sequence[Mapping[str, Any]]) -> dict[tuple[int, int], int]:
    """Where the result of each call is, by (message, number in it)."""
    said = []
    for message in messages:
        calls = [(own or None, str(body["name"])) for own, body in _bodies(message)]
        result = (message.get("tool_call_id") or None, message.get("name")) if message["role"] in RESULT else None
        said.append(ConversationTurn(calls, result, message["role"] == "user"))
    try:
        return results_of(said)
    except Unpaired as error:
        raise Unusable("a result of no call before it", f"messages[{error.index}]") from None


def _weight(of: Mapping[str, Any]) -> float:
    found = of.get("weight")
    if found is None:
        return 1.0
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < math.inf:
        raise Unusable("a weight that is no number, zero or above", repr(found)[:80])
    return float(found)


def _tool(given: Any) -> dict[str, Any]:
    try:
        found = definition(_given(given))
    except UserError as error:
        raise Unusable("a tool that cannot be decoded", error.what) from None
    return tool(found.name, found.description, found.schema)


def _given(value: Any) -> Any:
    """Without the nulls of a table: of its columns those that other tools have."""
    if isinstance(value, Mapping):
        return {k: _given(v) for k, v in value.items() if v is not None}
    return value


def _check_words(content: Any) -> None:
    """Unusable for an answer that has its calls among its words."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    if any(part.get("type") not in (*TEXTS, "refusal", "thinking", "reasoning") for part in parts):
        raise Unusable("a message that is not all text")
    if any(mark in str(part.get("text")) for part in parts for mark in WRITTEN):
        raise Unusable("calls that are written in an answer's text")


def _result(content: Any) -> str:
    """Of a call: a text, as a message has it, or the JSON of any other value."""
    typed = isinstance(content, list) and all(isinstance(part, Mapping) and "type" in part for part in content)
    return (
        _text(content)
        if content is None or typed or isinstance(content, str)
        else json.dumps(content, ensure_ascii=False)
    )


def _text(content: Any) -> str:
    """Of a message: a string, a list of parts of text, or nothing."""
    if content is None or isinstance(content, str):
        return content or ""
    if any(part.get("type") not in TEXTS for part in content):
        raise Unusable("a message that is not all text")
    return "\n".join(part["text"] for part in content)
