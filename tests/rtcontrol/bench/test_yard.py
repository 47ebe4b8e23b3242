"""The yard's tasks are legal, follow from their text, and change with the instruction."""

from __future__ import annotations

import itertools
import random

import pytest

from rtcontrol.agents import Tools
from rtcontrol.bench import yard
from rtcontrol.training.fit_run import name_things


def test_every_call_is_legal_and_all_tools_and_goals_occur() -> None:
    tools, rng = Tools(yard.TOOLS), random.Random(0)
    rows = list(itertools.islice(yard.Yard().rows(rng), 1_500))
    called = {tools.validate(row.call).name for row in rows if row.call is not None}
    assert called == {tool.name for tool in tools} and len(called) == 6
    assert {yard.kind_of(row.instruction) for row in rows} == set(yard.GOALS)
    assert sum("{" in said[0] for said in yard.GOALS.values()) == 4
    assert name_things(rows)


def test_the_right_call_changes_with_the_instruction_in_most_states() -> None:
    assert yard.changes(800) > 0.5


def test_an_instruction_of_another_world_is_refused() -> None:
    seen = yard.observe(random.Random(1))
    with pytest.raises(ValueError, match="no goal"):
        yard.right("land on the pad", seen)
    with pytest.raises(ValueError, match="nothing that is there"):
        yard.right("go to the purple one", seen)
