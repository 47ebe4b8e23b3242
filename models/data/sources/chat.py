"""Chats in OpenAI's format, one a line: `messages` with `tool_calls`, and `tools`. Mobile Actions is such a set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.sample import SHAPE_ERRORS, Dropped, Sample, Unusable
from rtcontrol.models.data.sources.files import items
from rtcontrol.models.data.types import tool
from rtcontrol.models.data.values import arguments_of

CONTEXT = ("system", "developer")


def samples(path: Path, source: str, where_is: Mapping[str, Any] | None = None) -> Iterator[Sample | Dropped]:
    """A sample of each chat's first answer, where that is one or more calls. Arguments may be an object or its JSON.
    Lines whose keys are others than `where_is` asks for are passed over, being of another part of the set."""
    for where, value in items(path):
        if isinstance(value, Mapping) and any(value.get(k) != v for k, v in (where_is or {}).items()):
            continue
        try:
            yield chat(value, source, where)
        except Unusable as error:
            yield Dropped(error.reason, where, error.detail, source)
        except SHAPE_ERRORS as error:
            yield Dropped("a line that is no chat with tools", where, repr(error)[:120], source)


def chat(value: Mapping[str, Any], source: str, where: str) -> Sample:
    """Of one chat. Raises Unusable."""
    context, asked, called = [], [], None
    for at, message in enumerate(value["messages"]):
        role = message["role"]
        if role in CONTEXT:
            context.append(_text(message["content"]))
        elif role == "user":
            asked.append(_text(message["content"]))
        elif role == "assistant":
            called = message
            if any(m["role"] == "assistant" and _calls(m) for m in value["messages"][at + 1 :]) and not _calls(called):
                raise Unusable("a call in a later turn")
            break
        else:
            raise Unusable("a message of another role", str(role))
    calls = _calls(called) if called is not None else []
    if not calls:
        raise Unusable("no call")
    if not asked:
        raise Unusable("no query")
    return Sample(
        str(value.get("id", where.rpartition("/")[2])),
        source,
        where,
        "\n".join(asked),
        "\n".join(context).strip(),
        tuple(_tool(one) for one in value["tools"]),
        tuple(calls),
    )


def _calls(message: Mapping[str, Any]) -> list[Call]:
    single = message.get("function_call")  # as it was before there were several
    calls = message.get("tool_calls") or ([{"function": single}] if single else [])
    bodies = [call.get("function", call) for call in calls]
    # Written out for tools with other keys, a column holds null for those that a call does not have.
    return [
        Call(body["name"], {k: v for k, v in arguments_of(body.get("arguments") or {}).items() if v is not None})
        for body in bodies
    ]


def _tool(one: Mapping[str, Any]) -> dict[str, Any]:
    body = one.get("function") or one
    return tool(body["name"], body.get("description"), _given(body.get("parameters")))


def _given(value: Any) -> Any:
    """Without the nulls of a table: of its columns those that other tools have."""
    if isinstance(value, Mapping):
        return {k: _given(v) for k, v in value.items() if v is not None}
    return value


def _text(content: Any) -> str:
    """Of a message: a string, or a list of parts of text."""
    if isinstance(content, str):
        return content
    if any(part.get("type") != "text" for part in content):
        raise Unusable("a message that is not all text")
    return "\n".join(part["text"] for part in content)
