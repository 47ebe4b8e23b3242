"""Chats as other trainers' sets have them: read as they are meant, or left out with the reason."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.models.data.sample import Dropped, Sample
from rtcontrol.models.data.sources import chat
from rtcontrol.models.data.sources.files import items

SCHEMA = {"type": "object", "properties": {"level": {"type": "integer"}, "room": {"type": "string"}}}
TOOL = {"name": "dim", "description": "Dims a lamp.", "parameters": SCHEMA}
USER = {"role": "user", "content": "Darker."}
ARGUMENTS = {"level": 2}
CALLED = "dim(level=2)"


def answer(**more: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"function": {"name": "dim", "arguments": ARGUMENTS}}], **more}


def line(*messages: dict[str, Any], tools: Any = (TOOL,), **more: Any) -> dict[str, Any]:
    return {"messages": [USER, *messages], "tools": tools if isinstance(tools, str) else list(tools), **more}


def read(value: dict[str, Any]) -> list[Sample | Dropped]:
    found: list[Sample | Dropped] = []
    try:
        found += chat.chat(value, "set", "file:1")
    except chat.Unusable as error:
        found.append(Dropped(error.reason, "file:1", error.detail))
    return found


@pytest.mark.parametrize(
    "key", ["parameters", "input_schema", "inputSchema", "args_schema", "parametersJsonSchema", "schema"]
)
def test_a_tool_has_its_parameters_by_whichever_name_they_go(key: str) -> None:
    body = {"name": "dim", "description": None, key: SCHEMA}
    for tool in (body, {"type": "function", "function": body}, json.dumps(body), {**body, key: json.dumps(SCHEMA)}):
        (found,) = read(line(answer(), tools=[tool]))
        assert isinstance(found, Sample), (tool, found)
        assert found.tools[0]["function"]["parameters"]["properties"].keys() == {"level", "room"}


def test_a_tool_whose_parameters_are_not_read_teaches_no_tool_without_any() -> None:
    (found,) = read(line(answer(), tools=[{"name": "dim", "arguments_of_it": {"level": {"type": "integer"}}}]))
    assert isinstance(found, Dropped) and found.reason == "a tool that cannot be decoded"
    assert "`arguments_of_it`" in found.detail


@pytest.mark.parametrize("key", ["arguments", "parameters", "args", "input"])
def test_a_call_has_its_arguments_by_whichever_name_they_go(key: str) -> None:
    for given in (ARGUMENTS, json.dumps(ARGUMENTS)):
        for call in ({"name": "dim", key: given}, {"function": {"name": "dim", key: given}}):
            (found,) = read(line({"role": "assistant", "tool_calls": [call]}))
            assert isinstance(found, Sample) and [c.text() for c in found.calls] == [CALLED]


def test_arguments_with_a_key_twice_teach_neither_of_its_values() -> None:
    call = {"function": {"name": "dim", "arguments": '{"level": 2, "level": 3}'}}
    (found,) = read(line({"role": "assistant", "tool_calls": [call]}))
    assert isinstance(found, Dropped) and found.reason == "arguments that are no JSON"


@pytest.mark.parametrize("mark", ["train", "training", "loss"])
def test_an_answer_that_is_marked_not_to_be_learnt_is_a_part_of_the_history_alone(mark: str) -> None:
    first, second = read(line(answer(**{mark: False}), answer(**{mark: True})))
    assert isinstance(first, Dropped) and first.reason == "an answer of weight 0"
    assert isinstance(second, Sample) and second.history == (CALLED,)


@pytest.mark.parametrize("system", ["It is late.", [{"type": "text", "text": "It is late."}]])
def test_what_the_system_says_beside_the_messages_is_observed(system: Any) -> None:
    (found,) = read(line(answer(), system=system))
    assert isinstance(found, Sample) and found.observation == "It is late."


@pytest.mark.parametrize(
    ("content", "told"),
    [({"ok": True}, '{"ok": true}'), ([{"ok": 1}], '[{"ok": 1}]'), (7, "7"), ([{"type": "text", "text": "ok"}], "ok")],
)
def test_a_result_may_be_any_value(content: Any, told: str) -> None:
    _, found = read(line(answer(), {"role": "tool", "content": content}, answer()))
    assert isinstance(found, Sample) and found.history == (f"{CALLED} -> {told}",)


def test_turns_with_calls_and_observations_are_read_as_messages() -> None:
    call = json.dumps({"name": "dim", "arguments": ARGUMENTS})
    turns = [
        {"from": "system", "value": "It is late."},
        {"from": "human", "value": "Darker."},
        {"from": "function_call", "value": call},
        {"from": "observation", "value": "done"},
        {"from": "function_call", "value": f"[{call}, {call}]"},
        {"from": "gpt", "value": "It is dark."},
    ]
    value = {"conversations": turns, "tools": json.dumps([TOOL]), "system": "Be brief."}
    one, two = read(value)
    assert isinstance(one, Sample) and isinstance(two, Sample)
    assert (one.instruction, one.observation) == ("Darker.", "Be brief.\nIt is late.")
    assert [c.text() for c in one.calls] == [CALLED]
    assert (two.history, len(two.calls)) == ((f"{CALLED} -> done",), 2)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('<tool_call>\n{"name": "dim"}\n</tool_call>', "calls that are written in an answer's text"),
        ('[TOOL_CALLS][{"name": "dim"}]', "calls that are written in an answer's text"),
        ([{"type": "tool_use", "name": "dim", "input": {}}], "a message that is not all text"),
        ([{"toolUse": {"name": "dim", "input": {}}}], "a message that is not all text"),
        ([{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "No."}], "no call"),
    ],
)
def test_calls_that_stand_among_an_answers_words_are_told(content: Any, reason: str) -> None:
    (found,) = read(line({"role": "assistant", "content": content}))
    assert isinstance(found, Dropped) and found.reason == reason


def test_a_query_of_spaces_is_none() -> None:
    (found,) = read({**line(answer()), "messages": [{"role": "user", "content": " \n"}, answer()]})
    assert isinstance(found, Dropped) and found.reason == "no query"


def test_lines_may_be_compressed(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\r\n\n{"a": 2}'))
    assert [value for _, value in items(path)] == [{"a": 1}, {"a": 2}]
