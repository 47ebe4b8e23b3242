"""The request and response shapes of SimpleTool and OpenAI, and what is told to monitors."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from gateway_served import TURN, Serve, Served

from tests.models.small import build_checkpoint

MOVE: dict[str, Any] = {
    "name": "move",
    "description": "Go somewhere.",
    "parameters": {
        "type": "object",
        "properties": {
            "speed": {"type": "integer", "enum": [0, 50, 100]},
            "Where": {"type": "string", "enum": ["Home", "the Sea"]},
            "careful": {"type": "boolean"},
        },
        "required": ["Where", "speed"],
    },
}
# As the light-cycle game sends it.
GAME = {
    "messages": [{"role": "user", "content": "Tron light cycle. Wall ahead! Turn LEFT (9 cells free)."}],
    "tools": [TURN],
    "environment": ["pos=10,10", "facing=right", "dist_straight=2", "enemy=none"],
}
PICTURE = {"type": "image_url", "image_url": {"url": "x"}}
SHAPE = {"success", "function", "args", "heads", "content", "latency_ms", "error"}


@pytest.fixture(scope="module")
def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=served.url + "v1", api_key="none", max_retries=0)


def ask(client: openai.OpenAI, *messages: dict[str, Any], **more: Any) -> Any:
    said = messages or ({"role": "user", "content": "Turn left."},)
    return client.chat.completions.create(**{"model": "lander", "messages": list(said), "tools": [TURN], **more})


def test_a_game_gets_its_call_in_the_shape_it_reads(served: Served) -> None:
    answer = served.post("v1/function_call", GAME)
    said = answer.json()
    assert answer.status_code == 200 and set(said) == SHAPE
    assert said["success"] is True and said["function"] == "turn" and said["error"] is None
    assert said["args"]["direction"] in ("straight", "left", "right")
    assert said["heads"] == {"function": "turn", "arg1": said["args"]["direction"]}
    assert said["latency_ms"] > 0
    whole = {**GAME, "history": ["turn(left)"], "max_tokens": 32, "temperature": 0.0, "include_content_head": True}
    assert served.post("v1/function_call", whole).json()["success"] is True


def test_a_free_value_has_as_many_tokens_as_the_server_allows(serve: Serve) -> None:
    long = {"type": "string", "minLength": 40, "maxLength": 60}
    say = {"name": "say", "parameters": {"properties": {"text": long}, "required": ["text"]}}
    enough, too_few = (
        serve(value_tokens=tokens).post("v1/function_call", {**GAME, "tools": [say]}).json() for tokens in (64, 2)
    )
    assert enough["success"] is True and len(enough["args"]["text"]) >= 40
    assert too_few["success"] is False and "no value of at most 2 tokens" in too_few["error"]


def test_arguments_are_typed_and_named_by_the_chosen_function(served: Served) -> None:
    said = served.post("v1/function_call", {**GAME, "tools": [TURN, MOVE]}).json()
    assert set(said["heads"]) == {"function", "arg1", "arg2", "arg3"}
    own = {"move": {"Where", "speed"}, "turn": {"direction"}}[said["function"]]
    assert own <= set(said["args"]) <= own | {"careful"}
    said = served.post("v1/function_call", {**GAME, "tools": [MOVE]}).json()
    assert said["args"]["Where"] in ("Home", "the Sea")
    assert said["args"]["speed"] in (0, 50, 100)
    # Required ones first, in the order of `properties`, then the optional ones.
    assert said["heads"]["arg1"] == str(said["args"]["speed"]) and said["heads"]["arg2"] == said["args"]["Where"]


@pytest.mark.parametrize(
    "tools",
    [
        [{"name": "x", "parameters": {"type": "object", "properties": {"a": 5}}}],
        [{"name": "x", "parameters": 5}],
        [{"name": "x", "parameters": {"properties": {"a": {"enum": []}}}}],
        [{}],
        [TURN, TURN],
    ],
)
def test_tools_that_cannot_be_compiled_are_an_unsuccessful_answer(served: Served, tools: list[Any]) -> None:
    answered(served, {**GAME, "tools": tools}, 200)


def answered(served: Served, body: Any, status: int) -> dict[str, Any]:
    """What is said of a body that gets no call, in the shape that games read."""
    answer = served.post("v1/function_call", body)
    said: dict[str, Any] = answer.json()
    assert (answer.status_code, set(said), said["success"]) == (status, SHAPE, False)
    assert len(said["error"]) > 10
    return said


def test_a_null_function_is_no_function_called(serve: Any) -> None:
    answer = answered(serve(model="noop"), GAME, 200)
    assert answer["error"] == "No function called"
    assert answer["heads"] == {"function": "", "arg1": ""}


@pytest.mark.parametrize("broken", [{"tools": [TURN]}, {**GAME, "messages": "hi"}, {**GAME, "environment": [1]}, []])
def test_a_request_of_another_shape_names_the_field(served: Served, broken: Any) -> None:
    answered(served, broken, 422)


def test_requests_at_once_all_get_their_own_answer(served: Served) -> None:
    def ask(tool: dict[str, Any]) -> str:
        return str(served.post("v1/function_call", {**GAME, "tools": [tool]}).json()["function"])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, [TURN, MOVE] * 12)) == ["turn", "move"] * 12


def test_more_tool_sets_than_are_kept_open_are_closed_again(serve: Any) -> None:
    few = serve(tool_sets=2, model="random")
    for i in range(5):
        renamed = {**TURN["function"], "name": f"turn_{i}"}
        assert few.post("v1/function_call", {**GAME, "tools": [renamed]}).json()["function"] == f"turn_{i}"
    assert few.post("v1/function_call", {**GAME, "tools": [{**TURN["function"], "name": "turn_0"}]}).json()["success"]
    assert "rtcontrol_tool_sets 2.0" in httpx.get(few.url + "metrics").text
    assert few.pool.places.taken <= 3


def test_the_openai_client_gets_a_tool_call(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == ["lander"]
    orders = {"role": "system", "content": "You steer a light cycle."}
    said = {"role": "user", "content": [{"type": "text", "text": "Turn left."}]}
    answer = ask(client, orders, said, temperature=0.7, extra_body={"environment": ["dist_left=9"]})
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    call = choice.message.tool_calls[0]
    assert call.function.name == "turn" and set(json.loads(call.function.arguments)) == {"direction"}
    assert answer.usage is not None and answer.usage.prompt_tokens > 10
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_conversation_with_earlier_calls_goes_on(client: openai.OpenAI) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "turn", "arguments": '{"direction": "left"}'}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    done = {"role": "tool", "tool_call_id": "c1", "content": "done"}
    first, again = ({"role": "user", "content": text} for text in ("Turn.", "Again."))
    answer = ask(client, first, called, done, again, model="default", tool_choice="required")
    assert answer.choices[0].message.tool_calls


def test_streaming_gives_the_same_call_in_pieces(client: openai.OpenAI) -> None:
    name, arguments, finish, usage = "", "", None, None
    for chunk in ask(client, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            for piece in choice.delta.tool_calls or []:
                name += piece.function.name or ""
                arguments += piece.function.arguments or ""
    assert name == "turn" and set(json.loads(arguments)) == {"direction"}
    assert finish == "tool_calls" and usage is not None


def test_parallel_calls_are_those_of_single_requests_each_with_the_calls_before(serve: Serve, tmp_path: Path) -> None:
    # Of random weights, which look at the calls before, as a model trained without any need not.
    served = serve(model=str(build_checkpoint(tmp_path / "m", seed=2)))
    client = openai.OpenAI(base_url=served.url + "v1", api_key="none", max_retries=0)
    user = {"role": "user", "content": "Go left, then home."}
    tools = [TURN, {"type": "function", "function": MOVE}]
    answer = ask(client, user, model="m", tools=tools, parallel_tool_calls=True)
    several = [(c.function.name, c.function.arguments) for c in answer.choices[0].message.tool_calls]
    assert 2 <= len(several) <= 7 and len(set(several)) == len(several)
    earlier: list[dict[str, Any]] = []
    for wanted in several:
        single = (
            ask(client, user, *earlier, model="m", tools=tools, parallel_tool_calls=False).choices[0].message.tool_calls
        )
        assert [(c.function.name, c.function.arguments) for c in single] == [wanted]
        function = {"name": wanted[0], "arguments": wanted[1]}
        call = {"id": f"c{len(earlier)}", "type": "function", "function": function}
        earlier.append({"role": "assistant", "content": None, "tool_calls": [call]})
    if len(several) < 7:  # the next one repeats
        (last,) = ask(client, user, *earlier, model="m", tools=tools).choices[0].message.tool_calls
        assert (last.function.name, last.function.arguments) in several
    assert len(ask(client, user, model="m", tools=tools).choices[0].message.tool_calls) == 1
    passes = answer.model_extra["rtcontrol"]
    assert len(passes["confidences"]) == len(several) and passes["forward_passes"] > 1


def test_parallel_calls_end_where_one_repeats(serve: Any) -> None:
    asked = serve(model="random")
    body = {"model": "random", "messages": [{"role": "user", "content": "Turn."}], "tools": [TURN]}
    counts = set()
    for _ in range(30):
        made = asked.post("v1/chat/completions", {**body, "parallel_tool_calls": True}).json()
        calls = [call["function"]["arguments"] for call in made["choices"][0]["message"]["tool_calls"]]
        assert len(set(calls)) == len(calls) <= 3  # there are no more to be had
        counts.add(len(calls))
    assert counts == {1, 2, 3}


def test_naming_a_tool_leaves_the_others_out(client: openai.OpenAI) -> None:
    named = {"type": "function", "function": {"name": "move"}}
    answer = ask(client, tools=[TURN, {"type": "function", "function": MOVE}], tool_choice=named)
    assert answer.choices[0].message.tool_calls[0].function.name == "move"


@pytest.mark.parametrize(
    ("change", "error", "word"),
    [
        ({"model": "gpt-4o"}, openai.NotFoundError, "lander"),
        ({"tools": []}, openai.BadRequestError, "tools"),
        ({"tool_choice": "none"}, openai.BadRequestError, "tool_choice"),
        ({"n": 2}, openai.BadRequestError, "n = 2"),
        ({"response_format": {"type": "json_object"}}, openai.BadRequestError, "response_format"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"tools": [{"type": "function", "function": {}}]}, openai.BadRequestError, "name"),
        ({"messages": [{"role": "user", "content": [PICTURE]}]}, openai.BadRequestError, "image_url"),
    ],
)
def test_what_is_not_offered_is_an_error_object(
    client: openai.OpenAI, change: dict[str, Any], error: type[openai.APIStatusError], word: str
) -> None:
    with pytest.raises(error) as caught:
        ask(client, **change)
    body: Any = caught.value.body
    assert word in body["message"] and body["type"] == "invalid_request_error" and body["code"]


def test_health_and_metrics_tell_what_happened(served: Served) -> None:
    health = httpx.get(served.url + "health").json()
    assert health["status"] == "ok" and health["loaded"] is True and health["model"] == "lander"
    served.post("v1/function_call", GAME)
    text = httpx.get(served.url + "metrics").text
    assert 'rtcontrol_http_requests_total{route="function_call",status="200"}' in text
    assert "rtcontrol_request_decision_seconds_bucket" in text
    assert 'rtcontrol_sessions{state="live"}' in text


def test_health_is_503_once_the_decoder_cannot_be_reached(serve: Any) -> None:
    own = serve(model="noop")
    assert httpx.get(own.url + "health").status_code == 200
    own.pool.close()
    answer = httpx.get(own.url + "health")
    assert answer.status_code == 503
    assert answer.json()["loaded"] is False and answer.json()["status"] != "ok"


@pytest.mark.parametrize("path", ["v1/function_call", "v1/chat/completions"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH"])
def test_another_method_than_post_is_not_allowed_and_told(served: Served, path: str, method: str) -> None:
    answer = httpx.request(method, served.url + path)
    assert answer.status_code == 405 and answer.headers["allow"] == "POST"
    assert method == "HEAD" or "POST" in answer.json()["error"]["message"]


def test_unknown_paths_are_not_found(served: Served) -> None:
    assert httpx.get(served.url + "v1/nothing").status_code == 404
    assert httpx.get(served.url + "no-such-page").status_code == 404
