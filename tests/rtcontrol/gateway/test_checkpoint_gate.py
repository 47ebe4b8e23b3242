"""`/v1` obeys the gate of a checkpoint that knows the tools of a request. Without a server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rtcontrol.gateway.chat import completion, decided
from rtcontrol.gateway.chat_request import ChatRequest
from rtcontrol.gateway.decide import Timed
from rtcontrol.gateway.source import CheckpointGate
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.checkpoint.checkpoint import ZOO
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.schema.tool_schema import tool_schemas

LANDER = TrainingMetadata.of(ZOO / "lander")
assert LANDER is not None and LANDER.gate is not None and LANDER.tools is not None
TOOLS = [dict(tool) for tool in LANDER.tools]
SCHEMAS = tool_schemas(tuple(TOOLS))
BURN = Call("engines", {"main": 100, "side": 0})
ORDERS, SAID = "You are a pilot.", "land on the pad"


def made(call: Call | None, sure: float, unknown: tuple[str, ...] = ()) -> Decision:
    return Decision(call, {"function": sure}, 1, 1, 0, unknown)


def gate(allow_null: bool = False) -> CheckpointGate:
    return CheckpointGate.of(None, SCHEMAS, allow_null)


def test_call_below_the_gate_is_held_with_the_reason() -> None:
    held = gate().held(made(BURN, 0.12, ("dance",)))
    assert held is not None and "function is 0.120 sure, and acts from 0.500 on" in held and '"dance"' in held
    assert gate().held(made(BURN, 0.9)) is None


def test_null_means_not_understood_unless_it_was_asked_for() -> None:
    assert gate().allow_null and "not understood" in str(gate().held(made(None, 0.9)))
    assert gate(allow_null=True).held(made(None, 0.9)) is None


def test_tools_unknown_to_the_checkpoint_have_no_gate() -> None:
    other = CheckpointGate.of("random", SCHEMAS, False)
    assert not other.allow_null and other.held(made(BURN, 0.01)) is None


def test_system_message_is_no_instruction_of_a_trained_model() -> None:
    assert gate().instruction(ORDERS, SAID) == SAID
    assert CheckpointGate().instruction(ORDERS, SAID) == f"{ORDERS}\n{SAID}"


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_chat_answers_without_a_call_and_says_why(choice: str) -> None:
    messages = [{"role": "system", "content": ORDERS}, {"role": "user", "content": "dance"}]
    body = {"model": "default", "messages": messages, "tools": TOOLS, "tool_choice": choice}
    request = ChatRequest.model_validate(body)
    asked: list[Any] = []

    async def decide(*given: Any) -> Timed:
        asked.append(given)
        decision = made(BURN, 0.12)
        return Timed(decision, SCHEMAS, 1.0, 1.0, held=gate().held(decision))

    answer = asyncio.run(decided(request, request.offer(), decide))
    told = completion(request, answer)["choices"][0]
    assert told["finish_reason"] == "stop" and "tool_calls" not in told["message"]
    assert "acts from 0.500 on" in told["message"]["content"]
    assert [(given[1], given[-1]) for given in asked] == [("dance", ORDERS)]
