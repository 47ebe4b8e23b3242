"""The auto budget: what it costs to be wrong decides what a pass carries, and never what is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rtcontrol.models.decider import STDecider
from rtcontrol.models.engines.base import Budget
from rtcontrol.models.errors import UserError
from rtcontrol.models.forecast import PassCost, choose_budget, has_choice
from rtcontrol.models.passes import LEARN_FIRST, Usage
from rtcontrol.models.plan import NO_TOOL
from tests.models.small import MARGIN, TOLD, Oracle, build, law, prompt_of, shown, tool, tool_lists

LAW = law(15)
TEXT = st.text(max_size=20)
COSTS = st.builds(PassCost, st.floats(0, 100), st.floats(0, 10))
ONE, UNLIMITED = Budget(1), Budget(10**6, 10**6)
DEEP = {"enum": ["alpha beta go", "alpha beta stop", "alpha red", "green blue"]}


def both(folder: Path, tools: Any, budget: Budget | None = None, **options: Any) -> tuple[STDecider, Any]:
    """A decider and its decoder, with this budget where one is given: none is measured then."""
    decider: Any = build(folder, tools, **options, **({} if budget is None else {"budget_per_head": 1}))
    if budget is not None:
        decider.engine._decoder.set_budget(budget)
    return decider, decider.engine._decoder


def tools_with_arguments(count: int) -> list[dict[str, Any]]:
    """`count` tools, of which only the first has arguments."""
    names = ("go", "open", "stop", "turn_left", "get_value", "set_value")[:count]
    return [tool(n, **({} if i else {"a": DEEP, "b": DEEP})) for i, n in enumerate(names)]


@LAW
@given(tools=tool_lists(), cost=COSTS, null=st.booleans(), told=TOLD)
def test_auto_budget_calls_what_budget_one_and_no_budget_call(
    folder: Path, oracle: Oracle, tools: Any, cost: PassCost, null: bool, told: tuple[str, str]
) -> None:
    decider, decoder = both(folder, tools, allow_null=null)
    oracle.decide(decider.plan, prompt_of(decider, *told))
    assume(oracle.margin > MARGIN)
    chosen, _ = choose_budget(decider.plan, decoder.walker, cost, Budget())
    calls = [decider.decide(*told).call]
    try:
        for budget in (chosen, ONE, UNLIMITED):
            decoder.set_budget(budget)
            calls.append(decider.decide(*told).call)
    except UserError as error:  # all that these tools may be called with at once, beside the prompt
        assume(budget is not UNLIMITED or "leaves no room" not in error.what)
        raise
    assert calls == calls[:1] * 4


@LAW
@given(share=st.floats(0, 1), observation=TEXT)
def test_any_share_decides_free_and_closed_values_alike(folder: Path, share: float, observation: str) -> None:
    word = {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5}
    decider, decoder = both(folder, [tool("go", v=word, a=DEEP), tool("stop", 0, v=DEEP)], UNLIMITED)
    decisions = []
    for budget in (Budget(share=share), UNLIMITED):
        decoder.set_budget(budget)
        decisions.append(decider.decide(observation, "go"))
    one, other = decisions
    if all(abs(c - 0.5) > 1e-2 for c in other.confidence.values()):
        assert one.call == other.call
        assert one.confidence == pytest.approx(other.confidence, abs=1e-3)


@LAW
@given(tools=tool_lists(), share=st.floats(0, 1))
def test_first_pass_carries_every_parent_and_no_more_with_a_larger_share(
    folder: Path, tools: Any, share: float
) -> None:
    decider, decoder = both(folder, tools, Budget(share=share))
    first = decoder.passes.first
    for k, n in first:
        parent = decider.plan.heads[k].trie.parents[n]
        assert parent < 0 or (k, parent) in first
    decoder.set_budget(UNLIMITED)
    assert set(first) <= set(decoder.passes.first)
    assert bool(first) == bool(decoder.passes.first)  # every pass makes headway


@LAW
@given(
    tools=tool_lists(),
    share=st.floats(0.05, 1),
    null=st.booleans(),
    observations=st.lists(TEXT, min_size=1, max_size=4),
)
def test_learning_what_is_called_changes_no_call(
    folder: Path, oracle: Oracle, tools: Any, share: float, null: bool, observations: list[str]
) -> None:
    decider, _ = both(folder, tools, Budget(share=share), allow_null=null)
    decisions = [(o, decider.decide(o, "go")) for _ in range(2 * LEARN_FIRST) for o in observations]
    together = decider.decide_many([(o, "go") for o in observations])
    assert len(together) == len(observations)
    for observation in observations:
        expected = oracle.decide(decider.plan, prompt_of(decider, observation, "go"))
        if oracle.margin > MARGIN:
            assert all(shown(d) == expected for o, d in decisions if o == observation)


def test_what_is_called_again_and_again_takes_one_pass(folder: Path) -> None:
    decider, decoder = both(folder, [tool(n, a=DEEP, b=DEEP) for n in ("go", "open", "stop", "get_value")])
    decoder.set_budget(Budget(share=0.6))
    first = decider.decide("alpha", "go")
    for _ in range(4 * LEARN_FIRST):
        last = decider.decide("alpha", "go")
    assert last.call == first.call
    assert first.forward_passes > last.forward_passes == 1
    decoder.set_budget(Budget(share=0.6))  # forgets
    assert decider.decide("alpha", "go").forward_passes == first.forward_passes


def test_usage_follows_what_is_called_and_fades() -> None:
    usage = Usage(4)
    assert usage.tools() == (0.25, 0.25, 0.25, 0.25, 0)
    assert usage.values(1, 0, [5, 6]) == [2, 2]
    for _ in range(600):
        usage.count(0, {1: 5})
    assert usage.tools()[0] > 0.98
    for _ in range(1500):
        usage.count(NO_TOOL, {})
    assert usage.tools()[-1] > 0.9
    assert sum(usage.tools()) == pytest.approx(1)
    assert 2 < usage.values(1, 0, [5, 6])[0] < 100


def test_free_tokens_put_everything_into_one_pass_and_costly_ones_wait(folder: Path) -> None:
    decider, decoder = both(folder, tools_with_arguments(6))
    everything, found = choose_budget(decider.plan, decoder.walker, PassCost(1, 0), Budget())
    assert (everything.share, found["passes"]) == (0, 1)
    assert found["first_nodes"] > 3
    costly, found = choose_budget(decider.plan, decoder.walker, PassCost(0, 1), Budget())
    assert costly.share > 0.5
    assert found["first_nodes"] == 1  # the function head alone: five of six tools need nothing else


def test_share_is_the_likelihood_over_tools_then_values(folder: Path) -> None:
    _, decoder = both(folder, tools_with_arguments(4))
    first: dict[float, int] = {}
    for share in (0.2, 0.25, 0.26):
        decoder.set_budget(Budget(share=share))
        first[share] = sum(k == 1 for k, _ in decoder.passes.first)
    # One tool of four has the argument; half of its values pass the second token, three in four the first.
    assert first == {0.2: 1, 0.25: 1, 0.26: 0}
    decoder.set_budget(Budget(share=0.12))
    assert sum(k == 1 for k, _ in decoder.passes.first) == 3


def test_the_choice_follows_from_the_cost_alone(folder: Path) -> None:
    decider, decoder = both(folder, tools_with_arguments(5))
    one, again = (choose_budget(decider.plan, decoder.walker, PassCost(1.0, 0.15), Budget()) for _ in range(2))
    assert one == again


def test_measuring_leaves_the_prefix_cached_and_is_told(folder: Path) -> None:
    decider, decoder = both(folder, tools_with_arguments(5))
    told = decider.info()["budget"]
    assert told["kind"] == "auto"
    assert told["token_ms"] >= 0
    assert told["share"] == decoder.passes.budget.share
    assert decider.decide("alpha", "go").reused_tokens == decider.prefix.tokens


def test_schema_without_speculative_nodes_is_not_measured(folder: Path) -> None:
    decider, decoder = both(folder, [tool("go", v=["left", "right", "red"])])
    assert not has_choice(decider.plan, decoder.walker, Budget())
    assert decider.info()["budget"] == {"kind": "auto"}


def test_explicit_budget_is_kept(folder: Path) -> None:
    decider, decoder = both(folder, tools_with_arguments(5), budget_per_head=3)
    assert decoder.passes.budget == Budget(3)
    assert decider.info()["budget"] == {"per_head": 3, "total": 128, "share": 0.0}
    for refused, why in (((0, 1), "at least one"), ((1, 0), "at least one"), ((1, 1, 1.5), "between 0 and 1")):
        with pytest.raises(ValueError, match=why):
            Budget(*refused)
