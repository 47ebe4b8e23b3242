"""Rows that bring their own tools are encoded, packed and checked as rows of one set are."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import Qwen2ForCausalLM

from rtcontrol.models.checkpoint.prompt import COMPACT, PromptTemplate, tools_text
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.train.loss import tree_loss
from rtcontrol.models.train.packing import pack, pad_together, separate
from rtcontrol.models.train.policy import TreePolicy
from rtcontrol.models.train.rows import RowEncoder, ToolsEncoder
from rtcontrol.models.train.scratch import ModelShape, new_model
from rtcontrol.models.train.tasks.check import SyntheticTask, check
from rtcontrol.models.train.tasks.names import look_up
from rtcontrol.models.train.trainer import TrainConfig, group_rows
from rtcontrol.models.train.vocabulary import build_tokenizer


def drawn(count: int, closed: bool = False) -> list[SyntheticTask]:
    rng, found = random.Random(0), list[SyntheticTask]()
    while len(found) < count:
        tasks = [*look_up(rng, 3)]
        if not (closed and '{"type": "string"}' in tools_text(tasks[0].tools)):
            found += tasks
    return found[:count]


@pytest.fixture(scope="module")
def made() -> tuple[Qwen2ForCausalLM, ToolsEncoder, PromptTemplate]:
    texts = [tools_text(t.tools) + t.observation + t.told[0].instruction for t in drawn(200)]
    words = build_tokenizer([*texts, "the call function argument name end first"], [str(n) for n in range(10)])
    model = new_model(ModelShape(hidden=32, layers=2, heads=4, intermediate=48), words, 0).eval()
    mine = STTokenizer(words)
    template = PromptTemplate(COMPACT, mine, "")
    return model, ToolsEncoder(template, mine), template


def test_a_row_with_its_tools_has_the_ids_of_a_prompt_with_these_tools(made: Any) -> None:
    _, encoder, template = made
    for task in drawn(6):
        own = RowEncoder(template, encoder.tokenizer, compile_plan(task.tools, encoder.tokenizer))
        for row in task.rows():
            found, want = encoder.encode(row), own.encode(replace(row, tools=()))
            assert (*encoder.prefix, *found.suffix) == (*own.prefix, *want.suffix)
            assert found.heads == want.heads


def test_a_row_with_its_tools_may_have_no_call_and_says_what_is_meant(made: Any) -> None:
    _, encoder, template = made
    nullable = encoder.nullable()
    for task in drawn(4):
        plan = compile_plan(task.tools, encoder.tokenizer, allow_null=True)
        own = RowEncoder(template, encoder.tokenizer, plan)
        for row in (replace(task.rows()[0], meant="go north"), replace(task.rows()[0], call=None, meant="")):
            found, want = nullable.encode(row, forced=False), own.encode(replace(row, tools=()), forced=False)
            assert found.heads == want.heads and found.heads[0].labels
            shift = len(own.prefix) - 1
            assert found.early == tuple((at + shift, label) for at, label in want.early) != ()
        assert not nullable.acting(task.tools).plan.allow_null and nullable.of(task.tools).plan.allow_null


def test_a_packed_tree_of_many_tools_has_the_loss_of_separate_sequences(made: Any) -> None:
    model, encoder, _ = made
    rows = [encoder.encode(row) for task in drawn(8) for row in task.rows()]
    packed = pack(encoder.prefix, rows)
    assert packed.tokens.shape[1] < 0.75 * sum(len(r.suffix) for r in rows)  # tools are shared
    with torch.no_grad():
        each = tree_loss(model, pad_together(separate(encoder.prefix, rows)))[0]
        torch.testing.assert_close(tree_loss(model, packed)[0], each, atol=1e-5, rtol=1e-5)


def test_groups_keep_rows_of_the_same_tools_together(made: Any) -> None:
    rows = [row for task in drawn(20) for row in task.rows()]
    groups = group_rows(rows, TrainConfig(samples=1, group=18, run=6), random.Random(0))
    for group in groups:
        assert len({id(row.tools) for row in group}) == len(group) // 6


def test_the_check_agrees_with_the_constrained_walk_wherever_it_says_right(made: Any) -> None:
    model, encoder, _ = made
    tasks = drawn(60, closed=True)
    found = check(model, encoder, tasks)
    assert found.calls == 180
    walked = pairs = both = 0
    for task in tasks:
        calls = TreePolicy(model, encoder.of(task.tools))([(t.instruction, task.observation) for t in task.told])
        ok = [call == told.call for call, told in zip(calls, task.told, strict=True)]
        walked += sum(ok)
        changed = [i for i in (0, 1) if task.told[i].call != task.told[i + 1].call]
        pairs += len(changed)
        both += sum(ok[i] and ok[i + 1] for i in changed)
    assert found.pairs == pairs
    assert found.right * found.calls <= walked
    assert found.swapped * pairs <= both


def test_a_swapped_pair_counts_where_both_calls_are_right(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, encoder, _ = made
    tasks = [t for t in drawn(60) if len({d.call.text() for d in t.told}) == 3][:4]
    verdicts = iter([[True, True, False, True, False, True, False, False, False, True, True, True]])
    monkeypatch.setattr("rtcontrol.models.train.tasks.check._verdicts", lambda *_: next(verdicts))
    found = check(model, encoder, tasks)
    assert (found.calls, found.pairs) == (12, 8)
    assert (found.right, found.swapped) == (7 / 12, 3 / 8)
