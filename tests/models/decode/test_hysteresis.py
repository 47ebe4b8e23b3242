"""Hysteresis: the active value stays until another one is more probable by a margin; the call is always legal."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.call import Call
from rtcontrol.models.decider import STDecider
from rtcontrol.models.decode.hysteresis import margin_of
from rtcontrol.models.decode.plan import ANY_TOOL, NO_TOOL, ROOT, SchemaPlan
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.random_call import random_call
from rtcontrol.models.schema.tool_schema import ABSENT
from tests.models.small import (
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

LAW = law(16)
MARGINS = st.sampled_from((0.01, 0.1, 0.3, 0.7, 1.0))
MOVES = [tool("go", side=["left", "right"], speed=[0, 1, 2, 3]), tool("stop"), tool("turn_left", side=["left", "red"])]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Oracle]:
    folder = build_checkpoint(tmp_path_factory.mktemp("steady") / "model", "qwen2")
    return folder, Oracle.load(folder)


class ByHand:
    """The same rule by brute force: of each head the probability of each legal value, by the oracle."""

    def __init__(self, oracle: Oracle, plan: SchemaPlan, prompt: list[int], margin: float) -> None:
        self._oracle, self._plan, self._prompt, self._margin = oracle, plan, prompt, margin
        self.close = math.inf  # how near any choice was to the other one
        self._rows: dict[tuple[int, ...], Any] = {}

    def decide(self, standing: Call) -> tuple[str, dict[str, Any]] | None:
        plan = self._plan
        names = {t.name: i for i, t in enumerate(plan.tools)}
        tool = self._head(0, 1 << ANY_TOOL, ANY_TOOL, names[standing.name])
        if tool == NO_TOOL:
            return None
        arguments: dict[str, Any] = {}
        for k, slot in enumerate(plan.slots[tool], start=1):
            same = plan.tools[tool].name == standing.name
            before = slot.value(standing.arguments) if same else None
            value = self._head(k, 1 << tool, tool, before, same)
            if value is not ABSENT:
                arguments |= slot.arguments(value)
        return plan.tools[tool].name, arguments

    def _head(self, k: int, mask: int, bit: int, before: Any, compared: bool = True) -> Any:
        trie = self._plan.heads[k].trie
        node, values = ROOT, dict[tuple[int, ...], float]()
        todo = [(ROOT, 1.0)]
        while todo:
            at, sure = todo.pop()
            legal = trie.legal_children(at, mask)
            if not legal:
                values[at] = sure
            for (_, child), share in zip(legal, self._shares(k, at, legal), strict=True):
                todo.append((child, sure * share))
        while legal := trie.legal_children(node, mask):
            shares = self._shares(k, node, legal)
            if len(shares) > 1:
                first, second = sorted(shares, reverse=True)[:2]
                self.close = min(self.close, first - second)
            _, node = legal[shares.index(max(shares))]
        best = trie.value(node, bit)
        leaf = next((leaf for leaf in values if compared and _alike(trie.value(leaf, bit), before)), None)
        if leaf is None or leaf == node or best == NO_TOOL:
            return best
        surer = values[node] - values[leaf]
        self.close = min(self.close, abs(surer - self._margin))
        return best if surer >= self._margin else trie.value(leaf, bit)

    def _shares(self, k: int, node: tuple[int, ...], legal: Any) -> list[float]:
        if len(legal) < 2:
            return [1.0] * len(legal)
        ids = (*self._prompt, self._plan.heads[k].trie.last_token(ROOT), *node)
        if ids not in self._rows:
            self._rows[ids] = self._oracle.logits(ids)[-1]
        scores = [float(self._rows[ids][t]) for t, _ in legal]
        whole = math.fsum(math.exp(score - max(scores)) for score in scores)
        return [math.exp(score - max(scores)) / whole for score in scores]


def _alike(a: Any, b: Any) -> bool:
    return a is b or (a == b and type(a) is type(b))


def drawn(decider: STDecider, seed: int) -> Call:
    return random_call(list(decider.plan.tools), random.Random(seed))


@LAW
@given(
    tools=tool_lists(),
    per_head=st.integers(1, 12),
    total=st.sampled_from((1, 2, 3, 7, 20, 128)),
    allow_null=st.booleans(),
    margin=MARGINS,
    situation=TOLD,
    seed=st.integers(0, 1 << 30),
)
def test_hysteresis_equals_brute_force_for_every_budget(
    checkpoint: tuple[Path, Oracle],
    tools: Any,
    per_head: int,
    total: int,
    allow_null: bool,
    margin: float,
    situation: tuple[str, str],
    seed: int,
) -> None:
    folder, oracle = checkpoint
    decider = build(
        folder, tools, allow_null=allow_null, budget_per_head=per_head, budget_total=total, hysteresis=margin
    )
    call = drawn(decider, seed)
    hand = ByHand(oracle, decider.plan, prompt_of(decider, *situation), margin)
    expected = hand.decide(call)
    got = decider.decide(*situation, active_call=call)
    if hand.close > MARGIN:
        assert shown(got) == expected
    assert all(0 < sure <= 1 + 1e-12 for sure in got.confidence.values())
    assert set(got.kept) <= set(got.confidence)


@LAW
@given(tools=tool_lists(), margin=MARGINS, situation=TOLD, seed=st.integers(0, 1 << 30))
def test_hysteresis_off_or_without_active_call_changes_nothing(
    checkpoint: tuple[Path, Oracle], tools: Any, margin: float, situation: tuple[str, str], seed: int
) -> None:
    plain, steady = build(checkpoint[0], tools), build(checkpoint[0], tools, hysteresis=margin)
    expected = plain.decide(*situation)
    assert steady.decide(*situation) == expected, "nothing in force"
    again = plain.decide(*situation, active_call=drawn(plain, seed))
    assert not again.kept and again.call == expected.call
    # What is preferred is in force already: nothing is compared, and nothing more is computed.
    same = steady.decide(*situation, active_call=drawn(plain, seed) if expected.call is None else expected.call)
    if expected.call is not None:
        assert same == again


def test_active_value_unknown_to_the_tools_has_no_effect(checkpoint: tuple[Path, Oracle]) -> None:
    # doc-ai/net-runner-ios#26: a smoothed value must not stick when it can no longer be seen.
    decider = build(checkpoint[0], MOVES, hysteresis=1.0)
    best = decider.decide("a", "b")
    for call in (Call("vanish"), Call("go", {"side": "up", "speed": 9}), Call("go"), Call("")):
        decided = decider.decide("a", "b", active_call=call).call
        assert decided is not None and (decided.name == call.name == "go" or decided == best.call)


@pytest.mark.parametrize(
    "text",
    [
        *("", "0.2", "margin=", "margin=nan", "margin=0", "margin=1.01", "margin=0_1", "margin=0.2,margin=0.3"),
        *("margin=\u0663", f"margin={'9' * 5000}", "margin=0.2,ticks=3", "side=2"),
    ],
)
def test_invalid_hysteresis_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UserError) as refused:
        margin_of(text)
    assert len(refused.value.what) < 300 and "margin=0.2" in refused.value.remedy
    assert margin_of(" margin = 2e-1 ") == 0.2
