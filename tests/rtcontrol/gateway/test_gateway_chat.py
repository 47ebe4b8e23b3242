"""The APIs under /v1: conversations of agents and SDKs, typed decisions, and errors that name the field."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from gateway_peer import TOKEN, TURN, Serve, Served

from rtcontrol.gateway.chat import ChatReply, ChatRequest, completion_body, completion_events, decide_reply
from rtcontrol.gateway.decide import CheckpointGate, TimedDecision
from rtcontrol.gateway.gate import Refusal
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.checkpoint.checkpoint import ZOO
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.schema.tool_schema import tool_schemas
from tests.rtcontrol.serve.test_hostile_peers import wide

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


def ask(client: openai.OpenAI, *messages: Any, **more: Any) -> Any:
    return client.chat.completions.create(
        **{"model": "default", "messages": list(messages or [USER]), "tools": [TURN], **more}
    )


def called(name: str, arguments: dict[str, Any], result: str | None = None, number: int = 1) -> list[dict[str, Any]]:
    """Return the messages of a call and its result."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"c{number}", "type": "function", "function": function}
    sentence = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    return (
        sentence if result is None else [*sentence, {"role": "tool", "tool_call_id": f"c{number}", "content": result}]
    )


def post(served: Served, *tools: dict[str, Any], **more: Any) -> httpx.Response:
    return served.post("v1/chat/completions", {"model": "default", "messages": [USER], "tools": list(tools), **more})


def named(answer: httpx.Response) -> str:
    """Return the name of the called function."""
    return str(answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"])


def test_simultaneous_requests_get_their_own_answers(served: Served) -> None:
    wait = {"name": "wait", "parameters": {"type": "object", "properties": {}}}
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda tool: named(post(served, tool)), [TURN, wait] * 6)) == ["turn", "wait"] * 6


def test_the_openai_client_gets_a_tool_call(served: Served) -> None:
    client = served.openai
    assert [m.id for m in client.models.list()] == ["lander"]
    orders = {"role": "system", "content": "You steer a light cycle."}
    sentence = {"role": "user", "content": [{"type": "text", "text": "Turn left."}]}
    answer = ask(client, orders, sentence, temperature=0.7, extra_body={"environment": ["dist_left=9"]})
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    call = choice.message.tool_calls[0]
    assert call.function.name == "turn" and set(json.loads(call.function.arguments)) == {"direction"}
    assert answer.usage is not None and answer.usage.prompt_tokens > 10
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_least_recently_used_tool_set_is_closed(serve: Serve) -> None:
    single = serve(model="random", tool_sets=2)
    for i in (*range(5), 0):
        renamed = {**TURN, "function": {**TURN["function"], "name": f"turn_{i}"}}
        assert named(post(single, renamed)) == f"turn_{i}"
    assert len(single.pool.sessions) <= 3
    for number in range(4):
        refused = post(single, wide(number))
        assert refused.status_code == 400 and "1000 alternatives" in refused.text
        assert '"param":"tools' in refused.text
    assert len(single.pool.sessions) <= 3
    assert httpx.get(single.url + "health", timeout=8).status_code == 200


def test_answered_call_is_not_repeated(serve: Serve) -> None:
    # It would never call nothing.
    client = serve(model="random").openai
    assert ask(client, tools=[LAMP]).choices[0].finish_reason == "tool_calls"
    answer = ask(client, USER, *called(*LAMP_ON, "It is lit."), tools=[LAMP])
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.message.content, choice.message.tool_calls) == ("stop", "It is lit.", None)
    assert 'lamp(to="on") was already called' in answer.model_extra["rtcontrol"]["stopped"]
    # It must be called; nobody knows what came of it; or somebody asks for it again.
    must = ask(client, USER, *called(*LAMP_ON, "It is lit."), tools=[LAMP], tool_choice="required")
    assert must.choices[0].finish_reason == "tool_calls"
    for sentence in ([USER, *called(*LAMP_ON)], [USER, *called(*LAMP_ON, "It is lit."), USER]):
        answer = ask(client, *sentence, tools=[LAMP])
        assert answer.choices[0].finish_reason == "tool_calls"
        assert "stopped" not in answer.model_extra["rtcontrol"]


def test_null_call_after_result_returns_it(serve: Serve) -> None:
    client = serve(model="noop").openai
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
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"stop": ["\n"]}, "stop"),
        ({"logit_bias": {"50256": -100}}, "logit_bias"),
        ({"modalities": ["text", "audio"]}, "modalities[1]"),
        ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
        ({"web_search_options": {"user_location": None, "search_context_size": "low"}}, "web_search_options"),
        ({"function_call": "auto"}, "function_call"),
        ({"extra_body": {"guided_choice": ["a", "b"]}}, "guided_choice"),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
            "tool_choice.type",
        ),
        ({"tools": [{"type": "custom", "custom": {"name": "write"}}]}, "tools"),
        ({"functions": [{"name": "go"}]}, "functions"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ],
)
def test_invalid_request_names_its_field_once(served: Served, change: dict[str, Any], param: str) -> None:
    sent = []
    web = httpx.Client(event_hooks={"request": [sent.append]})
    retrying = served.openai.with_options(max_retries=2, http_client=web)
    with pytest.raises(openai.BadRequestError) as caught:
        ask(retrying, **change)
    assert caught.value.param == param and len(sent) == 1
    assert len(caught.value.body["message"].split(". ")) >= 2  # type: ignore[index]


def test_parameters_that_change_nothing_are_taken() -> None:
    plain = {"model": "m", "messages": [USER], "tools": [LAMP]}
    empty = {"stop": None, "logit_bias": {}, "functions": [], "modalities": ["text"], "audio": None}
    ignored = {"temperature": 0.7, "top_p": 0.9, "seed": 1, "max_completion_tokens": 50, "parallel_tool_calls": True}
    ignored |= {"store": True, "metadata": {"a": "b"}, "service_tier": "flex", "reasoning_effort": "low", "user": "u"}
    taken = ChatRequest.model_validate({**plain, **empty, **ignored})
    assert taken.model_copy(update={"modalities": None}) == ChatRequest.model_validate(plain)


def test_untrained_tools_warn_in_a_field(serve: Serve) -> None:
    unknown, bundled, plain = serve(), serve(model=None), serve(model="random")
    for _ in range(2):
        answer = post(unknown, TURN)
        extra = answer.json()["rtcontrol"]
        assert extra["trained"] is None
        assert "trained on these tools" in extra["warning"]
        streamed = post(unknown, TURN, stream=True)
        assert extra["warning"] in streamed.text
    from rtcontrol.agents.lander.tools import agent

    known = post(bundled, *agent.tools.openai())
    assert known.json()["rtcontrol"]["trained"] is True
    for answer in (known, post(plain, TURN, model="random")):
        assert "warning" not in answer.json()["rtcontrol"]


@pytest.mark.parametrize("path", ["v1/responses", "chat/completions", "v1/v1/chat/completions"])
def test_unknown_route_is_404_with_a_hint(served: Served, path: str) -> None:
    answer = served.post(path, {})
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_found"
    assert "must end with /v1" in answer.text


TWICE = called(*LAMP_ON, "It is lit.")
BROKEN = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "lamp", "arguments": "{to"}}]}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([USER, TWICE[1], TWICE[0]], "messages[1].tool_call_id"),
        ([USER, *TWICE, TWICE[1]], "messages[3].tool_call_id"),
        ([USER, BROKEN], "messages[1].tool_calls[0].function.arguments"),
    ],
)
def test_invalid_conversation_is_refused_with_its_field(messages: list[Any], param: str) -> None:
    request = ChatRequest.model_validate({"model": "m", "messages": messages, "tools": [LAMP]})
    with pytest.raises(Refusal) as caught:
        request.parse_calls()
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"model": "default", "messages": ' + b"[" * 100_000, "not JSON"),
        (b'\xff\xfe{"model"}', "not JSON"),
        (b'{"model": "default", "messages": [], "n": NaN}', "NaN is not a JSON number"),
        (b'{"model": "default", "messages": [], "messages": []}', "the key 'messages' twice"),
    ],
)
@pytest.mark.parametrize("route", ["chat/completions", "decisions", "systemone"])
def test_body_that_is_not_plain_json_is_refused(served: Served, route: str, body: bytes, words: str) -> None:
    answer = served.post(f"v1/{route}", content=body)
    assert answer.status_code in (400, 422) and words in answer.text


# `/v1` obeys the gate of a checkpoint that knows the tools of a request. Without a server.


LANDER = TrainingMetadata.load(ZOO / "lander")
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
    held = gate().hold_reason(created(BURN, 0.12, ("dance",)))
    assert held is not None and held.index('"dance"') < held.index("the confidence of function is lowered to 0.120")
    assert gate().hold_reason(created(BURN, 0.9)) is None


def test_null_means_not_understood_unless_allowed() -> None:
    assert gate().allow_null and "not understood" in str(gate().hold_reason(created(None, 0.9)))
    assert gate(allow_null=True).hold_reason(created(None, 0.9)) is None


def test_trained_model_reads_no_system_message() -> None:
    assert gate().instruction(ORDERS, WORDS) == WORDS
    assert CheckpointGate("random", SCHEMAS, False).instruction(ORDERS, WORDS) == f"{ORDERS}\n{WORDS}"


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_chat_answers_without_a_call_and_says_why(choice: str) -> None:
    messages = [{"role": "system", "content": ORDERS}, {"role": "user", "content": "dance"}]
    body = {"model": "default", "messages": messages, "tools": TOOLS, "tool_choice": choice}
    request = ChatRequest.model_validate(body)
    requested: list[Any] = []

    async def decide(*fields: Any) -> TimedDecision:
        requested.append(fields)
        decision = created(BURN, 0.12)
        return TimedDecision(decision, 1.0, 1.0, hold_reason=gate().hold_reason(decision))

    answer = asyncio.run(decide_reply(request, request.offered_tools(), decide))
    reported = completion_body(request, answer)["choices"][0]
    assert reported["finish_reason"] == "stop" and "tool_calls" not in reported["message"]
    assert "must be at least 0.500" in reported["message"]["content"]
    assert [(fields[1], fields[-1]) for fields in requested] == [("dance", ORDERS)]


FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "where", "schema": {"properties": {"far": {"type": "boolean"}}}},
}
FAR = Call("where", {"far": True})


def replies(*calls: Call, **body: Any) -> tuple[ChatRequest, ChatReply, list[list[str]]]:
    """Return a request, the reply that uses these calls as decisions, and the names of the tools at each decision."""
    request = ChatRequest.model_validate({"model": "m", "messages": [USER], **body})
    names, left = list[list[str]](), list(calls)

    async def decide(tools: Any, *_: Any) -> TimedDecision:
        names.append([tool.get("function", tool)["name"] for tool in tools])
        return TimedDecision(created(left.pop(0), 1.0), 1.0, 1.0)

    return request, asyncio.run(decide_reply(request, request.offered_tools([TURN]), decide)), names


def test_schema_of_the_response_format_is_answered_in_the_content() -> None:
    request, reply, names = replies(FAR, response_format=FORMAT)
    choice = completion_body(request, reply)["choices"][0]
    assert names == [["where"]] and choice["finish_reason"] == "stop"
    assert json.loads(choice["message"]["content"]) == {"far": True} and "tool_calls" not in choice["message"]


def test_format_next_to_tools_ends_a_conversation_of_calls() -> None:
    lit = Call("lamp", {"to": "on"})
    answered = [USER, *called(*LAMP_ON, "It is lit.")]
    _, reply, names = replies(lit, FAR, messages=answered, tools=[LAMP], response_format=FORMAT)
    assert names == [["lamp", "where"], ["where"]] and reply.content == '{"far": true}'
    assert replies(lit, tools=[LAMP], response_format=FORMAT)[1].call == lit
    assert replies(lit, tools=[LAMP], response_format=FORMAT, tool_choice="required")[2] == [["lamp"]]
    with pytest.raises(Refusal, match="the name of the tool 'where'"):
        replies(tools=[{"name": "where"}], response_format=FORMAT)


def test_stream_has_no_characters_that_end_lines() -> None:
    text = "one\u2028two\u2029three\u0085four"
    request, reply, _ = replies(Call("say", {"text": text}), tools=[{"name": "say"}], stream=True)
    events = [json.loads(line[6:]) for line in "".join(completion_events(request, reply)).splitlines() if "{" in line]
    (call,) = events[0]["choices"][0]["delta"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"text": text}


def test_long_conversation_is_read_as_a_whole() -> None:
    told = [message for i in range(400) for message in called(*LAMP_ON, "lit", i)]
    request = ChatRequest.model_validate({"model": "m", "messages": [USER, *told], "tools": [LAMP]})
    assert len(request.calls_with_results()) == 400


LEFT: dict[str, Any] = {"type": "predicate", "name": "left", "instructions": "Is the pad to the left?"}
ENGINE: dict[str, Any] = {
    "type": "choice",
    "instructions": [{"type": "input_text", "text": "Which engine"}, {"type": "input_text", "text": "is on?"}],
    "choices": [{"value": "main", "description": "Up."}, {"value": "side"}, {"value": "none"}],
}
SPEED: dict[str, Any] = {
    "type": "score",
    "name": "speed",
    "instructions": "How fast is it?",
    "levels": [{"label": "slow"}, {"label": "fast", "description": "More than 1 m/s."}, {"label": "very fast"}],
}
STATE = "x 0.2 y 1.1 vx -0.3"


def decide(served: Served, *questions: dict[str, Any]) -> Any:
    return served.openai.decisions.create(model="lander", input=STATE, questions=list(questions))  # type: ignore[arg-type]


def test_the_openai_client_gets_typed_answers_in_order(served: Served) -> None:
    created = decide(served, LEFT, ENGINE, SPEED)
    left, engine, speed = created.answers
    assert created.model == "lander"
    assert (left.type, left.name) == ("predicate", "left") and 0 <= left.probability <= 1
    assert (engine.type, engine.name, [p.value for p in engine.probabilities]) == (
        "choice",
        None,
        ["main", "side", "none"],
    )
    shares = [p.probability for p in engine.probabilities]
    assert math.fsum(shares) == 1
    assert engine.choice == ["main", "side", "none"][shares.index(max(shares))]
    assert engine.confidence == pytest.approx((3 * max(shares) - 1) / 2)
    assert [(p.value, p.label) for p in speed.probabilities] == [(0, "slow"), (1, "fast"), (2, "very fast")]
    assert speed.score == pytest.approx(sum(p.value * p.probability for p in speed.probabilities))
    assert (
        created.rtcontrol["forward_passes"] >= 1 and created.rtcontrol["decide_ms"] <= created.rtcontrol["latency_ms"]
    )


def test_boolean_and_string_options_differ(served: Served) -> None:
    values: list[str | bool] = [True, "true", '"true"', False]
    requested = {"type": "choice", "instructions": "Which?", "choices": [{"value": v} for v in values]}
    (answer,) = decide(served, requested).answers
    assert [(type(p.value), p.value) for p in answer.probabilities] == [(type(v), v) for v in values]
    assert type(answer.choice) in (str, bool) and len({p.probability for p in answer.probabilities}) == 4


CHOICES = [{"value": str(i)} for i in range(256)]


@pytest.mark.parametrize(
    ("broken", "param", "words"),
    [
        ({"questions": [LEFT, {**ENGINE, "choices": CHOICES[:1]}]}, "questions[1].choices", "at least 2"),
        (
            {"questions": [{**ENGINE, "choices": [*CHOICES[:2], CHOICES[1]]}]},
            "questions[0].choices",
            "has the same value twice",
        ),
        ({"questions": [{"type": "predicate"}]}, "questions[0].instructions", "required"),
        ({"questions": [{"type": "box", "instructions": "x"}]}, "questions[0].type", "'predicate'"),
        ({"input": 5}, "input", "valid string"),
    ],
)
def test_request_of_wrong_shape_names_its_field(served: Served, broken: Any, param: str, words: str) -> None:
    answer = served.post("v1/decisions", {"model": "default", "input": STATE, "questions": [LEFT], **broken})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert words in error["message"]


def test_bundled_model_warns_of_untrained_questions(serve: Serve) -> None:
    answer = serve(model="lander").post("v1/decisions", {"model": "lander", "input": STATE, "questions": [LEFT]})
    extra = answer.json()["rtcontrol"]
    assert extra["trained"] is False and "not seem to be trained" in extra["warning"]


def test_scripted_decider_answers_no_questions(serve: Serve) -> None:
    body = {"model": "default", "input": STATE, "questions": [LEFT]}
    for model, words in ((None, "--model"), ("random", "random cannot answer questions")):
        answer = serve(model=model).post("v1/decisions", {**body, "model": model or "default"})
        assert answer.status_code == 400 and words in answer.json()["error"]["message"]


# Otherwise here: OpenAI's shape of models and of errors, which both APIs share, and the field `rtcontrol`.
OTHERWISE = {"http.models", "response.extensions", "errors.validation-shape", "auth.missing", "auth.invalid"}


# The server without a key differs in what the test above looks at.
@pytest.mark.parametrize("key", [pytest.param(None, marks=pytest.mark.slow), TOKEN])
def test_every_must_of_the_specification_is_met(serve: Serve, key: str | None, tmp_path: Path) -> None:
    pytest.importorskip("jevcompat", reason="jevcompat is not installed (the dev extra)")
    # The largest choice is asked for too: on a busy machine that may take its time.
    slow: dict[str, Any] = {"decide_timeout_s": 60.0}
    served = serve(**slow) if key is None else serve(token=key, require_token=True, **slow)
    sentence = tmp_path / "report.json"
    command = [sys.executable, "-m", "jevcompat.cli", "test", served.url, "--json", str(sentence), "--timeout", "100"]
    done = subprocess.run(
        [*command, *(["--key", key] if key else [])], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    report: dict[str, Any] = json.loads(sentence.read_text())
    matches = {single["id"]: (single["level"], single["status"]) for single in report["results"]}
    musts = {single for single, (level, _) in matches.items() if level == "MUST"}
    passed = {single for single, (_, status) in matches.items() if status == "pass"}
    other = {"auth.ignored-when-off" if key else "auth.bearer"}  # the one that is for the other of these two servers
    assert len(musts) >= 33 and musts - passed == other
    assert {single for single, (_, status) in matches.items() if status == "fail"} <= OTHERWISE
