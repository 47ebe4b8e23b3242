"""Worlds flown under other tools are the same worlds: each call comes back as what it stands for, and no other acts."""

from __future__ import annotations

from random import Random

import pytest

from rtcontrol.bench.other_tools import WAYS, drawn, flown, undressed
from rtcontrol.envs import registry
from rtcontrol.envs.evaluate import cases
from rtcontrol.models.call import Call
from rtcontrol.training.base_worlds import RECIPES
from rtcontrol.training.tool_randomization import plain


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("env", RECIPES)
def test_a_call_under_other_names_is_the_worlds_own_again(env: str, way: str) -> None:
    tools, skill, rng = RECIPES[env].agent.tools.schemas, registry.skill(env), Random(0)
    assert skill is not None
    for number in range(3):
        made = drawn(tools, way, number)
        assert len(made.tools) == len(tools) + WAYS[way][1]
        for _ in range(40):
            call = skill.any_call(rng)
            assert undressed(made, made.call(call)) == call
        own = {name for name, _ in made.names.values()}
        for tool in made.tools:
            if tool.name not in own:
                assert undressed(made, Call(tool.name)) is None
    assert WAYS[way][0] == 0.0 or {tool.name for tool in made.tools} - {tool.name for tool in tools}


def test_the_own_tools_score_as_they_do_anywhere() -> None:
    skill = registry.skill("paddle")
    assert skill is not None
    told = cases(skill.goals[4], [5000, 5001])
    assert flown("paddle", "paddle", plain(RECIPES["paddle"].agent.tools.schemas), told) == [1, 1]
