"""Read chats in OpenAI's format: objects with `tools` and `messages`, which contain function calls."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.conversation import CallWithResult, ConversationTurn, UnpairedResult, match_results
from rtcontrol.models.data.sample import DroppedSample, Sample, UnusableSample
from rtcontrol.models.data.types import parse_arguments, parse_list, tool_definition
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.definition import read_definition

CONTEXT_ROLES = ("system", "developer")
RESULT_ROLES = ("tool", "function")
TEXT_TYPES = ("text", "input_text", "output_text")
CALL_MARKERS = ("<tool_call>", "<functioncall>", "[TOOL_CALLS]")  # these mark a call inside the text of an answer
WRONG_SHAPE = "a line that is not a chat with tools"
Message = Mapping[str, Any]


def chat_samples(value: Mapping[str, Any], source: str, where: str) -> Iterator[Sample | DroppedSample]:
    """Yield a sample for each assistant message with calls. Its history contains the earlier calls and their results.

    Arguments, tools, calls and messages may be values or JSON texts. A message of `weight` 0 yields no sample, but its
    calls are in the history of later samples. Raises UnusableSample for a chat without a call, for invalid values, and
    for a call after an answer in plain text, because prompts cannot contain such answers.
    """
    messages = parse_list(value["messages"], "messages")
    tools = [_parse_tool(each) for each in parse_list(value["tools"], "tools")]
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in tools}
    results, weight = _match_results(messages), _parse_weight(value)
    calls: list[list[Call]] = []
    context: list[str] = []
    query: list[str] = []
    has_call = has_text_answer = False
    for index, message in enumerate(messages):
        role, content = message["role"], message.get("content")
        calls.append([_parse_call(body, schemas) for _, body in _call_bodies(message)])
        if role in CONTEXT_ROLES:
            context.append(_message_text(content))
        elif role == "user":
            follows = index > 0 and messages[index - 1]["role"] in ("user", *CONTEXT_ROLES)
            query = [*query, _message_text(content)] if follows else [_message_text(content)]
        elif role == "assistant":
            has_call |= bool(calls[index])
            message_weight = weight * _parse_weight(message)
            if not calls[index]:
                _check_no_written_calls(content)
                has_text_answer |= bool(message_weight)
                continue
            if not message_weight:
                yield DroppedSample("an answer of weight 0", where, f"messages[{index}]", source)
                continue
            if has_text_answer:
                raise UnusableSample("a call in a later turn")
            if not any(map(str.strip, query)):
                raise UnusableSample("no query")
            row_id = str(value.get("id", where.rpartition("/")[2]))
            texts = "\n".join(query), "\n".join(filter(None, context)).strip()
            shown, history = tuple(calls[index]), _history(messages, calls, results, index)
            yield Sample(row_id, source, where, *texts, tuple(tools), shown, history, message_weight)
        elif role not in RESULT_ROLES:
            raise UnusableSample("a message with an unknown role", str(role))
    if not has_call:
        raise UnusableSample("no call")


def _history(
    messages: Sequence[Message], calls: Sequence[Sequence[Call]], results: Mapping[tuple[int, int], int], before: int
) -> tuple[str, ...]:
    """Return the texts of all calls before the message with index `before`, with results that are also before it."""
    history = []
    for index in range(before):
        for k, call in enumerate(calls[index]):
            end = results.get((index, k), before)
            result = _result_text(messages[end].get("content")) if end < before else None
            history.append(CallWithResult(call, result).text())
    return tuple(history)


def _call_bodies(message: Message) -> list[tuple[Any, Mapping[str, Any]]]:
    """Return (id, function object) of each call in a message."""
    calls = message.get("tool_calls")
    return [(call.get("id"), call.get("function", call)) for call in parse_list(calls, "tool_calls")] if calls else []


def _parse_call(body: Mapping[str, Any], schemas: Mapping[str, Any]) -> Call:
    return Call(body["name"], _drop_null_args(parse_arguments(body.get("arguments")), schemas.get(body["name"], {})))


def _drop_null_args(value: Any, schema: Any) -> Any:
    """Return arguments without optional nulls, at all depths. OpenAI's strict mode writes such nulls, and so do tables
    that have a column for each argument of all tools."""
    if not isinstance(schema, Mapping):
        return value
    if isinstance(value, list):
        return [_drop_null_args(item, schema.get("items", {})) for item in value]
    if isinstance(value, Mapping):  # choose the first alternative whose required properties are all present
        arms = [arm for key in ("anyOf", "oneOf") for arm in schema.get(key, ())]
        schema = next((a for a in arms if all(value.get(k) is not None for k in a.get("required", ()))), schema)
    if not isinstance(value, Mapping) or "properties" not in schema:
        return value
    required, parts = schema.get("required", ()), schema["properties"]
    return {k: _drop_null_args(v, parts.get(k, {})) for k, v in value.items() if v is not None or k in required}


def _match_results(messages: Sequence[Message]) -> dict[tuple[int, int], int]:
    """Return, by (message index, index of the call in it), the index of the message with the call's result."""
    turns = []
    for message in messages:
        calls = [(call_id or None, str(body["name"])) for call_id, body in _call_bodies(message)]
        result = (message.get("tool_call_id") or None, message.get("name")) if message["role"] in RESULT_ROLES else None
        turns.append(ConversationTurn(calls, result, message["role"] == "user"))
    try:
        return match_results(turns)
    except UnpairedResult as error:
        raise UnusableSample("a result without an earlier call", f"messages[{error.index}]") from None


def _parse_weight(item: Mapping[str, Any]) -> float:
    weight = item.get("weight")
    if weight is None:
        return 1.0
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
        raise UnusableSample("a weight that is not a number of at least 0", repr(weight)[:80])
    return float(weight)


def _parse_tool(value: Any) -> dict[str, Any]:
    try:
        body = read_definition(_drop_nulls(value))
    except UserError as error:
        raise UnusableSample("a tool that cannot be decoded", error.what) from None
    return tool_definition(body.name, body.description, body.schema)


def _drop_nulls(value: Any) -> Any:
    """Return a tool definition without null fields, which tables with columns for all tools contain."""
    if isinstance(value, Mapping):
        return {k: _drop_nulls(v) for k, v in value.items() if v is not None}
    return value


def _check_no_written_calls(content: Any) -> None:
    """Raise UnusableSample if an answer's text contains calls, or the answer has other content than text."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    if any(part.get("type") not in (*TEXT_TYPES, "refusal", "thinking", "reasoning") for part in parts):
        raise UnusableSample("a message with other content than text")
    if any(mark in str(part.get("text")) for part in parts for mark in CALL_MARKERS):
        raise UnusableSample("calls in the text of an answer")


def _result_text(content: Any) -> str:
    """Return a call's result as text. A value that is neither a string nor a list of content parts becomes JSON."""
    typed = isinstance(content, list) and all(isinstance(part, Mapping) and "type" in part for part in content)
    if content is None or typed or isinstance(content, str):
        return _message_text(content)
    return json.dumps(content, ensure_ascii=False)


def _message_text(content: Any) -> str:
    """Return the text of a message's content, which is a string, a list of text parts, or None."""
    if content is None or isinstance(content, str):
        return content or ""
    if any(part.get("type") not in TEXT_TYPES for part in content):
        raise UnusableSample("a message with other content than text")
    return "\n".join(part["text"] for part in content)
