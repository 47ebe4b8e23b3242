"""Deciders over HTTP: the requests to a decision API, how answers are read, and the losses if no answer comes."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
from jobs import FakeWeb
from pooled import reply_of
from standin_endpoint import standin

from rtcontrol.hosts import remote_api
from rtcontrol.hosts.inprocess import InProcessHost
from rtcontrol.hosts.protocol import DecisionLost, DecisionRequest
from rtcontrol.hosts.remote_api import LONGEST_S, EndpointDecider, EndpointSource
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.errors import UserError
from tests.helpers.processes import until

APIS = ("decisions", "systemone")
GO: dict[str, Any] = {
    "name": "go",
    "description": "Go there.",
    "parameters": {
        "properties": {
            "to": {"enum": ["left", "right"], "description": "Which way."},
            "speed": {"type": "integer", "minimum": 0, "maximum": 3},
            "careful": {"type": "boolean"},
            "gait": {"enum": ["walk"]},
        },
        "required": ["to", "speed", "gait"],
    },
}
STOP = {"name": "stop", "description": "Stop.", "parameters": {"properties": {}}}
REQUEST = DecisionRequest(3, 1, "x 2", "go left", ("go(to=right)",))


def source(api: str, *tools: dict[str, Any], url: str = "http://127.0.0.1:1/v1", **more: Any) -> EndpointSource:
    return EndpointSource.parse(f"{api}:{url}#jev", tools or (GO, STOP), **more)


def asking(api: str, *tools: dict[str, Any], **options: Any) -> tuple[EndpointDecider, FakeWeb]:
    """Return a decider over the stand-in of an endpoint, without a socket."""
    parsed = {name: options.pop(name) for name in ("allow_null", "late") if name in options}
    web = FakeWeb(f"/v1/{api}", **options)
    return EndpointDecider(source(api, *tools, **parsed), web), web


def picking(**wanted: str) -> Any:
    """Return a function that chooses by the last part of a question's name, else the first option."""
    return lambda parsed, name, options: wanted.get(name.rpartition(".")[2], options[0])


def decided(api: str, wanted: dict[str, str], **options: Any) -> Decision:
    return asking(api, choose=picking(**wanted), **options)[0].decide(REQUEST)


@pytest.mark.parametrize("api", APIS)
def test_answers_become_typed_call_with_confidences(api: str) -> None:
    server = decided(api, {"function": "go", "speed": "2", "careful": "true"})
    assert server.call == Call("go", {"to": "left", "speed": 2, "gait": "walk", "careful": True})
    assert type(server.call.arguments["speed"]) is int and server.call.arguments["careful"] is True
    assert server.confidence == {"function": 0.8, "arg1": 0.8, "arg2": 0.8, "arg3": 1.0, "arg4": 0.8}
    assert (server.forward_passes, server.tokens, server.reused_tokens) == (1, 10, 30)


@pytest.mark.parametrize("api", APIS)
def test_omitted_argument_and_null_call_are_decided(api: str) -> None:
    server = decided(api, {"function": "go", "careful": "(none)"})
    assert server.call == Call("go", {"to": "left", "speed": 0, "gait": "walk"})
    assert decided(api, {"function": "stop"}).call == Call("stop", {})
    assert decided(api, {"function": "(none)"}, allow_null=True).call is None


@pytest.mark.parametrize("api", APIS)
def test_one_request_asks_all_questions_and_names_model(api: str) -> None:
    decider, web = asking(api)
    decider.decide(REQUEST)
    (body,) = web.bodies
    questions = body["questions"]
    names = [q["name"] for q in questions] if api == "decisions" else list(questions)
    assert source(api).url.endswith(f"/v1/{api}") and body["model"] == "jev"
    assert names == ["function", "go.to", "go.speed", "go.careful"], "of one value nothing is asked"
    words = [q["instructions"] for q in (questions if api == "decisions" else questions.values())]
    assert words[1] == "If the function is go, what is to? Which way."
    parsed = body["input" if api == "decisions" else "state"]
    assert parsed == "Instruction: go left\nCalls so far: go(to=right)\nObservation: x 2"


FAULTS = {
    503: ("http", "HTTP 503: .*status 503"),
    429: ("http", "HTTP 429: .*status 429"),
    "late": ("timeout", "no answer within"),
    "drop": ("connection", "gone"),
    "refuse": ("refused", "declined to answer the question function"),
    "garbage": ("malformed", "not a JSON"),
    "short": ("malformed", "did not give one answer|not an option"),
    "odd": ("malformed", "not an option of the question function"),
    "deep": ("malformed", "not a JSON"),
}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_reported_as_its_loss(api: str, fault: Any) -> None:
    decider, _ = asking(api, fault=lambda n: fault if n % 2 else None)
    decider.decide(REQUEST)
    for _ in range(2):  # it goes on after a loss
        with pytest.raises(DecisionLost, match=FAULTS[fault][1]) as caught:
            decider.decide(REQUEST)
        assert caught.value.loss == FAULTS[fault][0]
        decider.decide(REQUEST)


@pytest.mark.parametrize(
    ("within_ms", "late", "limit_s"),
    [(80, False, 0.076), (20, False, 0.018), (1, False, 0.0), (0, False, LONGEST_S), (80, True, LONGEST_S)],
)
def test_answer_is_given_up_before_its_deadline(within_ms: int, late: bool, limit_s: float) -> None:
    decider, web = asking("decisions", late=late)
    decider.decide(replace(REQUEST, within_ns=within_ms * 1_000_000))
    assert web.limits == [pytest.approx(limit_s)]


def test_cancelled_decision_closes_http_request() -> None:
    with standin(lambda n: (5.0 if n == 0 else 0.0, None)) as server:
        host = InProcessHost(source("decisions", url=server.url))
        host.start()
        host.submit(REQUEST)
        until(lambda: server.bodies, "it was not asked")
        host.cancel(REQUEST.tick)
        until(lambda: server.dropped == 1, "the request was not closed", seconds=3)
        host.submit(DecisionRequest(5, 1, "x", "go"))
        assert reply_of(host).tick == 5
        host.close()


def test_api_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(remote_api.KEY, "sk-very-secret")
    with standin(lambda n: (0.0, 401 if n else None)) as server:
        parsed = source("decisions", url=server.url)
        decider = pickle.loads(pickle.dumps(parsed)).build()
        decider.decide(REQUEST)
        with pytest.raises(DecisionLost) as caught:
            decider.decide(REQUEST)
        assert server.headers[0]["authorization"] == "Bearer sk-very-secret" and server.connections == 1
        assert "secret" not in f"{parsed!r}{decider.info()}{caught.value}"
    with pytest.raises(UserError, match=r"would be sent to api\.example\.com unencrypted"):
        EndpointSource.parse("decisions:http://api.example.com/v1", (GO,))
    with pytest.raises(UserError, match="unencrypted"):
        remote_api.api_key(remote_api.KEY, urlsplit("ws://10.0.0.7:8000"))
    for host in ("https://api.example.com", "http://localhost:1", "http://127.0.0.2:1", "http://[::1]:1"):
        EndpointSource.parse(f"decisions:{host}/v1", (GO,))


@pytest.mark.parametrize("key", ["sk-secret\n", "sk secret", "sk-sécret"])
def test_invalid_key_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv(remote_api.KEY, key)
    with pytest.raises(UserError, match=f"The key in {remote_api.KEY} cannot be sent") as caught:
        EndpointSource.parse("decisions:https://api.example.com/v1", (GO,))
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "string"}, "Tool say, parameter what: the values cannot be listed"),
        ({"type": "integer", "minimum": 0, "maximum": 255}, "256 values"),
        ({"type": "integer"}, "cannot be listed"),
    ],
)
def test_parameter_without_options_is_refused_by_name(schema: Any, words: str) -> None:
    say = {"name": "say", "parameters": {"properties": {"what": schema}, "required": ["what"]}}
    with pytest.raises(UserError, match=words):
        EndpointSource.parse("decisions:https://x/v1", (say,))


@pytest.mark.parametrize("api", APIS)
def test_same_arguments_of_two_tools_get_separate_questions(api: str) -> None:
    schema = {"enum": ["left", "right"]}
    tools = [
        {"name": "go", "parameters": {"properties": {"to.x": schema}, "required": ["to.x"]}},
        {"name": "go.to", "parameters": {"properties": {"x": schema}, "required": ["x"]}},
    ]
    decider, web = asking(api, *tools, choose=lambda parsed, name, options: options[-1] if "'" in name else options[0])
    call, (body,) = decider.decide(REQUEST).call, web.bodies
    assert call == Call("go", {"to.x": "left"}) and len(body["questions"]) == 3
