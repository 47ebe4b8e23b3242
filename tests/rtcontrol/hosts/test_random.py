"""Random calls: legal ones, or a refusal before the first of them."""

from __future__ import annotations

from typing import Any

import pytest

from rtcontrol.agents import Tools
from rtcontrol.gateway.source import source
from rtcontrol.hosts.deciders import RandomSource, build
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.models.errors import UserError


def tool(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"name": "heat", "parameters": {"type": "object", "properties": properties, "required": required}}


def test_an_open_domain_is_refused_when_it_is_opened_whichever_tool_would_be_drawn() -> None:
    tools = (tool(["t"], t={"type": "number"}), {"name": "stop"})
    with pytest.raises(UserError, match="Tool heat, parameter t: no value of it can be made up"):
        build(source("random", "torch", tools))
    build(RandomSource((tool([], t={"type": "number"}),)))


def test_numbers_too_many_to_list_are_drawn_within_their_bounds() -> None:
    steps = {"type": "number", "minimum": -1, "maximum": 9_000, "multipleOf": 0.5}
    given = (tool(["n", "x"], n={"type": "integer", "minimum": 7, "maximum": 100_000}, x=steps),)
    decider, checked = build(RandomSource(given)), Tools(given)
    calls = [decider.decide(DecisionRequest(i, 0, "", "")).call for i in range(100)]
    assert len({checked.validate(call).arguments["n"] for call in calls if call is not None}) > 90
