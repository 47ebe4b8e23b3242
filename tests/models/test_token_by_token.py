"""Decoding token by token is a budget of one node: the same call, a forward pass a token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.decode.protocol import Budget
from tests.models.small import MARGIN, Oracle, build, law, prompt_of, tool, tool_lists

WAYS = (Budget(1), Budget(1, forced=True), Budget(1, paths=True), Budget(3, paths=True))


@law(30)
@given(tools=tool_lists(), way=st.sampled_from(WAYS), allow_null=st.booleans(), observation=st.text(max_size=20))
def test_baseline_gives_the_same_call(
    folder: Path, oracle: Oracle, tools: Any, way: Budget, allow_null: bool, observation: str
) -> None:
    decider: Any = build(folder, tools, allow_null=allow_null, budget_per_head=9)
    one = decider.decide(observation, "go")
    decider.decoding.core.set_budget(way)
    oracle.decide(decider.plan, prompt_of(decider, observation, "go"))
    if oracle.margin > MARGIN:
        assert decider.decide(observation, "go").call == one.call


def test_baseline_takes_a_pass_for_each_token_of_the_longest_head(folder: Path) -> None:
    values = ["alpha beta go", "alpha beta stop"]
    decider: Any = build(folder, [tool(n, v=values) for n in ("go", "stop")])
    decider.decoding.core.set_budget(Budget(1, forced=True))
    # Head token, alpha, beta, go or stop; the end token is not fed.
    assert decider.decide("left", "go").forward_passes == 4
    decider.decoding.core.set_budget(Budget(9))
    # The forced start rides along, the forced end costs nothing.
    assert decider.decide("left", "go").forward_passes == 1


def test_paths_of_one_choice_each_take_a_pass_for_each_choice(folder: Path) -> None:
    values = [f"alpha beta {a} red {b}" for a in ("left", "right") for b in ("slow", "fast")]
    decider: Any = build(folder, [tool(n, v=values) for n in ("go", "stop")])
    decider.decoding.core.set_budget(Budget(1))
    assert decider.decide("left", "go").forward_passes == 5
    decider.decoding.core.set_budget(Budget(1, paths=True))
    assert decider.decide("left", "go").forward_passes == 2
    # Two tools, and two choices of the value; what only leads to them is asked for nothing.
    assert sum(len(head.rows) for head in decider.decoding._last.deciding.heads) == 3
