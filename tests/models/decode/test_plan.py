"""Tries, plan and walk: which choices need the model, which values are legal, and the worst cost of a call."""

from __future__ import annotations

import math
import random
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.plan import NO_TOOL, ROOT, SchemaPlan, compile_plan
from rtcontrol.models.decode.protocol import Budget
from rtcontrol.models.decode.walk import HeadState, Walker, worst_call_cost
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import ABSENT, tool_schemas
from rtcontrol.models.train.vocabulary import build_tokenizer, number_words
from tests.models.small import NUMBERS, WORDS, law, tool, tool_lists

TOKENIZER = STTokenizer(build_tokenizer([WORDS], number_words(20, 0.2)))
LAW = law(75)


def plan_of(*tools: dict[str, Any], **options: Any) -> SchemaPlan:
    return compile_plan(tool_schemas(tools), TOKENIZER, **options)


def test_null_is_legal_only_for_optional_parameters_of_the_tool() -> None:
    plan = plan_of(tool("go", 0, a=[1, 2]), tool("stop", 1, a=[1, 2]))
    trie = plan.heads[1].trie
    null = TOKENIZER.special_id("<|null|>")
    legal = {t: [token for token, _ in trie.legal_children(ROOT, 1 << t)] for t in (0, 1)}
    assert null in legal[0] and null not in legal[1]
    assert trie.leaves[null,] == {0: ABSENT}


def test_target_text_distinguishes_values_that_are_equal_in_python() -> None:
    plan = compile_plan(tool_schemas([tool("go", a=[1, True, "true", [1], [True]])]), TOKENIZER)
    assert [plan.text(0, 0, v) for v in (True, 1, "true", [True], 1.0)] == ["true", "1", '"true"', "[true]", "1"]


class Blind(STTokenizer):
    """A tokenizer that lower-cases text, as in a lower-casing checkpoint."""

    def encode(self, text: str) -> list[int]:
        return super().encode(text.lower())


def test_values_with_the_same_tokens_are_refused() -> None:
    blind = Blind(build_tokenizer([WORDS]))
    with pytest.raises(UserError, match=r"Tool go, argument 1: 'LEFT' has the same tokens .* Remove or rename"):
        compile_plan(tool_schemas([tool("go", a=["left", "LEFT"])]), blind)
    with pytest.raises(UserError, match="tool name 'GO' has the same tokens"):
        compile_plan(tool_schemas([tool("go"), tool("GO")]), blind)
    # Two tools with the same tokens would share a leaf.
    plan = compile_plan(tool_schemas([tool("go", a=["left"]), tool("stop", a=["LEFT"])]), blind)
    assert list(plan.heads[1].trie.leaves.values()) == [{0: "left", 1: "LEFT"}]


def row(walker: Walker, best: int) -> list[float]:
    return [1.0 if c == best else 0.0 for c in walker.columns]


def test_walk_follows_the_best_legal_child_and_ties_go_to_the_lowest_id() -> None:
    plan = plan_of(tool("go", a=["left", "right"]), tool("stop", a=["left", "fast"]))
    walker = Walker(plan, Budget())
    trie = plan.heads[1].trie
    for word in ("left", "fast"):
        state = HeadState(rows={ROOT: row(walker, TOKENIZER.encode(word)[0])})
        stop = walker.walk(1, state, 0b10)
        assert trie.value(stop.node, 1) == word
        assert stop.confidence == pytest.approx(math.e / (math.e + 1))
    go = walker.walk(1, state, 0b01)  # its two values tie, and fast is not legal
    lowest = min(TOKENIZER.encode(v)[0] for v in ("left", "right"))
    assert go.visited == (ROOT,)
    assert TOKENIZER.encode(trie.value(go.node, 0))[0] == lowest
    assert go.confidence == 0.5


# No call takes more passes than is told of its tool. No model decides here: scores are random.


GRIDS = st.builds(
    lambda low, count, step: {
        "type": "integer",
        "minimum": low * step,
        "maximum": (low + count) * step,
        "multipleOf": step,
    },
    st.integers(-400, 20),
    st.integers(257, 4000),
    st.sampled_from((1, 7, 30, 167)),
)


@cache
def tokenizer(digits: bool) -> STTokenizer:
    """Return a tokenizer that has numbers as words, or writes them digit by digit."""
    return STTokenizer(build_tokenizer([WORDS, '{"type": "function", "name": "x"}'], () if digits else NUMBERS))


def decided(walker: Walker, seed: int) -> tuple[int | None, int]:
    """Return the tool and the number of passes of a decision by random scores."""
    heads = [HeadState() for _ in walker.plan.heads]
    wanted, passes = walker.first, 0
    while True:
        passes += bool(wanted)
        for k, n in wanted:
            draw = random.Random(f"{seed} {k} {n}")
            heads[k].slots[n], heads[k].rows[n] = 0, [draw.random() for _ in walker.columns]
        known, walks, free = walker.walk_heads(heads)
        pending = any(w.pending for w in walks.values()) or any(ROOT not in heads[k].slots for k in free)
        if known == NO_TOOL or (known is not None and not pending):
            return known, passes
        wanted = walker.next_nodes(heads, known, walks)
        assert wanted, "every pass has nodes"


@LAW
@given(
    tools=tool_lists(3),
    wide=GRIDS,
    per_head=st.sampled_from((1, 4, 9, 64)),
    first=st.booleans(),
    digits=st.booleans(),
    null=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_no_call_takes_more_passes_than_the_stated_worst(
    tools: Any, wide: dict[str, Any], per_head: int, first: bool, digits: bool, null: bool, seed: int
) -> None:
    tools[0]["parameters"]["properties"] = {"wide": wide, **tools[0]["parameters"]["properties"]}
    plan = compile_plan(tool_schemas(tools), tokenizer(digits), null)
    walker = Walker(plan, Budget(per_head, 10**6, first))
    for each in range(5):
        called, passes = decided(walker, seed + each)
        if called not in (None, NO_TOOL):
            assert passes <= worst_call_cost(walker, called)[0]
