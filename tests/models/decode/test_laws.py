"""The laws of decoding, over random small models, schemas and prompts, in fp32: whatever is packed, the call stays."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from rtcontrol.models import in_flight
from rtcontrol.models.decider import STDecider
from rtcontrol.models.decode.protocol import Budget, NotFinite, PassCost
from rtcontrol.models.decode.walk import Entry, choose_layout
from rtcontrol.models.errors import UserError
from rtcontrol.models.runners.packed import Node
from tests.helpers.processes import ROOT, environment
from tests.models.small import (
    KINDS,
    LONG,
    MARGIN,
    TOLD,
    Oracle,
    build,
    build_checkpoint,
    law,
    prompt_of,
    shown,
    tool,
    tool_lists,
)

TEXT = st.text(min_size=0, max_size=30)
LAW = law(12)


@LAW
@given(
    tools=tool_lists(),
    per_head=st.integers(1, 12),
    total=st.sampled_from((1, 2, 3, 7, 20, 128)),
    allow_null=st.booleans(),
    told=TOLD,
)
def test_packed_decode_equals_token_by_token_greedy_for_every_budget(
    checkpoint: tuple[Path, Oracle], tools: Any, per_head: int, total: int, allow_null: bool, told: tuple[str, str]
) -> None:
    folder, oracle = checkpoint
    decider = build(folder, tools, allow_null=allow_null, budget_per_head=per_head, budget_total=total)
    expected = oracle.decide(decider.plan, prompt_of(decider, *told))
    got = shown(decider.decide(*told))
    if oracle.margin > MARGIN:
        assert got == expected
        if got is not None:  # equal types too: 1, 1.0 and True are equal in Python
            assert {k: type(v) for k, v in got[1].items()} == {k: type(v) for k, v in expected[1].items()}


@LAW
@given(tools=tool_lists(), per_head=st.integers(1, 12), told=TOLD, then=TEXT)
def test_packed_logits_equal_a_forward_of_each_heads_own_sequence(
    checkpoint: tuple[Path, Oracle], tools: Any, per_head: int, told: tuple[str, str], then: str
) -> None:
    folder, oracle = checkpoint
    decider = build(folder, tools, budget_per_head=per_head)
    sequence: Any = decider.decoding.handle
    runner: Any = decider.runner
    decider.decide(*told)  # so that the second prompt starts from a reused common prefix
    prompt = prompt_of(decider, then, told[1])
    sequence.start(prompt, 200)
    # Every node of every trie, parents first.
    each = [{leaf[:end]: None for leaf in h.trie.leaves for end in range(len(leaf) + 1)} for h in decider.plan.heads]
    entries: list[Entry] = [(k, n) for k, nodes_ in enumerate(each) for n in nodes_][:60]
    slots: dict[Entry, tuple[int, ...]] = {}
    nodes, paths = [], []
    for i, (k, n) in enumerate(entries):
        trie = decider.plan.heads[k].trie
        above = slots[k, n[:-1]] if n else ()
        slots[k, n] = (*above, i)
        nodes.append(Node(trie.token(n), len(n), above))
        paths.append([entries[s] for s in slots[k, n]])
    hidden = sequence.run(nodes)
    ours = runner.model.logits(hidden)
    # A forward of a path has the logits of every node on it.
    inner = {slots[entry][:-1] for entry in entries}
    for entry, path in zip(entries, paths, strict=True):
        if slots[entry] in inner:
            continue
        own = oracle.logits([*prompt, *(decider.plan.heads[k].trie.token(n) for k, n in path)])[-len(path) :]
        torch.testing.assert_close(ours[list(slots[entry])], own, atol=2e-3, rtol=1e-3)


@LAW
@given(tools=tool_lists(most=2), prompts=st.lists(TOLD, min_size=2, max_size=4), per_head=st.integers(1, 12))
def test_cached_prefix_and_reuse_change_no_logit(
    checkpoint: tuple[Path, Oracle], tools: Any, prompts: list[tuple[str, str]], per_head: int
) -> None:
    folder, _ = checkpoint
    reusing = build(folder, tools, budget_per_head=per_head)
    for told in prompts:
        fresh = build(folder, tools, budget_per_head=per_head)
        fresh.decoding.handle.forget()
        alone = fresh.decide(*told)
        again = reusing.decide(*told)
        assert alone.reused_tokens == 0
        assert again.reused_tokens >= reusing.prefix.tokens
        assert shown(alone) == shown(again)
        assert alone.confidence == pytest.approx(again.confidence, abs=1e-3)


@LAW
@given(tools=tool_lists(most=2), prompts=st.lists(TOLD, min_size=2, max_size=3), size=st.integers(1, 9))
def test_a_prompt_in_slices_decides_like_one_that_is_computed_at_once(
    checkpoint: tuple[Path, Oracle], tools: Any, prompts: list[tuple[str, str]], size: int
) -> None:
    folder, _ = checkpoint
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_flight, "SLICE", size)
        patch.setattr(in_flight, "LEAST_SLICE", size)
        sliced, plain = build(folder, tools), build(folder, tools)
        for told in prompts:
            steps, count = sliced.decide_in_steps(*told), 0
            while True:
                try:
                    next(steps)
                    count += 1
                except StopIteration as done:
                    found = done.value
                    break
            expected = plain.decide(*told)
            assert shown(found) == shown(expected)
            assert found.confidence == pytest.approx(expected.confidence, abs=1e-3)
            assert count >= found.forward_passes


@LAW
@given(tools=tool_lists(most=3), prompts=st.lists(TOLD, min_size=1, max_size=5), per_head=st.integers(1, 9))
def test_batch_of_agents_decides_like_each_alone(
    checkpoint: tuple[Path, Oracle], tools: Any, prompts: list[tuple[str, str]], per_head: int
) -> None:
    folder, _ = checkpoint
    decider = build(folder, tools, budget_per_head=per_head)
    alone = [decider.decide(*told) for told in prompts]
    together = decider.decide_many(prompts)
    for a, b in zip(alone, together, strict=True):
        assert a.confidence == pytest.approx(b.confidence, abs=1e-3)
        if min([1.0, *a.confidence.values()]) > 0 and shown(a) != shown(b):
            # Different calls only where two values were as good as tied: the product of choices is then about 1/2.
            assert any(abs(c - 0.5) < 1e-3 for c in a.confidence.values())
        assert a.forward_passes == b.forward_passes
    assert shown(decider.decide(*prompts[0])) == shown(alone[0])


@pytest.mark.parametrize("kind", KINDS)
def test_prefix_restored_from_disk_decides_like_the_computed_one(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RTCONTROL_CACHE", str(tmp_path / "cache"))
    folder = build_checkpoint(tmp_path / "m", kind)
    tools = [tool(n, 0, v=["left", "green red"]) for n in ("go", "stop")]
    first, second = build(folder, tools), build(folder, tools)
    assert (first.prefix.source, second.prefix.source) == ("computed", "disk")
    a, b = first.decide("alpha", "go left"), second.decide("alpha", "go left")
    assert shown(a) == shown(b)
    assert a.confidence == pytest.approx(b.confidence, abs=1e-6)


# Decoding token by token is a budget of one node: the same call, a forward pass a token.


def test_paths_of_one_choice_each_take_a_pass_for_each_choice(folder: Path) -> None:
    values = [f"alpha beta {a} red {b}" for a in ("left", "right") for b in ("slow", "fast")]
    decider: Any = build(folder, [tool(n, v=values) for n in ("go", "stop")])
    decider.decoding.core.set_budget(Budget(1))
    assert decider.decide("left", "go").forward_passes == 5
    decider.decoding.core.set_budget(Budget(1, paths=True))
    assert decider.decide("left", "go").forward_passes == 2
    # Two tools, and two choices of the value; what only leads to them is asked for nothing.
    assert sum(len(head.rows) for head in decider.decoding._last.deciding.heads) == 3


# The two layouts of passes: what it costs to be wrong decides what a pass carries, and never what is called.


COSTS = st.builds(PassCost, st.floats(0, 100), st.floats(0, 10))
UNLIMITED = Budget(10**6, 10**6)
BY_TOKEN = (Budget(1), Budget(1, forced=True), Budget(1, paths=True), Budget(3, paths=True))
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
        for budget in (chosen, FIRST, *BY_TOKEN, UNLIMITED):
            core.set_budget(budget)
            calls.append(decider.decide(*told).call)
    except UserError as error:  # all that these tools may be called with at once, beside the prompt
        assume(budget is not UNLIMITED or "leaves no room" not in error.what)
        raise
    assert calls == calls[:1] * (4 + len(BY_TOKEN))


def test_free_tokens_put_everything_into_one_pass_and_costly_ones_wait(folder: Path) -> None:
    decider, _ = both(folder, tools_with_arguments(6))
    everything, found = choose_layout(decider.plan, Budget(), lambda: PassCost(1, 0))
    assert not everything.function_first
    assert (found["layout"], found["passes"]) == ("everything", 1)
    costly, less = choose_layout(decider.plan, Budget(), lambda: PassCost(0, 1))
    assert costly.function_first
    assert (less["layout"], less["passes"]) == ("function first", 2)
    assert 1 <= less["first_nodes"] < found["first_nodes"]


def test_explicit_budget_is_kept(folder: Path) -> None:
    decider, core = both(folder, tools_with_arguments(5), budget_per_head=3)
    assert core.walker.budget == Budget(3)
    plain = dict.fromkeys(("function_first", "forced", "paths"), False)
    assert decider.info()["budget"] == {"per_head": 3, "total": 128, **plain}
    for refused in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="at least one"):
            Budget(*refused)


# A model whose scores are NaN or infinite, as of damaged weights or an overflow, never gives a call.


GO, SAY = tool("act", to=["left", "right", "stop", "red"]), tool("act", text={"type": "string", "maxLength": 8})
FEW = tool("act", text={"type": "string", "pattern": "^[qz]+$", "maxLength": 8})
BAD = pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])


def fouled(made: STDecider, monkeypatch: pytest.MonkeyPatch, bad: float) -> None:
    """From here on every score is bad but the best of each row."""
    plain = made.runner.model.logits  # type: ignore[attr-defined]

    def logits(*arguments: Any) -> Any:
        found = plain(*arguments)
        best = found.argmax(-1, keepdim=True)
        return torch.full_like(found, bad).scatter(-1, best, found.gather(-1, best))

    monkeypatch.setattr(made.runner.model, "logits", logits)  # type: ignore[attr-defined]


@BAD
@pytest.mark.parametrize("acts", [GO, SAY, FEW], ids=["closed", "text", "few"])
def test_scores_that_are_not_finite_are_an_error_and_the_next_decision_is_sound(
    folder: Path, monkeypatch: pytest.MonkeyPatch, bad: float, acts: dict[str, Any]
) -> None:
    made = build(folder, [acts])
    sound = made.decide("go left", "turn fast")
    with monkeypatch.context() as patch:
        fouled(made, patch, bad)
        with pytest.raises(NotFinite):
            made.decide("go left", "turn fast")
        with pytest.raises(NotFinite):
            made.decide_many([("go left", "turn fast")])
    # Nothing of what was computed meanwhile is used again.
    again = made.decide("go left", "turn fast")
    assert again.reused_tokens == 0
    assert (again.call, again.confidence) == (sound.call, pytest.approx(sound.confidence, rel=1e-3))


# A long prompt in slices, on a runner that is slow.


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_law_holds_at_length() -> None:
    """In its tests here fewer examples are tried."""
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-m", "hypothesis and not slow", str(Path(__file__).parent)]
    done = subprocess.run(command, cwd=ROOT, env=environment(**{LONG: "1"}), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
