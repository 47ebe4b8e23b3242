"""Numbers on a grid: counted and spelled without a list, decided as if listed."""

from __future__ import annotations

import sys
import tracemalloc
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode import plan as plans
from rtcontrol.models.decode.core import DecoderCore
from rtcontrol.models.decode.plan import NumberTrie, compile_plan
from rtcontrol.models.schema.numbers import CHARACTERS, NumberGrid, grid_of
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.models.train.vocabulary import build_tokenizer
from tests.models.small import MARGIN, TOLD, WORDS, Oracle, build, build_checkpoint, law, prompt_of, qwen, shown, tool

LAW = law(30)
DIGITS = STTokenizer(build_tokenizer([WORDS]))  # it knows no number, so it writes them digit by digit
WIDE = {"type": "integer", "minimum": 0, "maximum": 100_000}
SMALL_ENUM = {"enum": [1, 12, "120", "left"]}


@st.composite
def grids(draw: st.DrawFn, most: int = 400) -> dict[str, Any]:
    """A bounded integer, or a number with a step."""
    first, count = draw(st.integers(-1200, 1200)), draw(st.integers(1, most))
    step = draw(st.sampled_from([1, 2, 7, 90, 0.25, 0.5, 0.1, 2.5]))
    by = Fraction(str(step))
    kind = "integer" if by.denominator == 1 and draw(st.booleans()) else "number"
    low, high = (float(by * n) for n in (first, first + count))
    return {"type": kind, "minimum": low, "maximum": high, "multipleOf": step}


@LAW
@given(grids())
def test_counting_below_a_beginning_agrees_with_the_list(schema: dict[str, Any]) -> None:
    grid = grid_of(schema, "")
    assert grid is not None
    texts, values = grid.texts(), grid.values()
    begins = {t[:i] for t in texts for i in range(len(t) + 1)}
    for start in {*begins, *(b + c for b in begins for c in CHARACTERS)}:
        assert grid.below(start) == sum(t.startswith(start) for t in texts)
        assert (grid.value(start) is not None) == (start in texts)
    assert [grid.value(t) for t in texts] == list(values)
    assert [grid.text(v) for v in values] == list(texts)
    assert all(type(v) is (int if schema["type"] == "integer" else float) for v in values)
    with pytest.raises(ValueError, match="not on the grid"):
        grid.text(values[-1] + 1e-4)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint that writes numbers digit by digit."""
    return build_checkpoint(tmp_path_factory.mktemp("digits") / "m", seed=3, numbers=())


@pytest.fixture(scope="module")
def judge(digits: Path) -> Oracle:
    return Oracle.load(digits)


@LAW
@given(
    wide=st.lists(grids(), min_size=2, max_size=2),
    told=TOLD,
    required=st.booleans(),
    budget=st.sampled_from((1, 3, 64)),
)
def test_numbers_without_a_list_are_decided_as_listed_ones_and_as_the_oracle_does(
    digits: Path, judge: Oracle, wide: list[dict[str, Any]], told: tuple[str, str], required: bool, budget: int
) -> None:
    tools = [
        tool("go", 99 * required, v=wide[0]),
        tool("turn_left", v=wide[1], w=SMALL_ENUM),
        tool("stop", v=SMALL_ENUM),
    ]
    before = plans.LISTED
    try:
        plans.LISTED = 0
        decider = build(digits, tools, budget_per_head=budget)
        plans.LISTED = 10**6
        listed = build(digits, tools, budget_per_head=budget)
    finally:
        plans.LISTED = before
    assert isinstance(decider.plan.heads[1].trie, NumberTrie) and not isinstance(listed.plan.heads[1].trie, NumberTrie)
    expected = judge.decide(listed.plan, prompt_of(decider, *told))
    assume(judge.margin > MARGIN)
    got, known = decider.decide(*told), listed.decide(*told)
    assert shown(got) == shown(known) == expected
    assert got.confidence == pytest.approx(known.confidence, rel=1e-3)


def test_a_wide_integer_takes_few_passes_and_its_trie_does_not_grow(digits: Path) -> None:
    decider = build(digits, [tool("go", v=WIDE)], budget_per_head=64)
    trie = decider.plan.heads[1].trie
    size = len(trie)
    passes = []
    for i in range(20):
        decision = decider.decide(f"x={i}", "go")
        assert decision.call is not None
        assert decision.call.arguments["v"] in range(100_001)
        passes.append(decision.forward_passes)
    assert max(passes) <= 3 and sorted(passes)[10] <= 2
    assert len(trie) == size < 10


def test_a_tokenizer_that_knows_whole_numbers_leaves_wide_ones_to_the_grammar(folder: Path) -> None:
    decider = build(folder, [tool("go", v=WIDE)])
    assert decider.tokenizer.digits is None
    assert list(decider.plan.heads[1].free) == [0]
    assert decider.plan.heads[1].grids == {}


def test_training_targets_of_wide_numbers_are_what_is_decoded(data: Path) -> None:
    tokenizer = qwen(data)
    schemas = tool_schemas(
        [tool("go", v=WIDE, w={"type": "number", "minimum": 0, "maximum": 5000, "multipleOf": 0.25})]
    )
    for chosen in (tokenizer, DIGITS):
        plan = compile_plan(schemas, chosen)
        for v, w in ((0, 0.0), (100_000, 5000.0), (4321, 0.5)):
            for k, (head, text) in enumerate(plan.head_values(Call("go", {"v": v, "w": w}))[1:]):
                assert text is not None
                leaf = (*chosen.encode(text), head.end_id)
                assert all(leaf[: end + 1] in head.trie.children(leaf[:end]).values() for end in range(len(leaf)))
                assert head.trie.value(leaf, 0) == (v, w)[k] and head.trie.tools(leaf) == (1, 0)


def test_opening_a_session_of_wide_integers_with_a_large_vocabulary_takes_no_time_and_no_room(data: Path) -> None:
    tokenizer = qwen(data)
    assert tokenizer.digits is not None

    def opened(maximum: int, name: str) -> DecoderCore:
        values = {"type": "integer", "minimum": 0, "maximum": maximum}
        tools = tool_schemas([tool(f"{name}_{i}", x=values, y=values, z=values) for i in range(10)])
        return DecoderCore(compile_plan(tools, tokenizer), tokenizer, 151_936)

    def calls_of_opening(maximum: int, name: str) -> int:
        """Of functions, ours and built in: what it takes on any machine."""
        count = 0

        def called(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(called)
        try:
            opened(maximum, name)
        finally:
            sys.setprofile(None)
        return count

    opened(4000, "first")
    tracemalloc.start()
    core = opened(4000, "then")
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert core._grammars is None and sum(len(h.trie) for h in core.plan.heads) < 100
    assert size < 5 << 20
    assert calls_of_opening(4_000_000, "wide") < 2 * calls_of_opening(4000, "less")


def test_a_grid_with_one_value_and_one_of_a_trillion() -> None:
    assert grid_of({"type": "integer", "minimum": 3, "maximum": 3}, "") == NumberGrid(3, 1, 1, 0, True)
    huge = grid_of({"type": "integer", "minimum": -(10**12), "maximum": 10**12}, "")
    assert huge is not None
    assert huge.below("-9") == sum(10**k for k in range(12)) and huge.below("-0") == 0 and huge.below("0") == 1
