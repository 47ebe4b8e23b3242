"""The token-by-token baseline gives the one-pass decision's call, a forward pass a token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.token_by_token import token_by_token
from tests.models.small import MARGIN, Oracle, build, law, prompt_of, tool, tool_lists


@law(30)
@given(tools=tool_lists(), skip=st.booleans(), allow_null=st.booleans(), observation=st.text(max_size=20))
def test_baseline_gives_the_same_call(
    folder: Path, oracle: Oracle, tools: Any, skip: bool, allow_null: bool, observation: str
) -> None:
    decider = build(folder, tools, allow_null=allow_null, budget_per_head=9)
    one = decider.decide(observation, "go")
    engine: Any = decider.engine
    prompt = prompt_of(decider, observation, "go")
    engine.sequence.start(prompt, 64)
    call, _ = token_by_token(engine._decoder, skip)
    oracle.decide(decider.plan, prompt)
    if oracle.margin > MARGIN:
        assert call == one.call


def test_baseline_takes_a_pass_for_each_token_of_the_longest_head(folder: Path) -> None:
    values = ["alpha beta go", "alpha beta stop"]
    decider = build(folder, [tool(n, v=values) for n in ("go", "stop")])
    engine: Any = decider.engine
    prompt = prompt_of(decider, "left", "go")
    engine.sequence.start(prompt, 64)
    token_by_token(engine._decoder, skip_forced=False)
    assert engine.sequence.forward_passes == 4  # head token, alpha, beta, go or stop; the end token is not fed
    engine.sequence.start(prompt, 64)
    token_by_token(engine._decoder, skip_forced=True)
    assert engine.sequence.forward_passes == 1  # the forced start rides along, the forced end costs nothing
