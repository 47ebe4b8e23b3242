"""What is told as a tool's worst call is never exceeded, and reached where it says so. No model decides here: scores
are drawn, so that any call may be made."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.plan import ANY_TOOL, NO_TOOL, ROOT, SchemaPlan, TrieNode, compile_plan
from rtcontrol.models.decode.protocol import Budget
from rtcontrol.models.decode.walk import HeadState, Walker
from rtcontrol.models.decode.worst_case_cost import LOOKED, worst_call
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.models.train.vocabulary import build_tokenizer
from tests.models.small import NUMBERS, WORDS, law, tool, tool_lists

LAW = law(100)
Rows = Callable[[int, TrieNode], Sequence[float]]  # of a head's node the scores
# With paths nothing is forced (of what is evaluated).
WAYS = st.sampled_from(({}, {}, {"paths": True}, {"forced": True}))
BUDGETS = st.builds(
    lambda per_head, total, first, way: Budget(per_head, total, first, **way),
    st.integers(1, 9), st.sampled_from((10**6, 1, 2, 4, 9, 16)), st.booleans(), WAYS,
)  # fmt: skip
GRIDS = st.builds(
    lambda low, count, step: {
        "type": "integer",
        "minimum": low * step,
        "maximum": (low + count) * step,
        "multipleOf": step,
    },
    st.integers(-400, 20),
    st.integers(257, 4000),
    st.sampled_from((1, 2, 5, 7, 30, 167)),
)
# A number beside optional switches in one head: what a pass carries next is breadth-first from where the walk stands.
SWITCHED = {f"p{i}": {"type": "boolean", "x-group": "g"} for i in (1, 2)}
STEPS = {"type": "number", "minimum": 0, "maximum": 2, "multipleOf": 0.1, "x-group": "g"}
GROUPED = [tool("go", 1, p0=STEPS, **SWITCHED)]


@cache
def tokenizer(digits: bool) -> STTokenizer:
    """Numbers are words of its, or written digit by digit."""
    return STTokenizer(build_tokenizer([WORDS, '{"type": "function", "name": "x"}'], () if digits else NUMBERS))


def plan_of(tools: Any, digits: bool = False, null: bool = False) -> SchemaPlan:
    return compile_plan(tool_schemas(tools), tokenizer(digits), null)


def decided(walker: Walker, scores: Rows) -> tuple[int | None, int, int]:
    """The tool, passes and nodes of a decision by these scores."""
    heads = [HeadState() for _ in walker.plan.heads]
    wanted, passes, nodes = walker.first, 0, 0
    while True:
        passes, nodes = passes + bool(wanted), nodes + len(wanted)
        for k, n in wanted:
            heads[k].slots[n], heads[k].rows[n] = 0, scores(k, n)
        known, walks, free = walker.look(heads)
        pending = any(w.pending for w in walks.values()) or any(ROOT not in heads[k].slots for k in free)
        if known == NO_TOOL or (known is not None and not pending):
            return known, passes, nodes
        wanted = walker.wanted(heads, known, walks)
        assert wanted, "every pass makes headway"


def drawn(walker: Walker, seed: int) -> Rows:
    def scores(k: int, node: TrieNode) -> Sequence[float]:
        draw = random.Random(f"{seed} {k} {node}")
        return [draw.random() for _ in walker.columns]

    return scores


def towards(walker: Walker, leaves: Sequence[TrieNode]) -> Rows:
    """Scores that lead each head to its leaf."""

    def scores(k: int, node: TrieNode) -> Sequence[float]:
        row = [0.0] * len(walker.columns)
        on = leaves[k][: len(node)] == node and len(node) < len(leaves[k])
        if on and (place := walker.column.get(leaves[k][len(node)])) is not None:
            row[place] = 1.0
        return row

    return scores


def leaves_of(plan: SchemaPlan, k: int, tool: int) -> list[TrieNode]:
    found, stack = [], [ROOT]
    while stack:
        below = plan.heads[k].trie.legal_children(node := stack.pop(), 1 << tool)
        stack += [child for _, child in below]
        found += [] if below else [node]
    return found


@st.composite
def wide_tools(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Tools some of whose arguments are numbers that nobody lists, beside others' in the same heads."""
    tools = draw(tool_lists(3))
    for one in tools:
        parameters = one["parameters"]
        if draw(st.booleans()):
            parameters["properties"] = {"wide": draw(GRIDS), **parameters["properties"]}
            parameters["required"] = [*parameters["required"], *draw(st.sampled_from(([], ["wide"])))]
    return tools


@LAW
@given(tools=wide_tools(), budget=BUDGETS, digits=st.booleans(), null=st.booleans(), seed=st.integers(0, 2**32))
def test_no_scores_make_a_call_take_more_than_the_worst(
    tools: Any, budget: Budget, digits: bool, null: bool, seed: int
) -> None:
    plan = plan_of(tools, digits, null)
    walker = Walker(plan, budget)
    worst = [worst_call(walker, index) for index in range(len(plan.tools))]
    for each in range(5):
        called, passes, nodes = decided(walker, drawn(walker, seed + each))
        if called not in (None, NO_TOOL):
            assert passes <= worst[called][0]
            assert nodes <= worst[called][1]


@LAW
@given(tools=tool_lists(1, 3), budget=BUDGETS, digits=st.booleans())
@example(tools=GROUPED, budget=Budget(3, 10**6), digits=False)
@example(tools=GROUPED, budget=Budget(3, 10**6, forced=True), digits=False)
@example(tools=[tool("go", a={"type": "integer", "minimum": -700, "maximum": 900})], budget=Budget(5), digits=True)
def test_the_worst_call_is_one_of_the_tools(tools: Any, budget: Budget, digits: bool) -> None:
    plan = plan_of(tools, digits)
    walker = Walker(plan, budget)
    goals = [leaves_of(plan, 0, ANY_TOOL)[0], *(leaves_of(plan, k, 0)[0] for k in range(1, len(plan.heads)))]
    _, passes, base = decided(walker, towards(walker, goals))
    more = [0] * len(plan.heads)  # that the worst value of each head takes
    for k in range(1, len(plan.heads)):
        for leaf in leaves_of(plan, k, 0):
            _, taken, carried = decided(walker, towards(walker, [*goals[:k], leaf, *goals[k + 1 :]]))
            passes, more[k] = max(passes, taken), max(more[k], carried - base)
    told = worst_call(walker, 0)
    if budget.total >= sum(len(h.trie) for h in plan.heads):
        assert told == (passes, base + sum(more))
    else:
        assert told[0] >= passes
        assert told[1] >= base + max(more)


def test_counterexample_is_told_with_all_its_passes() -> None:
    walker = Walker(plan_of(GROUPED), Budget(3, 10**6))
    assert worst_call(walker, 0) == (9, 27)


def test_other_tools_values_may_take_what_is_carried_before_the_function_is_known() -> None:
    """With one node a pass the function takes several, and what arguments carry meanwhile may be another tool's."""
    values = ["alpha beta go", "alpha beta stop", "alpha red"]
    tools = [tool("turn_left", v=[*values, "left"]), tool("turn_right", v=["green blue", "green red"]), tool("stop", 0)]
    walker = Walker(plan_of(tools), Budget(1))
    seen = {decided(walker, drawn(walker, seed)) for seed in range(300)}
    for index in range(len(tools)):
        own = [(passes, nodes) for called, passes, nodes in seen if called == index]
        assert worst_call(walker, index)[0] == max(passes for passes, _ in own)
        assert worst_call(walker, index)[1] >= max(nodes for _, nodes in own)


@pytest.mark.parametrize("step", [1, 37, LOOKED * 2 + 1])
def test_a_million_numbers_are_followed_by_their_shapes(step: int) -> None:
    wide = {"type": "integer", "minimum": -step * 10**5, "maximum": step * 10**6, "multipleOf": step}
    plan = plan_of([tool("go", a=wide)], digits=True)
    walker = Walker(plan, Budget(16))
    draw = random.Random(step)
    most, seen = worst_call(walker, 0), (0, 0)
    for _ in range(200):
        text = str(draw.randrange(-(10**5), 10**6) * step)
        spelled = tokenizer(True).digits
        assert spelled is not None
        leaf = (*(spelled[c] for c in text), plan.heads[1].end_id)
        _, passes, nodes = decided(walker, towards(walker, [leaves_of(plan, 0, ANY_TOOL)[0], leaf]))
        seen = max(seen[0], passes), max(seen[1], nodes)
    assert seen[0] <= most[0]
    assert seen[1] <= most[1]
    if step <= LOOKED:
        assert seen[0] == most[0]
