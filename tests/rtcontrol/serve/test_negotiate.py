"""Negotiation without a server: a hello leads to settings and a welcome, or to a refusal with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtcontrol.run import assembly
from rtcontrol.serve.negotiate import SessionTerms, negotiate
from rtcontrol.serve.options import ServeOptions
from rtcontrol_client.wire import WireError
from rtcontrol_client.wire.messages import FunctionCall, Hello, Program, Welcome

PAD = {
    "type": "function",
    "function": {
        "name": "move",
        "description": "Move the pad.",
        "parameters": {
            "type": "object",
            "properties": {"dx": {"type": "integer", "enum": [-1, 0, 1]}, "fast": {"type": "boolean"}},
            "required": ["dx"],
        },
    },
}
OWN: dict[str, Any] = {"tools": [PAD], "instruction": "catch the ball"}
RANDOM = ServeOptions(model="random")
STOP = FunctionCall(name="move", arguments={"dx": 0})


def terms(served: ServeOptions = RANDOM, **fields: Any) -> SessionTerms:
    """Return the negotiated settings of a hello, by default for the lander."""
    if "tools" not in fields:
        fields.setdefault("agent", "lander")
    given: dict[str, Any] = {"client": Program(name="test"), "protocol": [1, 1], "t_client_ns": 1}
    return negotiate(Hello(**{**given, **fields}), served, Path("out"))


def denied(**fields: Any) -> WireError:
    with pytest.raises(WireError) as caught:
        terms(**fields)
    return caught.value


def welcome(created: SessionTerms) -> Welcome:
    active = {"session": "x" * 32, "instruction": created.agent.instruction, "epoch": 0, "t_server_ns": 7}
    return created.welcome(**active, t_client_ns=0, resumed=False)


def of(properties: dict[str, Any], required: Any = ()) -> dict[str, Any]:
    """Return a tool with these parameters."""
    return {"name": "f", "parameters": {"type": "object", "properties": properties, "required": required or []}}


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({"agent": "nobody"}, "agent", "lander"),
        ({"agent": "/etc/passwd.py"}, "agent", "agents are"),
        ({"agent": None}, "agent", "tools"),
        ({"agent": "lander", **OWN}, "invalid", "both"),
        ({"tools": [PAD]}, "instruction", "instruction"),
        ({"tools": [{"name": 3}], "instruction": "x"}, "tools", "name"),
        ({"tools": [PAD, PAD], "instruction": "x"}, "tools", "Two tools"),
        ({"tools": [{"name": "f", "parameters": {"properties": {"a": 1}}}], "instruction": "x"}, "tools", "a"),
        ({"tools": [of({"a": {"type": "string"}}, required=["a"])], "instruction": "x"}, "tools", "parameter a"),
        ({**OWN, "safe_calls": [STOP, FunctionCall(name="move")]}, "tools", "dx"),
        ({**OWN, "safe_call": FunctionCall(name="move", arguments={"dx": 9})}, "tools", "dx"),
        ({"deadline_ms": 100.0}, "invalid", "period"),
        ({"max_age_ms": 0.0}, "invalid", "max_age"),
    ],
)
def test_hello_is_refused_with_the_reason(fields: dict[str, Any], code: str, says: str) -> None:
    error = denied(**fields)
    assert (error.code, error.fatal, error.retryable) == (code, True, False), error
    assert says in error.message + error.remedy, error


@pytest.mark.parametrize(
    ("served", "named", "fields", "says"),
    [
        ("random", "lander", OWN, "trained on other tools"),
        ("random", "lander", {"agent": "driver"}, '"driver"'),
        ("random", "/etc", {}, "Set `model`"),
        ("random", "expert", OWN, "expert"),
        (None, None, OWN, "random"),
        ("lander", None, {"agent": "driver"}, '"driver"'),
    ],
)
def test_model_that_does_not_fit_is_refused(
    served: str | None, named: str | None, fields: dict[str, Any], says: str
) -> None:
    error = denied(served=ServeOptions(model=served), model=named, **fields)
    assert error.code == "model" and says in error.message + error.remedy, error


def test_welcome_has_the_agents_settings() -> None:
    result = welcome(terms())
    assert (result.agent, result.instruction, result.t_server_ns) == ("lander", "land on the pad", 7)
    assert result.tools[0]["function"]["name"] == "engines"
    assert result.safe_call == FunctionCall(name="engines", arguments={"main": 0, "side": 0})
    assert (result.hz, result.period_ms, result.deadline_ms, result.ttl_ms) == (16.0, 62.5, 62.5, 500)
    assert (result.heartbeat_ms, result.session_grace_s, result.limits["max_parts"]) == (1000, 30, 8)
    assert not result.resumed and result.epoch == 0
    quiet = terms(served=ServeOptions(model="random", record_observations="no"))
    assert (terms().config.record_observations, quiet.config.record_observations) == ("yes", "no")


def test_welcome_says_whether_tools_were_trained() -> None:
    lander = assembly.load_agent("lander").tools.openai()
    result = welcome(terms(ServeOptions(), tools=lander, instruction="land on the pad"))
    assert (result.agent, result.model, result.trained, result.model_trained_on_tools) == (None, "lander", True, True)
    assert welcome(terms(**OWN)).trained is None and not welcome(terms(**OWN)).model_trained_on_tools


def test_safe_calls_that_fill_queues_are_refused() -> None:
    long = FunctionCall(name="move", arguments={"dx": "x" * 60_000})
    error = denied(**OWN, safe_calls=[long] * 4)
    assert (error.code, error.field) == ("tools", "safe_calls") and "128 KiB" in error.message


def test_welcome_has_all_safe_calls() -> None:
    calls = [STOP, FunctionCall(name="move", arguments={"dx": 0, "fast": False})]
    result = welcome(terms(**OWN, safe_calls=calls))
    assert (result.safe_call, result.safe_calls) == (STOP, calls)


def test_serves_the_tools_of_the_model_without_others() -> None:
    names = [body["function"]["name"] for body in ServeOptions(model="village").prepare().default_tools]
    assert names == ["walk", "run", "look", "stay"]
    assert not ServeOptions().prepare().default_tools
