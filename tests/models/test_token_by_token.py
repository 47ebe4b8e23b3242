"""The token-by-token baseline gives the one-pass decision's call, a forward pass a token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.token_by_token import token_by_token
from tests.models.small import Oracle, tool_lists

MARGIN = 1e-4  # of the law (design, section 4): closer choices may differ by rounding


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(tools=tool_lists(), skip=st.booleans(), allow_null=st.booleans(), observation=st.text(max_size=20))
def test_baseline_gives_the_same_call(
    folder: Path, oracle: Oracle, tools: Any, skip: bool, allow_null: bool, observation: str
) -> None:
    decider = DeciderSpec(str(folder), tuple(tools), allow_null=allow_null, budget_per_head=9).build()
    one = decider.decide(observation, "go")
    engine: Any = decider.engine
    prompt = [*decider.template.prefix_ids(decider.plan.tools), *decider.template.suffix_ids("go", observation)]
    engine.sequence.start(prompt, 64)
    call, _ = token_by_token(engine._decoder, skip)
    oracle.decide(decider.plan, prompt)
    if oracle.margin > MARGIN:
        assert call == one.call


def test_baseline_takes_a_pass_for_each_token_of_the_longest_head(folder: Path) -> None:
    values = ["alpha beta go", "alpha beta stop"]
    tools = [
        {"name": n, "parameters": {"properties": {"v": {"enum": values}}, "required": ["v"]}} for n in ("go", "stop")
    ]
    decider = DeciderSpec(str(folder), tuple(tools)).build()
    engine: Any = decider.engine
    prompt = [*decider.template.prefix_ids(decider.plan.tools), *decider.template.suffix_ids("go", "left")]
    engine.sequence.start(prompt, 64)
    token_by_token(engine._decoder, skip_forced=False)
    assert engine.sequence.forward_passes == 4  # head token, alpha, beta, go or stop; the end token is not fed
    engine.sequence.start(prompt, 64)
    token_by_token(engine._decoder, skip_forced=True)
    assert engine.sequence.forward_passes == 1  # the forced start rides along, the forced end costs nothing
