"""The laws of decoding, over random small models, schemas and prompts, in fp32: whatever is packed, the call stays."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models import in_flight
from rtcontrol.models.decider import STDecider
from rtcontrol.models.decode.protocol import Budget, NotFinite, PassCost
from rtcontrol.models.decode.walk import HeadNode, choose_layout
from rtcontrol.models.runners.packed import Node
from tests.helpers.processes import ROOT, environment
from tests.models.small import (
    LONG,
    MARGIN,
    TOLD,
    Oracle,
    build,
    law,
    prompt_of,
    shown,
    tool,
    tool_lists,
)

TEXT = st.text(min_size=0, max_size=30)
LAW = law(12)
# Also those of the two layouts, and of decoding token by token.
BUDGETS = st.one_of(
    st.builds(Budget, st.integers(1, 12), st.sampled_from((1, 2, 3, 7, 20, 128)), st.booleans()),
    st.sampled_from((Budget(1, forced=True), Budget(1, paths=True), Budget(3, paths=True))),
)


@LAW
@given(tools=tool_lists(), budget=BUDGETS, allow_null=st.booleans(), situation=TOLD)
def test_packed_decoding_equals_greedy_decoding_for_every_budget(
    checkpoint: tuple[Path, Oracle], tools: Any, budget: Budget, allow_null: bool, situation: tuple[str, str]
) -> None:
    folder, oracle = checkpoint
    decider = build(folder, tools, allow_null=allow_null)
    decider.decoding.core.set_budget(budget)
    expected = oracle.decide(decider.plan, prompt_of(decider, *situation))
    got = shown(decider.decide(*situation))
    if oracle.margin > MARGIN:
        assert got == expected
        if got is not None:  # equal types too: 1, 1.0 and True are equal in Python
            assert {k: type(v) for k, v in got[1].items()} == {k: type(v) for k, v in expected[1].items()}


@LAW
@given(tools=tool_lists(), per_head=st.integers(1, 12), situation=TOLD, then=TEXT)
def test_packed_logits_equal_separate_forwards_of_each_head(
    checkpoint: tuple[Path, Oracle], tools: Any, per_head: int, situation: tuple[str, str], then: str
) -> None:
    folder, oracle = checkpoint
    decider = build(folder, tools, budget_per_head=per_head)
    sequence: Any = decider.decoding.handle
    runner: Any = decider.runner
    decider.decide(*situation)  # so that the second prompt starts from a reused common prefix
    prompt = prompt_of(decider, then, situation[1])
    sequence.start(prompt, 200)
    # Every node of every trie, parents first.
    each = [{leaf[:end]: None for leaf in h.trie.leaves for end in range(len(leaf) + 1)} for h in decider.plan.heads]
    entries: list[HeadNode] = [(k, n) for k, nodes_ in enumerate(each) for n in nodes_][:60]
    slots: dict[HeadNode, tuple[int, ...]] = {}
    nodes, paths = [], []
    for i, (k, n) in enumerate(entries):
        trie = decider.plan.heads[k].trie
        above = slots[k, n[:-1]] if n else ()
        slots[k, n] = (*above, i)
        nodes.append(Node(trie.last_token(n), len(n), above))
        paths.append([entries[s] for s in slots[k, n]])
    hidden = sequence.run(nodes)
    ours = runner.model.logits(hidden)
    # A forward of a path has the logits of every node on it.
    inner = {slots[entry][:-1] for entry in entries}
    for entry, path in zip(entries, paths, strict=True):
        if slots[entry] in inner:
            continue
        theirs = oracle.logits([*prompt, *(decider.plan.heads[k].trie.last_token(n) for k, n in path)])[-len(path) :]
        torch.testing.assert_close(ours[list(slots[entry])], theirs, atol=2e-3, rtol=1e-3)


@LAW
@given(tools=tool_lists(most=2), prompts=st.lists(TOLD, min_size=2, max_size=4), per_head=st.integers(1, 12))
def test_cached_prefix_and_reuse_keep_the_logits(
    checkpoint: tuple[Path, Oracle], tools: Any, prompts: list[tuple[str, str]], per_head: int
) -> None:
    folder, _ = checkpoint
    reusing = build(folder, tools, budget_per_head=per_head)
    for situation in prompts:
        fresh = build(folder, tools, budget_per_head=per_head)
        fresh.decoding.handle.invalidate()
        alone = fresh.decide(*situation)
        again = reusing.decide(*situation)
        assert alone.reused_tokens == 0
        assert again.reused_tokens >= reusing.prefix.tokens
        assert shown(alone) == shown(again)
        assert alone.confidence == pytest.approx(again.confidence, abs=1e-3)


@LAW
@given(tools=tool_lists(most=2), prompts=st.lists(TOLD, min_size=2, max_size=3), size=st.integers(1, 9))
def test_prompt_computed_in_slices_gives_the_same_decision(
    checkpoint: tuple[Path, Oracle], tools: Any, prompts: list[tuple[str, str]], size: int
) -> None:
    folder, _ = checkpoint
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_flight, "MAX_SLICE", size)
        patch.setattr(in_flight, "MIN_SLICE", size)
        sliced, plain = build(folder, tools), build(folder, tools)
        for situation in prompts:
            steps, count = sliced.decide_in_steps(*situation), 0
            while True:
                try:
                    next(steps)
                    count += 1
                except StopIteration as done:
                    decision = done.value
                    break
            expected = plain.decide(*situation)
            assert shown(decision) == shown(expected)
            assert decision.confidence == pytest.approx(expected.confidence, abs=1e-3)
            assert count >= decision.forward_passes


@LAW
@given(tools=tool_lists(most=3), prompts=st.lists(TOLD, min_size=1, max_size=5), per_head=st.integers(1, 9))
def test_batched_agents_decide_like_each_alone(
    checkpoint: tuple[Path, Oracle], tools: Any, prompts: list[tuple[str, str]], per_head: int
) -> None:
    folder, _ = checkpoint
    decider = build(folder, tools, budget_per_head=per_head)
    alone = [decider.decide(*situation) for situation in prompts]
    together = decider.decide_many(prompts)
    for a, b in zip(alone, together, strict=True):
        assert a.confidence == pytest.approx(b.confidence, abs=1e-3)
        if min([1.0, *a.confidence.values()]) > 0 and shown(a) != shown(b):
            # Different calls only where two values were as good as tied: the product of choices is then about 1/2.
            assert any(abs(c - 0.5) < 1e-3 for c in a.confidence.values())
        assert a.forward_passes == b.forward_passes
    assert shown(decider.decide(*prompts[0])) == shown(alone[0])


# Decoding token by token is a budget of one node: the same call, a forward pass a token.


def test_paths_of_single_choices_take_one_pass_per_choice(folder: Path) -> None:
    values = [f"alpha beta {a} red {b}" for a in ("left", "right") for b in ("slow", "fast")]
    decider: Any = build(folder, [tool(n, v=values) for n in ("go", "stop")])
    decider.decoding.core.set_budget(Budget(1))
    assert decider.decide("left", "go").forward_passes == 5
    decider.decoding.core.set_budget(Budget(1, paths=True))
    assert decider.decide("left", "go").forward_passes == 2
    # Two tools, and two choices of the value; what only leads to them is asked for nothing.
    assert sum(len(head.rows) for head in decider.decoding._last.steps.heads) == 3


def test_pass_costs_decide_the_layout(folder: Path) -> None:
    deep = ["alpha beta go", "alpha beta stop", "alpha red", "green blue"]
    tools = [tool("go", a=deep, b=deep), *(tool(name) for name in ("open", "stop", "turn_left"))]
    plan = build(folder, tools).plan
    everything, chosen = choose_layout(plan, Budget(), lambda: PassCost(1, 0))  # tokens cost nothing
    costly, less = choose_layout(plan, Budget(), lambda: PassCost(0, 1))
    assert costly.function_first and not everything.function_first
    assert (chosen["layout"], chosen["passes"]) == ("everything", 1)
    assert (less["layout"], less["passes"]) == ("function first", 2)
    assert 1 <= less["first_nodes"] < chosen["first_nodes"]


# A model whose scores are NaN or infinite, as of damaged weights or an overflow, never gives a call.


GO, SAY = tool("act", to=["left", "right", "stop", "red"]), tool("act", text={"type": "string", "maxLength": 8})
FEW = tool("act", text={"type": "string", "pattern": "^[qz]+$", "maxLength": 8})
BAD = pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])


def fouled(decider: STDecider, monkeypatch: pytest.MonkeyPatch, bad: float) -> None:
    """From here on every score is bad but the best of each row."""
    plain = decider.runner.model.logits  # type: ignore[attr-defined]

    def logits(*arguments: Any) -> Any:
        scores = plain(*arguments)
        best = scores.argmax(-1, keepdim=True)
        return torch.full_like(scores, bad).scatter(-1, best, scores.gather(-1, best))

    monkeypatch.setattr(decider.runner.model, "logits", logits)  # type: ignore[attr-defined]


@BAD
@pytest.mark.parametrize("acts", [GO, SAY, FEW], ids=["closed", "text", "few"])
def test_nonfinite_scores_are_an_error_for_one_decision_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch, bad: float, acts: dict[str, Any]
) -> None:
    decider = build(folder, [acts])
    sound = decider.decide("go left", "turn fast")
    with monkeypatch.context() as patch:
        fouled(decider, patch, bad)
        with pytest.raises(NotFinite):
            decider.decide("go left", "turn fast")
        with pytest.raises(NotFinite):
            decider.decide_many([("go left", "turn fast")])
    # Nothing of what was computed meanwhile is used again.
    again = decider.decide("go left", "turn fast")
    assert again.reused_tokens == 0
    assert (again.call, again.confidence) == (sound.call, pytest.approx(sound.confidence, rel=1e-3))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_law_holds_for_many_examples() -> None:
    """In its tests here fewer examples are tried."""
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-m", "hypothesis and not slow", str(Path(__file__).parent)]
    done = subprocess.run(command, cwd=ROOT, env=environment(**{LONG: "1"}), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
