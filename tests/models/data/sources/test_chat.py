"""Chats in OpenAI's format, Mobile Actions among them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.models.call import Call
from rtcontrol.models.data.sample import Dropped, Sample
from rtcontrol.models.data.sources import chat, mobile_actions
from rtcontrol.models.errors import UserError

TOOLS = [{"function": {"name": "lamp", "parameters": {"type": "OBJECT", "properties": {"on": {"type": "BOOLEAN"}}}}}]
CALL = {"function": {"name": "lamp", "arguments": {"on": True}}}
USER = {"role": "user", "content": "Light."}


def line(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), "tools": TOOLS, **more}


def read(tmp_path: Path, *lines: Any) -> list[Sample | Dropped]:
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return list(chat.samples(path, "chats"))


def test_a_chat_is_a_sample_however_its_arguments_are_written(tmp_path: Path) -> None:
    as_text = {"type": "function", "id": "c1", "function": {"name": "lamp", "arguments": '{"on": true}'}}
    developer = {"role": "developer", "content": [{"type": "text", "text": "It is late."}]}
    lines = [
        line(developer, USER, {"role": "assistant", "tool_calls": [CALL]}, id="mine"),
        line(developer, USER, {"role": "assistant", "content": None, "tool_calls": [as_text, as_text]}),
        line(developer, USER, {"role": "assistant", "function_call": as_text["function"]}),
    ]
    one, two, three = read(tmp_path, *lines)
    for found in (one, two, three):
        assert isinstance(found, Sample)
        assert (found.instruction, found.observation) == ("Light.", "It is late.")
        assert found.calls[0] == Call("lamp", {"on": True})
        assert found.tools[0]["function"]["parameters"]["properties"]["on"]["type"] == "boolean"
    assert isinstance(one, Sample) and isinstance(two, Sample)
    assert (one.id, two.id, len(two.calls)) == ("mine", "chats.jsonl:2", 2)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (line(USER, {"role": "assistant", "content": "Done."}), "no call"),
        (line(USER), "no call"),
        (line({"role": "assistant", "tool_calls": [CALL]}), "no query"),
        (line(USER, {"role": "tool", "content": "1"}), "a message of another role"),
        (line({"role": "user", "content": [{"type": "image_url"}]}), "a message that is not all text"),
        (
            line(USER, {"role": "assistant", "content": "?"}, USER, {"role": "assistant", "tool_calls": [CALL]}),
            "a call in a later turn",
        ),
        (
            line(USER, {"role": "assistant", "tool_calls": [{"function": {"name": "lamp", "arguments": "{on"}}]}),
            "arguments that are no JSON",
        ),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}]}, "a line that is no chat with tools"),
        ([1], "a line that is no chat with tools"),
    ],
)
def test_a_chat_without_a_first_call_is_dropped_with_its_line(tmp_path: Path, given: Any, reason: str) -> None:
    good = line(USER, {"role": "assistant", "tool_calls": [CALL]})
    found = read(tmp_path, good, given)
    assert isinstance(found[0], Sample)
    assert isinstance(found[1], Dropped) and (found[1].reason, found[1].where[-2:]) == (reason, ":2")


def test_a_tables_nulls_are_no_parameters_and_no_arguments(tmp_path: Path) -> None:
    """As a set is written whose rows were a table: every tool has the columns of all."""
    on = {"type": "BOOLEAN", "description": None, "enum": None}
    schema = {"type": "OBJECT", "properties": {"on": on, "to": None}, "required": ["on"]}
    empty = {"type": "OBJECT", "properties": {"on": None, "to": None}, "required": None}
    tools = [
        {"function": {"name": "lamp", "description": None, "parameters": schema}, "name": None},
        {"function": {"name": "stop", "parameters": empty}},
    ]
    call = {"id": "c", "type": "function", "function": {"name": "lamp", "arguments": {"on": True, "to": None}}}
    user = {**USER, "tool_calls": None}
    given = line(user, {"role": "assistant", "content": None, "tool_calls": [call]}, tools=tools)
    (one,) = read(tmp_path, {**given, "metadata": "eval"})
    assert isinstance(one, Sample) and one.calls == (Call("lamp", {"on": True}),)
    lamp, stop = (each["function"]["parameters"]["properties"] for each in one.tools)
    assert lamp == {"on": {"type": "boolean"}} and stop == {}


def test_mobile_actions_are_split_by_their_metadata(tmp_path: Path) -> None:
    answer = {"role": "assistant", "tool_calls": [CALL]}
    path = tmp_path / "dataset.jsonl"
    parts = ("train", "eval", "train")
    path.write_text("\n".join(json.dumps(line(USER, answer, metadata=part)) for part in parts))
    counts = [len([*mobile_actions.samples(part, str(tmp_path))]) for part in ("train", "eval", "")]
    assert counts == [2, 1, 3]


def test_mobile_actions_as_the_notebook_prints_them(sets: Path) -> None:
    place = str(sets / "mobile_actions" / "notebook_examples.jsonl")
    (one,) = mobile_actions.samples("eval", place)
    assert isinstance(one, Sample) and len(one.tools) == 7
    assert one.calls[0].name == "create_calendar_event"
    assert one.observation.startswith("Current date and time given in YYYY-MM-DDTHH:MM:SS format: 2024-10-20T14:27:48")
    assert len(list(mobile_actions.samples("", place))) == 2
    assert one.source.endswith(":eval")
    with pytest.raises(UserError, match="no part 'test'"):
        list(mobile_actions.samples("test", place))
