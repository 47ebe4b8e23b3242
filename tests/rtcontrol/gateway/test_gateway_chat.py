"""Conversations as agents and their SDKs send them: calls, results, contents, and mistakes that name their field."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
from gateway_peer import TURN, Serve, Served

from rtcontrol.gateway import GatewayOptions
from rtcontrol.gateway.chat import ChatRequest, completion, decided
from rtcontrol.gateway.decide import CheckpointGate, Timed, ToolSet, ToolSets
from rtcontrol.gateway.gate import Refusal
from rtcontrol.hosts.inprocess import InProcessPool
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.checkpoint.checkpoint import ZOO
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.schema.tool_schema import tool_schemas

USER = {"role": "user", "content": "Turn left."}
# One legal call: whatever decides, it is repeated.
LAMP: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "lamp",
        "parameters": {"type": "object", "properties": {"to": {"enum": ["on"]}}, "required": ["to"]},
    },
}
LAMP_ON = ("lamp", {"to": "on"})


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
    sentence = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    return (
        sentence if result is None else [*sentence, {"role": "tool", "tool_call_id": f"c{number}", "content": result}]
    )


def test_answered_call_is_not_repeated(serve: Serve) -> None:
    # It would never call nothing.
    client = openai.OpenAI(base_url=serve(model="random").url + "v1", api_key="none", max_retries=0)
    assert ask(client, tools=[LAMP]).choices[0].finish_reason == "tool_calls"
    answer = ask(client, USER, *called(*LAMP_ON, "It is lit."), tools=[LAMP])
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.message.content, choice.message.tool_calls) == ("stop", "It is lit.", None)
    assert 'lamp(to="on") was called' in answer.model_extra["rtcontrol"]["stopped"]
    # It must be called; nobody knows what came of it; or somebody asks for it again.
    must = ask(client, USER, *called(*LAMP_ON, "It is lit."), tools=[LAMP], tool_choice="required")
    assert must.choices[0].finish_reason == "tool_calls"
    for sentence in ([USER, *called(*LAMP_ON)], [USER, *called(*LAMP_ON, "It is lit."), USER]):
        answer = ask(client, *sentence, tools=[LAMP])
        assert answer.choices[0].finish_reason == "tool_calls"
        assert "stopped" not in answer.model_extra["rtcontrol"]


def test_null_call_after_result_returns_it(serve: Serve) -> None:
    noop = serve(model="noop")
    client = openai.OpenAI(base_url=noop.url + "v1", api_key="none", max_retries=0)
    answer = ask(client, USER, *called("turn", {"direction": "left"}, "turned"))
    assert (answer.choices[0].finish_reason, answer.choices[0].message.content) == ("stop", "turned")
    assert "calls nothing" in answer.model_extra["rtcontrol"]["stopped"]
    assert ask(client).choices[0].message.content == ""


def tool(**properties: Any) -> dict[str, Any]:
    return {"name": "say", "parameters": {"properties": properties, "required": list(properties)}}


# An array of texts that cannot end within the tokens that a value may have.
ENDLESS = {"type": "array", "items": {"type": "string", "minLength": 30}, "minItems": 30}
SAY, SAID = {"function": tool(a={"enum": ["x"]}, text=ENDLESS)}, {"type": "function", "function": {"name": "say"}}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": [TURN, SAY], "tool_choice": SAID}, "tools"),
        ({"tools": [TURN, {"function": {"parameters": {}}}]}, "tools"),
        ({"tools": []}, "tools"),
        ({"tool_choice": "none"}, "tool_choice"),
        ({"messages": [{"role": "banana", "content": "x"}]}, "messages[0].role"),
        ({"tool_choice": {"type": "function", "function": {"name": "fly"}}}, "tool_choice.function.name"),
        ({"n": 2}, "n"),
        ({"response_format": {"type": "json_object"}}, "response_format.type"),
        ({"functions": [{"name": "go"}]}, "functions"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ],
)
def test_invalid_request_names_its_field_once(served: Served, change: dict[str, Any], param: str) -> None:
    sent = []
    web = httpx.Client(event_hooks={"request": [sent.append]})
    retrying = openai.OpenAI(base_url=served.url + "v1", api_key="none", max_retries=2, http_client=web)
    with pytest.raises(openai.BadRequestError) as caught:
        ask(retrying, **change)
    assert caught.value.param == param and len(sent) == 1
    assert len(caught.value.body["message"].split(". ")) >= 2  # type: ignore[index]


def test_untrained_tools_warn_in_field_and_header(serve: Serve) -> None:
    unknown, bundled, plain = serve(), serve(model=None), serve(model="random")
    body = {"model": "default", "messages": [USER], "tools": [TURN]}
    for _ in range(2):
        answer = unknown.post("v1/chat/completions", body)
        extra = answer.json()["rtcontrol"]
        assert extra["trained"] is None and answer.headers["x-rtcontrol-warning"] == extra["warning"]
        assert "trained on these tools" in extra["warning"]
        streamed = unknown.post("v1/chat/completions", {**body, "stream": True})
        assert streamed.headers["x-rtcontrol-warning"] == extra["warning"] and extra["warning"] in streamed.text
    from rtcontrol.agents.lander.tools import agent

    known = bundled.post("v1/chat/completions", {**body, "tools": agent.tools.openai()})
    assert known.json()["rtcontrol"]["trained"] is True
    for answer in (known, plain.post("v1/chat/completions", {**body, "model": "random"})):
        assert "x-rtcontrol-warning" not in answer.headers and "warning" not in answer.json()["rtcontrol"]


@pytest.mark.parametrize("path", ["v1/responses", "chat/completions", "v1/v1/chat/completions"])
def test_unknown_route_is_404_with_a_hint(served: Served, path: str) -> None:
    answer = served.post(path, {})
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_found"
    assert "base_url ends with /v1" in answer.text


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


def call(side: str, separate: Any = None, **more: Any) -> dict[str, Any]:
    function = {"name": "probe", "arguments": json.dumps({"side": side})}
    return {"type": "function", "function": function, **({} if separate is None else {"id": separate}), **more}


def calls(*created: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(created)}


def result(content: Any, **of: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, **of}


def reported(*messages: dict[str, Any]) -> list[str]:
    request = ChatRequest.model_validate({"model": "m", "messages": list(messages), "tools": [PROBE]})
    request.offer()
    return [single.text() for single in request.calls()]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([LOOK, result("free", tool_call_id="1"), calls(call("left", "1"))], "messages[1].tool_call_id"),
        ([LOOK, calls(call("left", "1")), *[result("free", tool_call_id="1")] * 2], "messages[3].tool_call_id"),
        ([LOOK, calls(call("left", "1")), result("free", tool_call_id="2")], "messages[2].tool_call_id"),
        ([LOOK, calls({"id": "1", "function": {"name": "probe", "arguments": "{side"}})], "arguments"),
        ([LOOK, calls({"id": "1", "function": {"name": "probe", "arguments": r'{"a": "\ud800"}'}})], "arguments"),
    ],
)
def test_unreadable_conversation_is_refused_by_its_place(messages: list[Any], param: str) -> None:
    with pytest.raises(Refusal) as caught:
        reported(*messages)
    assert caught.value.status == 400
    assert str(caught.value.param).endswith(param) and str(caught.value.param) in f"{caught.value.what} {param}"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"model": "default", "messages": ' + b"[" * 100_000, "not JSON"),
        (b'\xff\xfe{"model"}', "not JSON"),
        (b'{"model": "default", "messages": [], "n": NaN}', "NaN is not a number of JSON"),
        (b'{"model": "default", "messages": [], "messages": []}', "'messages' stands twice"),
    ],
)
@pytest.mark.parametrize("route", ["chat/completions", "decisions", "systemone"])
def test_body_of_no_plain_json_is_refused(served: Served, route: str, body: bytes, words: str) -> None:
    answer = served.post(f"v1/{route}", content=body)
    assert answer.status_code in (400, 422) and words in answer.text


# `/v1` obeys the gate of a checkpoint that knows the tools of a request. Without a server.


LANDER = TrainingMetadata.of(ZOO / "lander")
assert LANDER is not None and LANDER.gate is not None and LANDER.tools is not None
TOOLS = [dict(tool) for tool in LANDER.tools]
SCHEMAS = tool_schemas(tuple(TOOLS))
BURN = Call("engines", {"main": 100, "side": 0})
ORDERS, WORDS = "You are a pilot.", "land on the pad"


def created(call: Call | None, sure: float, unknown: tuple[str, ...] = ()) -> Decision:
    return Decision(call, {"function": sure}, 1, 1, 0, unknown)


def gate(allow_null: bool = False) -> CheckpointGate:
    return CheckpointGate(None, SCHEMAS, allow_null)


def test_call_below_gate_is_held_with_reason() -> None:
    held = gate().held(created(BURN, 0.12, ("dance",)))
    assert held is not None and "function is 0.120 sure, and acts from 0.500 on" in held and '"dance"' in held
    assert gate().held(created(BURN, 0.9)) is None


def test_null_means_not_understood_unless_allowed() -> None:
    assert gate().allow_null and "not understood" in str(gate().held(created(None, 0.9)))
    assert gate(allow_null=True).held(created(None, 0.9)) is None


@pytest.mark.parametrize(("model", "read"), [(None, WORDS), ("random", f"{ORDERS}\n{WORDS}")])
def test_trained_model_reads_no_system_message(model: str | None, read: str) -> None:
    texts: list[str] = []

    class Recorded(ToolSet):
        async def ask(self, observation: str, instruction: str, history: tuple[str, ...]) -> tuple[Decision, int]:
            texts.append(instruction)
            return created(BURN, 0.9), 0

    async def decide() -> None:
        sets = ToolSets(InProcessPool(), GatewayOptions(model=model))
        recorded = Recorded(SimpleNamespace(name="h"), CheckpointGate(model, SCHEMAS, False), 1.0)  # type: ignore[arg-type]
        sets._open[json.dumps([False, *TOOLS])] = recorded
        await sets.decide(tuple(TOOLS), WORDS, "", orders=ORDERS)

    asyncio.run(decide())
    assert texts == [read]


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_chat_answers_without_a_call_and_says_why(choice: str) -> None:
    messages = [{"role": "system", "content": ORDERS}, {"role": "user", "content": "dance"}]
    body = {"model": "default", "messages": messages, "tools": TOOLS, "tool_choice": choice}
    request = ChatRequest.model_validate(body)
    requested: list[Any] = []

    async def decide(*fields: Any) -> Timed:
        requested.append(fields)
        decision = created(BURN, 0.12)
        return Timed(decision, 1.0, 1.0, held=gate().held(decision))

    answer = asyncio.run(decided(request, request.offer(), decide))
    reported = completion(request, answer)["choices"][0]
    assert reported["finish_reason"] == "stop" and "tool_calls" not in reported["message"]
    assert "acts from 0.500 on" in reported["message"]["content"]
    assert [(fields[1], fields[-1]) for fields in requested] == [("dance", ORDERS)]
