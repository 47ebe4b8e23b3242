"""Conversations as foreign clients send them: what the model is told of them, or which message is refused."""

from __future__ import annotations

import gzip
import json
from typing import Any

import openai
import pytest
from gateway_served import TURN, Serve, Served
from openai.types.chat import ChatCompletionMessage

from rtcontrol.gateway.access import Refusal
from rtcontrol.gateway.chat_request import ChatRequest

USER = {"role": "user", "content": "Look both ways."}
PROBE: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "probe",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"side": {"enum": ["left", "right"]}, "far": {"type": ["integer", "null"], "maximum": 9}},
            "required": ["side", "far"],
            "additionalProperties": False,
        },
    },
}


def call(side: str, own: Any = None, **more: Any) -> dict[str, Any]:
    function = {"name": "probe", "arguments": json.dumps({"side": side})}
    return {"type": "function", "function": function, **({} if own is None else {"id": own}), **more}


def calls(*made: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(made)}


def result(content: Any, **of: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, **of}


def legacy(side: str) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "function_call": call(side)["function"]}


def told(*messages: dict[str, Any]) -> list[str]:
    request = ChatRequest.model_validate({"model": "m", "messages": list(messages), "tools": [PROBE]})
    request.offer()
    return [one.text() for one in request.made()]


@pytest.mark.parametrize("own", ["x1", "", None])
def test_each_call_has_its_own_result_whatever_the_ids(own: str | None) -> None:
    of = {} if own is None else {"tool_call_id": own}
    rounds = [USER, calls(call("left", own)), result("wall", **of), calls(call("right", own)), result("free", **of)]
    assert told(*rounds) == ['probe(side="left") -> wall', 'probe(side="right") -> free']
    parallel = [USER, calls(call("left", own), call("right", own)), result("wall", **of), result("free", **of)]
    assert told(*parallel) == told(*rounds)


def test_the_form_before_there_were_ids_is_read_as_a_call_and_its_result() -> None:
    of = {"role": "function", "name": "probe"}
    said = [USER, legacy("left"), {**of, "content": "wall"}, legacy("right"), {**of, "content": "free"}]
    assert told(*said) == ['probe(side="left") -> wall', 'probe(side="right") -> free']
    # An old call may have a new result, and other fields that are null.
    nulls = {**legacy("left"), "tool_calls": None, "refusal": None, "audio": None}
    assert told(USER, nulls, result("wall", tool_call_id=None)) == ['probe(side="left") -> wall']


def test_contents_and_arguments_are_read_in_every_form_that_clients_send() -> None:
    parts = [{"type": "text", "text": "a wall"}, {"type": "text", "text": "2 m"}]
    as_object = {"id": "2", "function": {"name": "probe", "arguments": {"side": "right", "far": None}}}
    empty = [{"id": str(i), "function": {"name": "probe", "arguments": a}} for i, a in enumerate(("", "null", None))]
    assert told(
        USER,
        calls(call("left", "1"), as_object),
        result(None, tool_call_id="2"),
        result(parts, tool_call_id="1"),
        calls(*empty),
    ) == ['probe(side="left") -> a wall\n2 m', 'probe(side="right", far=null) -> ', *["probe()"] * 3]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([USER, result("free", tool_call_id="1"), calls(call("left", "1"))], "messages[1].tool_call_id"),
        ([USER, calls(call("left", "1")), *[result("free", tool_call_id="1")] * 2], "messages[3].tool_call_id"),
        ([USER, calls(call("left", "1")), result("free", tool_call_id="2")], "messages[2].tool_call_id"),
        ([USER, legacy("left"), {"role": "function", "name": "turn", "content": ""}], "messages[2].name"),
        ([USER, calls({"id": "1", "function": {"name": "probe", "arguments": "{side"}})], "arguments"),
        ([USER, calls({"id": "1", "function": {"name": "probe", "arguments": "[1]"}})], "arguments"),
        ([USER, calls({"id": "1", "function": {"name": "probe", "arguments": '{"a": NaN}'}})], "arguments"),
        ([USER, calls({"id": "1", "function": {"name": "probe", "arguments": r'{"a": "\ud800"}'}})], "arguments"),
        ([USER, {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[1].content[0].type"),
        ([{"role": "user", "content": [{"type": "text", "content": "x"}]}], "messages[0].content[0]"),
    ],
)
def test_what_cannot_be_read_of_a_conversation_is_refused_by_its_place(messages: list[Any], param: str) -> None:
    with pytest.raises(Refusal) as caught:
        told(*messages)
    assert caught.value.status == 400
    assert str(caught.value.param).endswith(param) and str(caught.value.param) in f"{caught.value.what} {param}"


@pytest.mark.parametrize("key", ["arguments", "parameters", "args", "input"])
def test_a_past_call_keeps_its_arguments_by_whichever_name_they_go(key: str) -> None:
    for given in ({"side": "left"}, '{"side": "left"}'):
        body = {"name": "probe", key: given}
        for made in ({"id": "1", "type": "function", "function": body}, {"id": "1", "type": "tool_call", **body}):
            assert told(USER, calls(made), result("wall", tool_call_id="1")) == ['probe(side="left") -> wall']


def test_what_an_answer_thought_is_passed_over_and_calls_among_its_words_are_not() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    answer = {"role": "assistant", "content": [thought, {"type": "text", "text": "Left."}]}
    assert told(USER, answer, USER, calls(call("left", "1"))) == ['probe(side="left")']
    for messages in ([{"role": "user", "content": [thought]}], [{**answer, "content": [{"type": "tool_use"}]}]):
        with pytest.raises(Refusal, match="A content part of type"):
            told(USER, *messages)


@pytest.mark.parametrize(
    ("field", "value", "remedy"),
    [
        ("system", "Never turn left.", "role `system`"),
        ("tool_config", {"function_calling_config": {"mode": "ANY"}}, "`tool_choice`"),
        ("guided_json", {"type": "object"}, "`response_format`"),
        ("structured_outputs", {"choice": ["a"]}, "`response_format`"),
        ("format", "json", "`response_format`"),
    ],
)
def test_another_apis_field_that_says_how_to_answer_is_not_passed_over(field: str, value: Any, remedy: str) -> None:
    given = {"model": "m", "messages": [USER], "tools": [PROBE]}
    assert ChatRequest.model_validate({**given, field: None, "temperature": 0.5, "cache_prompt": True}).offer()
    with pytest.raises(Refusal) as refused:
        ChatRequest.model_validate({**given, field: value}).offer()
    assert (refused.value.param, refused.value.code) == (field, "unsupported") and remedy in refused.value.remedy


def test_a_compressed_body_is_told_as_one(served: Served) -> None:
    body = gzip.compress(json.dumps({"model": "default", "messages": [USER], "tools": [PROBE]}).encode())
    answer = served.post("v1/chat/completions", content=body, headers={"content-encoding": "gzip"})
    assert answer.status_code == 400 and "compressed (gzip)" in answer.json()["error"]["message"]


@pytest.fixture(scope="module")
def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=served.url + "v1", api_key="none", max_retries=0)


def test_the_openai_package_holds_a_conversation_in_both_forms(client: openai.OpenAI) -> None:
    """Its own message objects go back as they came, and as a proxy of the older form gives them."""
    said: list[Any] = [USER]
    for old in (False, True, False):
        answer = client.chat.completions.create(model="default", messages=said, tools=[PROBE], tool_choice="required")
        message = answer.choices[0].message
        (made,) = message.tool_calls
        arguments = json.loads(made.function.arguments)
        assert set(arguments) == {"side", "far"} and (arguments["far"] is None or arguments["far"] <= 9)
        if old:
            function = {"name": made.function.name, "arguments": made.function.arguments}
            said.append(ChatCompletionMessage(role="assistant", function_call=function).model_dump())  # type: ignore[arg-type]
            said.append({"role": "function", "name": made.function.name, "content": "free"})
        else:
            said += [message, {"role": "tool", "tool_call_id": made.id, "content": "free"}]
        said.append(USER)


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "function", "name": "turn"}, "turn"),
        ({"type": "tool", "name": "turn"}, "turn"),
        ({"type": "function", "function": {"name": "turn"}}, "turn"),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "turn"}]}, "turn"),
        ({"type": "any"}, None),
        ({"type": "auto", "disable_parallel_tool_use": True}, None),
        ("any", None),
        ("required", None),
    ],
)
def test_a_choice_of_tool_is_read_in_the_words_of_each_api(served: Served, choice: Any, name: str | None) -> None:
    body = {"model": "default", "messages": [USER], "tools": [PROBE, TURN], "tool_choice": choice}
    answer = served.post("v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    (made,) = answer.json()["choices"][0]["message"]["tool_calls"]
    assert made["function"]["name"] in ((name and (name,)) or ("probe", "turn"))


@pytest.mark.parametrize(
    ("choice", "param", "words"),
    [
        ({"type": "function", "name": "fly"}, "tool_choice.name", "'fly', which is none of the tools"),
        ({"type": "tool", "name": "fly"}, "tool_choice.name", "'fly', which is none of the tools"),
        ({"type": "function"}, "tool_choice", "tool_choice.name is no string"),
        ({"type": "function", "function": "turn"}, "tool_choice", "tool_choice.function.name is no string"),
        ({"type": "allowed_tools", "tools": []}, "tool_choice", "has a mode, auto or required"),
        ({"type": ["any"]}, "tool_choice", "none of none, auto, required"),
        ({"type": "custom", "custom": {"name": "turn"}}, "tool_choice", "none of none, auto, required"),
        ("turn", "tool_choice", "none of none, auto, required"),
        (7, "tool_choice", "none of none, auto, required"),
    ],
)
def test_a_choice_that_is_none_is_told_in_its_own_words(served: Served, choice: Any, param: str, words: str) -> None:
    body = {"model": "default", "messages": [USER], "tools": [PROBE, TURN], "tool_choice": choice}
    answer = served.post("v1/chat/completions", body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param) and words in error["message"]
    assert "allowed_tools.allowed_tools" not in error["message"]


WHERE = {"type": "object", "properties": {"far": {"type": "boolean"}}, "required": ["far"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": WHERE}}


def test_a_format_is_answered_where_the_server_has_tools_of_its_own(serve: Serve) -> None:
    own = [{"name": f"t{i}", "parameters": {"type": "object", "properties": {}}} for i in range(8)]
    served = serve(model="random", own=tuple(own))

    def ask(**more: Any) -> Any:
        answer = served.post("v1/chat/completions", {"model": "default", "messages": [USER], **more})
        return answer.json()["choices"][0]["message"] if answer.status_code == 200 else answer.json()["error"]

    for _ in range(5):
        for more in ({}, {"tools": []}, {"tool_choice": "none"}, {"tool_choice": "auto"}):
            assert set(json.loads(ask(response_format=FORMAT, **more)["content"])) == {"far"}
    # Its own tools are there where a call is asked for, or no format is.
    for form in ({}, {"response_format": {"type": "text"}}, {"response_format": FORMAT, "tool_choice": "required"}):
        assert ask(**form)["tool_calls"][0]["function"]["name"].startswith("t")
    named = {"type": "function", "function": {"name": "t3"}}
    assert ask(response_format=FORMAT, tool_choice=named)["tool_calls"][0]["function"]["name"] == "t3"
    assert ask(response_format={"type": "json_object"})["param"] == "response_format.type"
    assert ask(tool_choice="none")["param"] == "tool_choice"
    # Beside tools of the request the model chooses among these and the answer.
    asked = ask(response_format=FORMAT, tools=[TURN])
    assert asked["content"] is not None or asked["tool_calls"][0]["function"]["name"] == "turn"


@pytest.mark.parametrize("field", ["functions", "function_call"])
def test_the_older_fields_of_a_request_are_refused_by_name(served: Served, field: str) -> None:
    older = {"functions": [PROBE["function"]], "function_call": {"name": "probe"}}
    body = {"model": "default", "messages": [USER], field: older[field]}
    error = served.post("v1/chat/completions", body).json()["error"]
    assert error["param"] == field and "Send `tools`" in error["message"]


DEEP = 20_000


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"model": "default", "messages": ' + b"[" * 100_000, "nested deeper than"),
        (b'\xff\xfe{"model"}', "no utf-16"),
        (b'{"model": "caf\xe9"}', "no utf-8"),
        (b'{"model": "default", "messages": [], "n": NaN}', "NaN is none of its numbers"),
        (b'{"model": "default", "messages": [], "messages": []}', "'messages' stands twice"),
        (rb'{"model": "default", "messages": [{"role": "user", "content": "\ud83d"}]}', "a lone surrogate"),
        (b'{"model": "default", "messages": [{"role": "user", "content": 1e999}]}', "is not finite"),
    ],
)
@pytest.mark.parametrize("route", ["chat/completions", "decisions", "systemone", "function_call"])
def test_a_body_that_is_no_plain_json_is_the_clients_mistake(
    served: Served, route: str, body: bytes, words: str
) -> None:
    answer = served.post(f"v1/{route}", content=body)
    assert answer.status_code in (400, 422) and words in answer.text


@pytest.mark.parametrize("text", ['{"a": ' + "[" * DEEP + "]" * DEEP + "}", '{"a": ' * 900 + "1" + "}" * 900])
def test_arguments_nested_beyond_reading_are_refused_by_their_place(served: Served, text: str) -> None:
    made = calls({"id": "1", "type": "function", "function": {"name": "probe", "arguments": text}})
    body = {"model": "default", "messages": [USER, made, result("free", tool_call_id="1")], "tools": [PROBE]}
    answer = served.post("v1/chat/completions", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[1].tool_calls[0].function.arguments"
