"""The same core over Hugging Face's own forwards gives the same call: for every architecture and every budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.decode.protocol import Budget
from rtcontrol.models.errors import UserError
from tests.models.small import MARGIN, TOLD, Oracle, build, law, over_hugging_face, prompt_of, shown, tool, tool_lists


@law(10)
@given(
    tools=tool_lists(),
    budget=st.builds(Budget, st.integers(1, 9), st.sampled_from((1, 3, 7, 128)), st.booleans(), st.booleans()),
    allow_null=st.booleans(),
    prompts=st.lists(TOLD, min_size=2, max_size=2),
)
def test_one_core_gives_the_same_call_over_either_runner(
    checkpoint: tuple[Path, Oracle], tools: Any, budget: Budget, allow_null: bool, prompts: list[tuple[str, str]]
) -> None:
    folder, oracle = checkpoint
    ours = build(folder, tools, allow_null=allow_null)
    theirs = over_hugging_face(build(folder, tools, allow_null=allow_null), oracle.model)
    for made in (ours, theirs):
        made.decoding.core.set_budget(budget)
    for told in prompts:
        expected = oracle.decide(theirs.plan, prompt_of(theirs, *told))
        one, other = ours.decide(*told), theirs.decide(*told)
        ours.rest()
        theirs.rest()
        if oracle.margin > MARGIN:
            assert shown(other) == expected
            assert shown(one) == expected
            assert one.confidence == pytest.approx(other.confidence, rel=1e-2)
            assert one.forward_passes == other.forward_passes
            assert one.outside_mass == pytest.approx(other.outside_mass, abs=1e-3)


def test_a_runner_without_branches_is_asked_for_one_node_a_head(folder: Path, oracle: Oracle) -> None:
    values = [f"{first} beta {last}" for first in ("alpha", "go") for last in ("left", "right")]
    tools = [tool(n, v=values, w=[1, 2, 20]) for n in ("go", "stop")]
    for budget in (None, Budget(9)):
        decider = over_hugging_face(build(folder, tools), oracle.model, budget)
        run, widest = decider.runner.run, []

        def counted(batch: Any, run: Any = run, widest: list[int] = widest) -> Any:
            widest.append(max(len(ask.nodes) for work in batch for ask in work.tree.asks))
            return run(batch)

        decider.runner.run = counted  # type: ignore[method-assign]
        assert decider.decide("left", "go").forward_passes == len(widest) == 2
        assert max(widest) <= len(decider.plan.heads)


def test_what_was_computed_is_reused_and_after_forgetting_computed_anew(folder: Path, oracle: Oracle) -> None:
    decider = over_hugging_face(build(folder, [tool("go", v=["left", "red"])]), oracle.model)
    first, again, other = (decider.decide(seen, "go left") for seen in ("x=1", "x=1", "x=2"))
    prompt = len(prompt_of(decider, "x=1", "go left"))
    assert (first.reused_tokens, again.reused_tokens) == (decider.prefix.tokens, prompt)
    assert other.reused_tokens == decider.prefix.tokens
    assert again.call == first.call
    decider.decoding.handle.forget()
    anew = decider.decide("x=1", "go left")
    assert (anew.reused_tokens, anew.call) == (0, first.call)
    assert decider.decide("x=2", "go left").reused_tokens == decider.prefix.tokens


def test_a_prompt_that_leaves_no_room_is_the_users_error(folder: Path, oracle: Oracle) -> None:
    decider = over_hugging_face(build(folder, [tool("go", v=["left", "red"])]), oracle.model)
    with pytest.raises(UserError, match="context of 2048"):
        decider.decide(" go" * 2048, "go")
    assert decider.decide("x=1", "go left").call is not None
