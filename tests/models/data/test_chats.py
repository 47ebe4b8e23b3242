"""Chats in OpenAI's format: read as they are meant, or left out with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.models.call import Call
from rtcontrol.models.data.convert import Purpose, rows
from rtcontrol.models.data.sample import Dropped, Sample, Tally
from rtcontrol.models.data.sources import chat, registry

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
    ]
    one, two = read(tmp_path, *lines)
    for found in (one, two):
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
        (line(USER, {"role": "tool", "content": "1"}), "a result of no call before it"),
        (line(USER, {"role": "judge", "content": "1"}), "a message of another role"),
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


FORCE = {"type": ["integer", "null"], "minimum": 1, "maximum": 5}
STRICT = {"width": {"type": "integer"}, "force": FORCE, "speed": FORCE}
GRIP: dict[str, Any] = {
    "name": "grip",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": STRICT,
        "required": ["width", "force"],
        "additionalProperties": False,
    },
}


def grip(own: str | None = None, **arguments: Any) -> dict[str, Any]:
    function = {"name": "grip", "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": own, "type": "function", "function": function}]}


def test_null_falls_only_where_the_argument_may_be_left_out(tmp_path: Path) -> None:
    given = {"messages": [USER, grip(width=80, force=None, speed=None)], "tools": [{"function": GRIP}]}
    (one,) = read(tmp_path, given)
    assert isinstance(one, Sample) and one.calls == (Call("grip", {"width": 80, "force": None}),)
    purposes: tuple[Purpose, ...] = ("train", "eval")
    for purpose in purposes:
        tally = Tally()
        (row,) = rows(read(tmp_path, given), tally, purpose)
        assert row.call == Call("grip", {"width": 80, "force": None}) and not tally.dropped and not tally.noted
    # A value that is required and may not be null is none that can be learnt.
    (wrong,) = read(tmp_path, {**given, "messages": [USER, grip(width=None, force=2)]})
    tally = Tally()
    assert not list(rows([wrong], tally))
    assert [reason for _, reason in tally.dropped] == ["a value that its parameter does not take"]


@pytest.mark.parametrize(
    "tools",
    [
        {"tools": [{"type": "function", "function": GRIP}], "parallel_tool_calls": False},
        {"tools": json.dumps([{"type": "function", "function": GRIP}])},
    ],
)
@pytest.mark.parametrize("system", [None, [], "It is late.", [{"type": "text", "text": "It is late."}]])
def test_tools_and_system_texts_are_read_in_every_form(tmp_path: Path, tools: Any, system: Any) -> None:
    said = [{"role": "system", "content": system}, USER, grip(width=8, force=1)]
    for messages in (said, json.dumps(said)):
        (one,) = read(tmp_path, {"messages": messages, **tools})
        assert isinstance(one, Sample) and one.calls == (Call("grip", {"width": 8, "force": 1}),)
        assert one.observation == ("It is late." if system else "")
        assert [t["function"]["name"] for t in one.tools] == ["grip"]


@pytest.mark.parametrize("arguments", ["", " ", "null", None, {}, "{}"])
def test_a_call_without_arguments_is_one_in_every_form(tmp_path: Path, arguments: Any) -> None:
    call = {"function": {"name": "lamp", "arguments": arguments}}
    (one,) = read(tmp_path, line(USER, {"role": "assistant", "tool_calls": [call]}))
    assert isinstance(one, Sample) and one.calls == (Call("lamp", {}),)


def result(text: Any, own: str | None = None) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": own, "content": text}


def test_each_answer_is_a_sample_with_the_calls_before_it_and_their_own_results(tmp_path: Path) -> None:
    """One id for all, as some servers give; and none."""
    for own in ("x", "", None):
        first, second, third = (grip(own, width=w, force=1) for w in (1, 2, 3))
        again = {"role": "user", "content": "Once more."}
        said = [USER, first, result("slipped", own), second, result([{"type": "text", "text": "held"}], own)]
        found = read(tmp_path, {"messages": [*said, again, third], "tools": [{"function": GRIP}]})
        assert [one.calls[0].arguments["width"] for one in found if isinstance(one, Sample)] == [1, 2, 3]
        assert [(one.instruction, one.history) for one in found if isinstance(one, Sample)] == [
            ("Light.", ()),
            ("Light.", ("grip(width=1, force=1) -> slipped",)),
            ("Once more.", ("grip(width=1, force=1) -> slipped", "grip(width=2, force=1) -> held")),
        ]
    (lost,) = read(tmp_path, {"messages": [USER, first, result("", "y")], "tools": [{"function": GRIP}]})
    assert isinstance(lost, Dropped) and (lost.reason, lost.detail) == ("a result of no call before it", "messages[2]")


def test_an_answer_of_weight_zero_is_history_and_no_target(tmp_path: Path) -> None:
    words = {"role": "assistant", "content": "Which one?", "weight": 0}
    wrong, right = {**grip("1", width=1, force=1), "weight": 0}, {**grip("2", width=2, force=1), "weight": 0.5}
    said = [USER, words, {"role": "user", "content": "The left one."}, wrong, result("slipped", "1"), right]
    given = {"messages": said, "tools": [{"function": GRIP}], "weight": 3}
    none, one = read(tmp_path, given)
    assert isinstance(none, Dropped) and (none.reason, none.detail) == ("an answer of weight 0", "messages[3]")
    assert isinstance(one, Sample) and one.instruction == "The left one."
    assert (one.calls[0].arguments["width"], one.weight) == (2, 1.5)
    assert one.history == ("grip(width=1, force=1) -> slipped",)
    (row,) = rows([none, one], tally := Tally())
    assert row.weight == 1.5 and tally.dropped["chats", "an answer of weight 0"] == 1
    # Of a whole line; and what is no weight is told.
    (none,) = read(tmp_path, {**given, "messages": [USER, grip(width=1, force=1)], "weight": 0})
    assert isinstance(none, Dropped) and none.reason == "an answer of weight 0"
    for weight in (-1, "0", True, [0]):
        (odd,) = read(tmp_path, {**given, "weight": weight})
        assert isinstance(odd, Dropped) and odd.reason.startswith("a weight that is no number")


def test_a_broken_later_answer_takes_nothing_from_those_before_it(tmp_path: Path) -> None:
    broken = {"role": "assistant", "tool_calls": [{"id": "2", "function": {"name": "grip", "arguments": "{w"}}]}
    said = [USER, grip("1", width=1, force=1), result("held", "1"), broken]
    one, lost = read(tmp_path, {"messages": said, "tools": [{"function": GRIP}]})
    assert isinstance(one, Sample) and isinstance(lost, Dropped) and lost.reason == "arguments that are no JSON"


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
    counts = [len([*registry.read(f"mobile-actions{part}={tmp_path}")]) for part in (":train", ":eval", "")]
    assert counts == [2, 1, 3]


def test_arguments_with_a_key_twice_teach_neither_of_its_values(tmp_path: Path) -> None:
    call = {"function": {"name": "lamp", "arguments": '{"on": true, "on": false}'}}
    (found,) = read(tmp_path, line(USER, {"role": "assistant", "tool_calls": [call]}))
    assert isinstance(found, Dropped) and found.reason == "arguments that are no JSON"


def test_a_tool_whose_parameters_are_not_read_teaches_no_tool_without_any(tmp_path: Path) -> None:
    answer = {"role": "assistant", "tool_calls": [CALL]}
    (found,) = read(tmp_path, line(USER, answer, tools=[{"name": "lamp", "arguments_of_it": {"on": {}}}]))
    assert isinstance(found, Dropped) and found.reason == "a tool that cannot be decoded"
    assert "`arguments_of_it`" in found.detail


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
def test_calls_that_stand_among_an_answers_words_are_told(tmp_path: Path, content: Any, reason: str) -> None:
    (found,) = read(tmp_path, line(USER, {"role": "assistant", "content": content}))
    assert isinstance(found, Dropped) and found.reason == reason
