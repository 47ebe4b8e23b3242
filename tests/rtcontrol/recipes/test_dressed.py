"""Tools under other names mean what they meant: a call is legal there, and says the same."""

from __future__ import annotations

import itertools
from collections import Counter
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rtcontrol.models.call import Call
from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.schema.tool_schema import ToolSchema
from rtcontrol.training.base_worlds import RECIPES
from rtcontrol.training.tool_randomization import PARAMETERS, TOOLS, WORDS, Dressed, dressed, plain
from tests.models.small import law


def legal(call: Call, tools: tuple[ToolSchema, ...]) -> bool:
    (tool,) = [tool for tool in tools if tool.name == call.name]
    assert [*call.arguments] == [p.name for p in tool.parameters]
    return all(isinstance(p.domain, ClosedDomain) and p.domain.holds(call.arguments[p.name]) for p in tool.parameters)


def undone(call: Call, tools: tuple[ToolSchema, ...]) -> Call:
    """The call in the world's own names, by the tables alone."""
    (tool,) = [t for t in tools if call.name in (t.name, *TOOLS[t.name]) and len(t.parameters) == len(call.arguments)]
    written = {}
    for p in tool.parameters:
        (value,) = [v for k, v in call.arguments.items() if k in (p.name, *PARAMETERS[p.name])]
        back = {other: word for word, others in WORDS.items() for other in others}
        written[p.name] = back.get(value, value) if isinstance(value, str) else value
    return Call(tool.name, written)


@pytest.mark.parametrize("world", RECIPES)
@law(40)
@example(seed=43, synonyms=0.0, distracting=3)  # a companion was named as a tool of the world
@given(seed=st.integers(0, 10**9), synonyms=st.sampled_from([0.0, 0.5, 1.0]), distracting=st.integers(0, 3))
def test_a_dressed_call_is_legal_and_means_the_same(world: str, seed: int, synonyms: float, distracting: int) -> None:
    tools = tuple(RECIPES[world].agent.tools.schemas)
    way = dressed(Random(seed), tools, synonyms, distracting)
    assert len(tools) <= len(way.tools) <= len(tools) + distracting
    assert len({tool.name for tool in way.tools}) == len(way.tools)
    for tool in tools:
        values = [[*p.schema["enum"]] for p in tool.parameters]
        for chosen in itertools.islice(itertools.product(*values), 12):
            call = Call(tool.name, dict(zip([p.name for p in tool.parameters], chosen, strict=True)))
            found = way.call(call)
            assert legal(found, way.tools)
            assert undone(found, tools) == call
            if not synonyms:
                assert found.name == call.name and dict(found.arguments) == dict(call.arguments)


def test_names_orders_and_companions_differ() -> None:
    tools = tuple(RECIPES["road"].agent.tools.schemas)
    rng = Random(0)
    ways: list[Dressed] = [dressed(rng, tools) for _ in range(200)]
    names = Counter(tool.name for way in ways for tool in way.tools)
    assert all(names[other] for tool in tools for other in TOOLS[tool.name])
    assert len({way.tools[0].name for way in ways}) > 10
    assert {len(way.tools) for way in ways} == {6, 7, 8, 9}
    listed = {tuple(t.parameters[0].schema["enum"]) for way in ways for t in way.tools if t.name == "brake"}
    assert len(listed) > 20


def test_plain_tools_are_as_they_were() -> None:
    tools = tuple(RECIPES["lander"].agent.tools.schemas)
    call = Call("engines", {"main": 50, "side": 0})
    assert plain(tools).tools == tools and plain(tools).call(call) == call
