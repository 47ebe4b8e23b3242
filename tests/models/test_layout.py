"""The two layouts of passes: what it costs to be wrong decides what a pass carries, and never what is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rtcontrol.models.decider import STDecider
from rtcontrol.models.decode.protocol import Budget, PassCost
from rtcontrol.models.decode.worst_case_cost import choose_layout, worst_call
from rtcontrol.models.errors import UserError
from tests.models.small import MARGIN, TOLD, Oracle, build, law, prompt_of, tool, tool_lists

LAW = law(15)
TEXT = st.text(max_size=20)
COSTS = st.builds(PassCost, st.floats(0, 100), st.floats(0, 10))
ONE, UNLIMITED = Budget(1), Budget(10**6, 10**6)
FIRST = Budget(function_first=True)
DEEP = {"enum": ["alpha beta go", "alpha beta stop", "alpha red", "green blue"]}


def both(folder: Path, tools: Any, budget: Budget | None = None, **options: Any) -> tuple[STDecider, Any]:
    """A decider and its core, with this budget where one is given: none is measured then."""
    decider: Any = build(folder, tools, **options, **({} if budget is None else {"budget_per_head": 1}))
    if budget is not None:
        decider.decoding.core.set_budget(budget)
    return decider, decider.decoding.core


def tools_with_arguments(count: int) -> list[dict[str, Any]]:
    """`count` tools, of which only the first has arguments."""
    names = ("go", "open", "stop", "turn_left", "get_value", "set_value")[:count]
    return [tool(n, **({} if i else {"a": DEEP, "b": DEEP})) for i, n in enumerate(names)]


@LAW
@given(tools=tool_lists(), cost=COSTS, null=st.booleans(), told=TOLD)
def test_every_layout_calls_what_budget_one_and_no_budget_call(
    folder: Path, oracle: Oracle, tools: Any, cost: PassCost, null: bool, told: tuple[str, str]
) -> None:
    decider, core = both(folder, tools, allow_null=null)
    oracle.decide(decider.plan, prompt_of(decider, *told))
    assume(oracle.margin > MARGIN)
    chosen, _ = choose_layout(decider.plan, Budget(), lambda: cost)
    calls = [decider.decide(*told).call]
    try:
        for budget in (chosen, FIRST, ONE, UNLIMITED):
            core.set_budget(budget)
            calls.append(decider.decide(*told).call)
    except UserError as error:  # all that these tools may be called with at once, beside the prompt
        assume(budget is not UNLIMITED or "leaves no room" not in error.what)
        raise
    assert calls == calls[:1] * 5


@LAW
@given(observation=TEXT)
def test_both_layouts_decide_free_and_closed_values_alike(folder: Path, observation: str) -> None:
    word = {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5}
    decider, core = both(folder, [tool("go", v=word, a=DEEP), tool("stop", 0, v=DEEP)], UNLIMITED)
    decisions = []
    for budget in (FIRST, UNLIMITED):
        core.set_budget(budget)
        decisions.append(decider.decide(observation, "go"))
    one, other = decisions
    if all(abs(c - 0.5) > 1e-2 for c in other.confidence.values()):
        assert one.call == other.call
        assert one.confidence == pytest.approx(other.confidence, abs=1e-3)


@LAW
@given(tools=tool_lists(), first=st.booleans(), per_head=st.integers(1, 9), told=TOLD)
def test_no_decision_takes_more_passes_than_the_worst_call_of_its_tool(
    folder: Path, tools: Any, first: bool, per_head: int, told: tuple[str, str]
) -> None:
    decider, core = both(folder, tools, Budget(per_head, 10**6, first))
    decision = decider.decide(*told)
    assert decision.call is not None
    passes, nodes = worst_call(core.walker, decider.plan.tool_index(decision.call.name))
    assert decision.forward_passes <= passes
    if passes:
        assert decision.tokens <= nodes + len(prompt_of(decider, *told)) - decision.reused_tokens


@LAW
@given(tools=tool_lists(), first=st.booleans())
def test_first_pass_carries_every_parent_and_no_more_than_everything(folder: Path, tools: Any, first: bool) -> None:
    _, core = both(folder, tools, Budget(function_first=first))
    carried = core.walker.first
    for k, n in carried:
        assert not n or (k, n[:-1]) in carried
    core.set_budget(UNLIMITED)
    assert set(carried) <= set(core.walker.first)
    assert bool(carried) == bool(core.walker.first)  # every pass makes headway


def test_free_tokens_put_everything_into_one_pass_and_costly_ones_wait(folder: Path) -> None:
    decider, _ = both(folder, tools_with_arguments(6))
    everything, found = choose_layout(decider.plan, Budget(), lambda: PassCost(1, 0))
    assert not everything.function_first
    assert (found["layout"], found["passes"]) == ("everything", 1)
    costly, less = choose_layout(decider.plan, Budget(), lambda: PassCost(0, 1))
    assert costly.function_first
    assert (less["layout"], less["passes"]) == ("function first", 2)
    assert 1 <= less["first_nodes"] < found["first_nodes"]


def test_a_layout_whose_worst_call_costs_much_more_is_not_chosen_for_its_mean(folder: Path) -> None:
    """The rare tool may be the one that stops the robot."""
    decider, core = both(folder, tools_with_arguments(6))
    args, function = (worst_call(core.walker, i)[1] for i in (0, 1))
    cost = PassCost(1.0, 1.5 / (args + function))  # a second pass costs nearly as much as all tokens
    chosen, _ = choose_layout(decider.plan, Budget(), lambda: cost)
    assert not chosen.function_first


def test_the_choice_follows_from_the_cost_alone(folder: Path) -> None:
    decider, _ = both(folder, tools_with_arguments(5))
    one, again = (choose_layout(decider.plan, Budget(), lambda: PassCost(1.0, 0.15)) for _ in range(2))
    assert one == again


def test_measuring_leaves_the_prefix_cached_and_is_told(folder: Path) -> None:
    decider, core = both(folder, tools_with_arguments(5))
    told = decider.info()["budget"]
    assert told["token_ms"] >= 0
    assert (told["layout"] == "function first") == core.walker.budget.function_first
    assert decider.decide("alpha", "go").reused_tokens == decider.prefix.tokens


def test_schema_whose_layouts_are_one_is_not_measured(folder: Path) -> None:
    decider, _ = both(folder, [tool("go", v=["left", "right", "red"])])
    measured: list[PassCost] = []
    assert choose_layout(decider.plan, Budget(), measured.pop) == (Budget(), {"layout": "everything"})
    assert decider.info()["budget"] == {"layout": "everything"}


def test_explicit_budget_is_kept(folder: Path) -> None:
    decider, core = both(folder, tools_with_arguments(5), budget_per_head=3)
    assert core.walker.budget == Budget(3)
    plain = dict.fromkeys(("function_first", "forced", "paths"), False)
    assert decider.info()["budget"] == {"per_head": 3, "total": 128, **plain}
    for refused in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="at least one"):
            Budget(*refused)
