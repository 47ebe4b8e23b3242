"""Conversations as agents and their SDKs send them: calls, results, contents, and mistakes that name their field."""

from __future__ import annotations

import gzip
import json
import logging
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from gateway_served import TURN, Serve, Served
from openai.types.chat import ChatCompletionMessage
from pydantic import BaseModel

from rtcontrol.gateway.access import Refusal
from rtcontrol.gateway.chat_request import ChatRequest
from rtcontrol.models.checkpoint.checkpoint import ZOO
from rtcontrol.models.checkpoint.training_metadata import FILE_NAME as LEARNT

USER = {"role": "user", "content": "Turn left."}
LONG = {"role": "user", "content": "left 1 2 3 4 5 " * 2000}
# One legal call: whatever decides, it is repeated.
LAMP: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "lamp",
        "parameters": {"type": "object", "properties": {"to": {"enum": ["on"]}}, "required": ["to"]},
    },
}
LAMP_ON = ("lamp", {"to": "on"})


class Side(BaseModel):
    """Where to go."""

    side: str = "left"
    speed: int


STRICT = {
    "type": "object",
    "properties": {"side": {"enum": ["left", "right"]}, "speed": {"enum": [1, 2]}},
    "required": ["side", "speed"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "where", "strict": True, "schema": STRICT}}


@pytest.fixture(scope="module")
def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=served.url + "v1", api_key="none", max_retries=0)


def ask(client: openai.OpenAI, *messages: Any, **more: Any) -> Any:
    return client.chat.completions.create(
        **{"model": "default", "messages": list(messages or [USER]), "tools": [TURN], **more}
    )


def called(name: str, arguments: dict[str, Any], result: str | None = None, number: int = 1) -> list[dict[str, Any]]:
    """The messages of a call, and of its result."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"c{number}", "type": "function", "function": function}
    said = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    return said if result is None else [*said, {"role": "tool", "tool_call_id": f"c{number}", "content": result}]


def test_a_call_whose_result_is_there_is_not_repeated_and_ends_with_it(serve: Serve) -> None:
    # It would never call nothing.
    client = openai.OpenAI(base_url=serve(model="random").url + "v1", api_key="none", max_retries=0)
    assert ask(client, tools=[LAMP]).choices[0].finish_reason == "tool_calls"
    answer = ask(client, USER, *called(*LAMP_ON, "It is lit."), tools=[LAMP])
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.message.content, choice.message.tool_calls) == ("stop", "It is lit.", None)
    assert 'lamp(to="on") was called' in answer.model_extra["rtcontrol"]["stopped"]
    # Nobody knows what came of it; or somebody asks for it again.
    for said in ([USER, *called(*LAMP_ON)], [USER, *called(*LAMP_ON, "It is lit."), USER]):
        answer = ask(client, *said, tools=[LAMP])
        assert answer.choices[0].finish_reason == "tool_calls"
        assert "stopped" not in answer.model_extra["rtcontrol"]


def test_after_a_result_the_model_may_call_nothing_but_not_before_or_when_it_must(client: openai.OpenAI) -> None:
    def sure(*said: Any, **more: Any) -> float:
        extra: dict[str, Any] = ask(client, *said, tools=[LAMP], **more).model_extra["rtcontrol"]
        return float(extra["confidence"]["function"])

    result = called("horn", {}, "It sounds.")
    # One tool: to call it is certain, unless nothing may be called.
    assert sure(USER) == 1.0 and sure(USER, *result) < 1.0
    assert sure(USER, *result, tool_choice="required") == 1.0
    assert sure(USER, *result, USER) == 1.0


def test_a_null_call_after_a_result_ends_with_it(serve: Serve) -> None:
    noop = serve(model="noop")
    client = openai.OpenAI(base_url=noop.url + "v1", api_key="none", max_retries=0)
    answer = ask(client, USER, *called("turn", {"direction": "left"}, "turned"))
    assert (answer.choices[0].finish_reason, answer.choices[0].message.content) == ("stop", "turned")
    assert "calls nothing" in answer.model_extra["rtcontrol"]["stopped"]
    assert ask(client).choices[0].message.content == ""


def test_where_a_call_must_be_made_the_answered_one_gives_way_to_the_others(client: openai.OpenAI) -> None:
    done = [
        {"type": "function", "function": {"name": f"end_{i}", "parameters": {"type": "object", "properties": {}}}}
        for i in range(2)
    ]
    said = [USER]
    names = []
    for number in range(3):
        answer = ask(client, *said, tools=[LAMP, *done], tool_choice="required")
        (call,) = answer.choices[0].message.tool_calls
        names.append(call.function.name)
        said += called(call.function.name, json.loads(call.function.arguments), "ok", number)
    assert sorted(names) == ["end_0", "end_1", "lamp"]
    # There is no other: it must be one of them.
    assert ask(client, *said, tools=[LAMP, *done], tool_choice="required").choices[0].message.tool_calls
    assert ask(client, *said, tools=[LAMP, *done]).choices[0].finish_reason == "stop"


def test_results_reach_the_model_with_their_calls(client: openai.OpenAI) -> None:
    short, long = (
        ask(client, USER, *called("horn", {}, result), USER).usage.prompt_tokens for result in ("1", "1" + " 2" * 40)
    )
    assert long >= short + 40
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, USER, {"role": "tool", "tool_call_id": "c9", "content": "done"})
    assert caught.value.param == "messages[1].tool_call_id"


def test_a_schema_is_answered_in_the_content_streamed_too(client: openai.OpenAI) -> None:
    answer = ask(client, tools=openai.omit, response_format=FORMAT)
    choice = answer.choices[0]
    assert choice.finish_reason == "stop" and choice.message.tool_calls is None
    found = json.loads(choice.message.content)
    assert found["side"] in ("left", "right") and found["speed"] in (1, 2)
    text, finish = "", None
    for chunk in ask(client, tools=openai.omit, response_format=FORMAT, stream=True):
        text += chunk.choices[0].delta.content or ""
        assert not chunk.choices[0].delta.tool_calls
        finish = chunk.choices[0].finish_reason or finish
    assert (json.loads(text), finish) == (found, "stop")
    parsed = client.chat.completions.parse(model="default", messages=[USER], response_format=Side)
    assert isinstance(parsed.choices[0].message.parsed, Side)


def test_a_schema_beside_tools_is_one_of_them_and_ends_the_conversation(client: openai.OpenAI) -> None:
    said = [USER]
    for number in range(4):
        choice = ask(client, *said, tools=[LAMP], response_format=FORMAT).choices[0]
        if choice.finish_reason == "stop":
            break
        assert choice.message.tool_calls[0].function.name == "lamp"
        said += called(*LAMP_ON, "ok", number)
    assert number < 2 and json.loads(choice.message.content)["speed"] in (1, 2)
    must = ask(client, tools=[LAMP], response_format=FORMAT, tool_choice="required").choices[0]
    assert must.message.tool_calls[0].function.name == "lamp"
    none = ask(client, tools=[LAMP], response_format=FORMAT, tool_choice="none").choices[0]
    assert json.loads(none.message.content) and none.finish_reason == "stop"


def test_a_schema_that_is_a_reference_is_followed(client: openai.OpenAI) -> None:
    schema = {"$ref": "#/$defs/where", "$defs": {"where": STRICT}}
    form = {"type": "json_schema", "json_schema": {"name": "where", "schema": schema}}
    assert set(json.loads(ask(client, tools=openai.omit, response_format=form).choices[0].message.content)) == {
        "side",
        "speed",
    }


def test_only_the_allowed_tools_are_called(client: openai.OpenAI) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "lamp"}}]}
    answer = ask(client, tools=[TURN, LAMP], tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert answer.choices[0].message.tool_calls[0].function.name == "lamp"


def tool(**properties: Any) -> dict[str, Any]:
    return {"name": "say", "parameters": {"properties": properties, "required": list(properties)}}


# An array of texts that cannot end within the tokens that a value may have.
ENDLESS = {"type": "array", "items": {"type": "string", "minLength": 30}, "minItems": 30}
TEXTS = {"type": "json_schema", "json_schema": {"name": "texts", "schema": tool(texts=ENDLESS)["parameters"]}}
SAY, SAID = {"function": tool(a={"enum": ["x"]}, text=ENDLESS)}, {"type": "function", "function": {"name": "say"}}
INSIDE = "function.parameters.properties"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": [TURN, SAY], "tool_choice": SAID}, f"tools[1].{INSIDE}.text"),
        ({"tools": [TURN, {"function": tool(a={"type": "array", "contains": 5})}]}, f"tools[1].{INSIDE}.a"),
        ({"tools": [TURN, {"function": tool(a=5)}]}, f"tools[1].{INSIDE}.a"),
        ({"tools": [TURN, {"function": {"parameters": {}}}]}, "tools[1]"),
        ({"tools": [TURN, TURN]}, "tools[1]"),
        ({"tools": [TURN, 5]}, "tools[1]"),
        ({"tools": [], "response_format": TEXTS}, "response_format.json_schema.schema.properties.texts"),
        ({"response_format": {"type": "json_object"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"messages": [{"role": "banana", "content": "x"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "user", "content": [{"text": "x"}]}]}, "messages[1].content[0].type"),
        ({"messages": [LONG]}, "messages"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "fly"}}}, "tool_choice.function.name"),
        ({"n": 2}, "n"),
    ],
)
def test_a_mistake_names_its_field_and_is_sent_once(served: Served, change: dict[str, Any], param: str) -> None:
    sent = []
    web = httpx.Client(event_hooks={"request": [sent.append]})
    retrying = openai.OpenAI(base_url=served.url + "v1", api_key="none", max_retries=2, http_client=web)
    with pytest.raises(openai.BadRequestError) as caught:
        ask(retrying, **change)
    assert caught.value.param == param and len(sent) == 1
    assert len(caught.value.body["message"].split(". ")) >= 2  # type: ignore[index]


def test_a_model_that_may_not_know_the_tools_says_so_in_field_header_and_log_once(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "rtcontrol.gateway")
    unknown, bundled, plain = serve(), serve(model=None), serve(model="random")
    body = {"model": "default", "messages": [USER], "tools": [TURN]}
    for _ in range(2):
        answer = unknown.post("v1/chat/completions", body)
        extra = answer.json()["rtcontrol"]
        assert extra["trained"] is None and answer.headers["x-rtcontrol-warning"] == extra["warning"]
        assert "trained on these tools" in extra["warning"]
        streamed = unknown.post("v1/chat/completions", {**body, "stream": True})
        assert streamed.headers["x-rtcontrol-warning"] == extra["warning"] and extra["warning"] in streamed.text
    game = unknown.post("v1/function_call", {"messages": [USER], "tools": [TURN]})
    assert game.json()["success"] is True and game.headers["x-rtcontrol-warning"] == extra["warning"]
    assert len([r for r in caplog.records if "trained on these tools" in r.getMessage()]) == 1
    from rtcontrol.agents.lander.tools import agent

    known = bundled.post("v1/chat/completions", {**body, "tools": agent.tools.openai()})
    assert known.json()["rtcontrol"]["trained"] is True
    for answer in (known, plain.post("v1/chat/completions", {**body, "model": "random"})):
        assert "x-rtcontrol-warning" not in answer.headers and "warning" not in answer.json()["rtcontrol"]


def test_one_model_can_be_looked_up_and_another_is_not_found(client: openai.OpenAI) -> None:
    assert (client.models.retrieve("lander").id, client.models.retrieve("default").object) == ("lander", "model")
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4o")
    assert caught.value.code == "model_not_found" and "lander" in str(caught.value)


@pytest.mark.parametrize("path", ["v1/responses", "chat/completions", "v1/v1/chat/completions"])
def test_a_route_that_is_none_names_those_there_are(served: Served, path: str) -> None:
    answer = served.post(path, {})
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_found"
    assert "POST /v1/chat/completions" in answer.text and "base_url ends with /v1" in answer.text


@pytest.mark.parametrize("path", ["health", "metrics", "v1/models", "v1/models/lander", "view/sessions", ""])
def test_what_can_be_read_has_its_head_alone(served: Served, path: str) -> None:
    got, alone = httpx.get(served.url + path), httpx.head(served.url + path)
    assert alone.status_code == got.status_code == 200 and alone.content == b"" != got.content
    assert alone.headers["content-type"] == got.headers["content-type"]


LOOK = {"role": "user", "content": "Look both ways."}
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
    rounds = [LOOK, calls(call("left", own)), result("wall", **of), calls(call("right", own)), result("free", **of)]
    assert told(*rounds) == ['probe(side="left") -> wall', 'probe(side="right") -> free']
    parallel = [LOOK, calls(call("left", own), call("right", own)), result("wall", **of), result("free", **of)]
    assert told(*parallel) == told(*rounds)


def test_the_form_before_there_were_ids_is_read_as_a_call_and_its_result() -> None:
    of = {"role": "function", "name": "probe"}
    said = [LOOK, legacy("left"), {**of, "content": "wall"}, legacy("right"), {**of, "content": "free"}]
    assert told(*said) == ['probe(side="left") -> wall', 'probe(side="right") -> free']
    # An old call may have a new result, and other fields that are null.
    nulls = {**legacy("left"), "tool_calls": None, "refusal": None, "audio": None}
    assert told(LOOK, nulls, result("wall", tool_call_id=None)) == ['probe(side="left") -> wall']


def test_contents_and_arguments_are_read_in_every_form_that_clients_send() -> None:
    parts = [{"type": "text", "text": "a wall"}, {"type": "text", "text": "2 m"}]
    as_object = {"id": "2", "function": {"name": "probe", "arguments": {"side": "right", "far": None}}}
    empty = [{"id": str(i), "function": {"name": "probe", "arguments": a}} for i, a in enumerate(("", "null", None))]
    assert told(
        LOOK,
        calls(call("left", "1"), as_object),
        result(None, tool_call_id="2"),
        result(parts, tool_call_id="1"),
        calls(*empty),
    ) == ['probe(side="left") -> a wall\n2 m', 'probe(side="right", far=null) -> ', *["probe()"] * 3]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([LOOK, result("free", tool_call_id="1"), calls(call("left", "1"))], "messages[1].tool_call_id"),
        ([LOOK, calls(call("left", "1")), *[result("free", tool_call_id="1")] * 2], "messages[3].tool_call_id"),
        ([LOOK, calls(call("left", "1")), result("free", tool_call_id="2")], "messages[2].tool_call_id"),
        ([LOOK, legacy("left"), {"role": "function", "name": "turn", "content": ""}], "messages[2].name"),
        ([LOOK, calls({"id": "1", "function": {"name": "probe", "arguments": "{side"}})], "arguments"),
        ([LOOK, calls({"id": "1", "function": {"name": "probe", "arguments": "[1]"}})], "arguments"),
        ([LOOK, calls({"id": "1", "function": {"name": "probe", "arguments": '{"a": NaN}'}})], "arguments"),
        ([LOOK, calls({"id": "1", "function": {"name": "probe", "arguments": r'{"a": "\ud800"}'}})], "arguments"),
        ([LOOK, {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[1].content[0].type"),
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
            assert told(LOOK, calls(made), result("wall", tool_call_id="1")) == ['probe(side="left") -> wall']


def test_what_an_answer_thought_is_passed_over_and_calls_among_its_words_are_not() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    answer = {"role": "assistant", "content": [thought, {"type": "text", "text": "Left."}]}
    assert told(LOOK, answer, LOOK, calls(call("left", "1"))) == ['probe(side="left")']
    for messages in ([{"role": "user", "content": [thought]}], [{**answer, "content": [{"type": "tool_use"}]}]):
        with pytest.raises(Refusal, match="A content part of type"):
            told(LOOK, *messages)


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
    given = {"model": "m", "messages": [LOOK], "tools": [PROBE]}
    assert ChatRequest.model_validate({**given, field: None, "temperature": 0.5, "cache_prompt": True}).offer()
    with pytest.raises(Refusal) as refused:
        ChatRequest.model_validate({**given, field: value}).offer()
    assert (refused.value.param, refused.value.code) == (field, "unsupported") and remedy in refused.value.remedy


def test_a_compressed_body_is_told_as_one(served: Served) -> None:
    body = gzip.compress(json.dumps({"model": "default", "messages": [LOOK], "tools": [PROBE]}).encode())
    answer = served.post("v1/chat/completions", content=body, headers={"content-encoding": "gzip"})
    assert answer.status_code == 400 and "compressed (gzip)" in answer.json()["error"]["message"]


def test_the_openai_package_holds_a_conversation_in_both_forms(client: openai.OpenAI) -> None:
    """Its own message objects go back as they came, and as a proxy of the older form gives them."""
    said: list[Any] = [LOOK]
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
        said.append(LOOK)


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
    body = {"model": "default", "messages": [LOOK], "tools": [PROBE, TURN], "tool_choice": choice}
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
    body = {"model": "default", "messages": [LOOK], "tools": [PROBE, TURN], "tool_choice": choice}
    answer = served.post("v1/chat/completions", body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param) and words in error["message"]
    assert "allowed_tools.allowed_tools" not in error["message"]


WHERE = {"type": "object", "properties": {"far": {"type": "boolean"}}, "required": ["far"]}
ANSWER = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": WHERE}}


def test_a_format_is_answered_where_the_server_has_tools_of_its_own(serve: Serve) -> None:
    own = [{"name": f"t{i}", "parameters": {"type": "object", "properties": {}}} for i in range(8)]
    served = serve(model="random", own=tuple(own))

    def ask(**more: Any) -> Any:
        answer = served.post("v1/chat/completions", {"model": "default", "messages": [LOOK], **more})
        return answer.json()["choices"][0]["message"] if answer.status_code == 200 else answer.json()["error"]

    for _ in range(2):
        for more in ({}, {"tools": []}, {"tool_choice": "none"}, {"tool_choice": "auto"}):
            assert set(json.loads(ask(response_format=ANSWER, **more)["content"])) == {"far"}
    # Its own tools are there where a call is asked for, or no format is.
    for form in ({}, {"response_format": {"type": "text"}}, {"response_format": ANSWER, "tool_choice": "required"}):
        assert ask(**form)["tool_calls"][0]["function"]["name"].startswith("t")
    named = {"type": "function", "function": {"name": "t3"}}
    assert ask(response_format=ANSWER, tool_choice=named)["tool_calls"][0]["function"]["name"] == "t3"
    assert ask(response_format={"type": "json_object"})["param"] == "response_format.type"
    assert ask(tool_choice="none")["param"] == "tool_choice"
    # Beside tools of the request the model chooses among these and the answer.
    asked = ask(response_format=ANSWER, tools=[TURN])
    assert asked["content"] is not None or asked["tool_calls"][0]["function"]["name"] == "turn"


@pytest.mark.parametrize("field", ["functions", "function_call"])
def test_the_older_fields_of_a_request_are_refused_by_name(served: Served, field: str) -> None:
    older = {"functions": [PROBE["function"]], "function_call": {"name": "probe"}}
    body = {"model": "default", "messages": [LOOK], field: older[field]}
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
    body = {"model": "default", "messages": [LOOK, made, result("free", tool_call_id="1")], "tools": [PROBE]}
    answer = served.post("v1/chat/completions", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[1].tool_calls[0].function.arguments"


ASKED = {"model": "default", "messages": [{"role": "user", "content": "Turn left."}], "tools": [TURN]}
MANY_TOKENS = 150  # tokens: half a second and more


@pytest.fixture(scope="module")
def talking(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Served:
    """A model whose template says that it writes content, and that does not end by itself soon."""
    folder = tmp_path_factory.mktemp("models") / "talker"
    shutil.copytree(ZOO / "lander", folder, ignore=shutil.ignore_patterns(LEARNT))
    template = json.loads((folder / "st_template.json").read_text())
    (folder / "st_template.json").write_text(json.dumps({**template, "content": True}))
    return serve(model=str(folder), value_tokens=MANY_TOKENS)


@pytest.fixture(scope="module")
def talker(talking: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=talking.url + "v1", api_key="none", max_retries=0)


def streamed(served: Served, seen: threading.Event | None = None) -> tuple[dict[str, float], str]:
    """When the call and the content of a streamed answer came, in s, and the text."""
    body = {**ASKED, "stream": True, "include_content_head": True}
    came, text, began = {}, "", time.monotonic()
    with httpx.stream("POST", served.url + "v1/chat/completions", json=body, timeout=60) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    if choice["delta"].get("tool_calls"):
                        came["call"] = time.monotonic() - began
                        if seen is not None:
                            seen.set()
                    if choice["delta"].get("content"):
                        came["content"], text = time.monotonic() - began, text + choice["delta"]["content"]
    return came, text


def test_the_content_comes_on_request_and_changes_no_call(talker: openai.OpenAI) -> None:
    plain = talker.chat.completions.create(**ASKED).choices[0]  # type: ignore[call-overload]
    asked = {**ASKED, "extra_body": {"include_content_head": True}}
    beside = talker.chat.completions.create(**asked).choices[0]  # type: ignore[call-overload]
    assert plain.message.content is None and beside.message.content
    assert [c.function for c in plain.message.tool_calls] == [c.function for c in beside.message.tool_calls]
    assert beside.finish_reason == "tool_calls"


def test_a_streamed_call_does_not_wait_for_the_content_nor_do_other_clients(talking: Served) -> None:
    streamed(talking)  # once, so that all is loaded
    seen, waits = threading.Event(), []

    def others() -> None:
        seen.wait(30)
        for _ in range(5):
            began = time.monotonic()
            answer = talking.post("v1/function_call", {"messages": ASKED["messages"], "tools": [TURN]})
            assert answer.json()["success"] is True
            waits.append(time.monotonic() - began)

    thread = threading.Thread(target=others)
    thread.start()
    came, text = streamed(talking, seen)
    thread.join()
    assert text and came["call"] < came["content"] / 3
    assert len(waits) == 5 and sorted(waits)[2] < (came["content"] - came["call"]) / 4


def test_a_game_that_asks_for_it_gets_the_content(talking: Served) -> None:
    body: dict[str, Any] = {"messages": ASKED["messages"], "tools": [TURN]}
    assert talking.post("v1/function_call", body).json()["content"] is None
    said = talking.post("v1/function_call", {**body, "include_content_head": True}).json()
    assert said["success"] is True and said["content"]


@pytest.mark.parametrize("model", [None, "random", str(Path(ZOO / "lander"))])
def test_a_model_without_the_head_says_so_and_gives_its_call(serve: Serve, model: str | None) -> None:
    from rtcontrol.agents.lander.tools import agent

    plain = serve(model=model)
    body = {**ASKED, "tools": agent.tools.openai(), "include_content_head": True}
    answer = plain.post("v1/chat/completions", {**body, "model": "default"}).json()
    assert answer["choices"][0]["message"]["content"] is None and answer["choices"][0]["message"]["tool_calls"]
    assert "no content" in answer["rtcontrol"]["no_content"]
    game = plain.post("v1/function_call", body)
    assert game.json()["success"] is True and game.json()["content"] is None
    assert "no content" in game.headers["x-rtcontrol-warning"]


CLIENTS = Path(__file__).parent / "sdk_clients.py"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pydanticai", "langchain", "instructor"])
def test_an_sdk_gets_what_it_asks_for_and_ends(served: Served, name: str) -> None:
    folder = os.environ.get("RTCONTROL_SDK_VENVS", "")
    python = Path(folder) / name / "bin" / "python"
    if not folder or not python.exists():
        pytest.skip(f"RTCONTROL_SDK_VENVS names no folder with {name}/bin/python")
    command = [str(python), str(CLIENTS), name, served.url + "v1"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=100, env={"PATH": os.environ["PATH"]})
    assert told.returncode == 0, told.stderr
    found: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    if name == "pydanticai":
        # The tool is called once at most, and then the run ends.
        assert found["text"] in (["str", 1], ["str", 0])
        assert found["tool"][0] == found["native"][0] == "Turn" and max(found["tool"][1], found["native"][1]) <= 1
    else:
        assert found.pop("bound", "Turn") == "Turn" and set(found.values()) == {"Turn"}
