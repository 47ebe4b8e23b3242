"""The bundled base finds what is named under tools and names that no training showed."""

from __future__ import annotations

from random import Random

import pytest

from rtcontrol.bench.other_tools import drawn, flown
from rtcontrol.envs import registry
from rtcontrol.envs.evaluate import cases
from rtcontrol.models.checkpoint.checkpoint import ZOO
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.train.tasks import names
from rtcontrol.models.train.tasks.names import Variety, look_up
from rtcontrol.training.base_worlds import RECIPES
from rtcontrol.training.tool_randomization import plain

PLAIN = {"several_tools": 0.0, "digit": 0.0, "name": 0.0, "unasked": 0.0}


@pytest.mark.parametrize(("kind", "things"), [("words", 3), ("made up", 3), ("spelt", 6)])
def test_it_finds_names_that_it_never_saw_under_new_tools(kind: str, things: int) -> None:
    mix = tuple(float(kind == one) for one in names.KINDS)
    variety = Variety(names=mix, **PLAIN)  # type: ignore[arg-type]
    rng, right, asked = Random(f"bundled {kind}"), 0, 0
    for _ in range(8):
        for task in look_up(rng, things, True, variety):
            decider = DeciderSpec("base", tuple(tool.to_openai() for tool in task.tools)).build()
            for told in task.told:
                assert not any(word in names.TRAINING.get(kind, ()) for word in told.instruction.split())
                right += decider.decide(task.observation, told.instruction).call == told.call
                asked += 1
    assert asked == 48 and right >= 42  # chance is a third and less


def test_it_flies_a_world_whose_tools_it_knows_and_under_names_that_it_reads() -> None:
    skill, tools = registry.skill("lander"), RECIPES["lander"].agent.tools.schemas
    assert skill is not None
    told = cases(skill.goals[0], range(5000, 5006))
    for made in (plain(tools), drawn(tools, "synonyms", 0)):
        assert sum(flown("base", "lander", made, told)) >= 4


def test_it_is_as_small_as_was_asked() -> None:
    assert (ZOO / "base" / "model.safetensors").stat().st_size <= 16 << 20
