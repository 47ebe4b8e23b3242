"""bf16 decides like itself, token by token and many together, wherever no choice is a near-tie; mostly like fp32."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rtcontrol.bench.situations import schemas, situations
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.decode.protocol import Budget
from tests.models.margins import TOLERANCE, ScoredCall, decide
from tests.models.small import TOLD, build_checkpoint, law, tool, tool_lists

Told = tuple[str, str]  # observation, instruction
ENDS = ("at last", "by hand", "for now")
WAYS = ("token_by_token", "together")
# Values that part only many tokens after their start, which random ones seldom do: each pass stands on all before.
DEEP = [tool(name, v=[f"to the far end of the left side of a road {end}" for end in ENDS]) for name in ("go", "stop")]


def difference(one: ScoredCall, other: ScoredCall) -> float:
    """How far the leads of one score over another are apart at most, where both chose at the same node."""
    most = 0.0
    for node in one.scores.keys() & other.scores.keys():
        apart = [a - b for a, b in zip(one.scores[node], other.scores[node], strict=True)]
        most = max(most, max(apart) - min(apart))
    return most


def compare(spec: DeciderSpec, each: Sequence[Told], together: int = 16) -> dict[str, Any]:
    """How many bf16 calls equal those of fp32, its own token by token and its own of `together` at once, and how many
    that were no near-ties differ."""
    half = replace(spec, dtype="bf16")
    exact, packed, slow, many = replace(spec, dtype="fp32").build(), half.build(), half.build(), half.build()
    slow.decoding.core.set_budget(Budget(1, forced=True))
    counts = {"equal": Counter[str](), "clear": Counter[str]()}
    ties, apart = 0, 0.0
    for i in range(0, len(each), together):
        chunk = each[i : i + together]
        for one, next_to in zip(chunk, many.decide_many(chunk), strict=True):
            own, by_token = decide(packed, *one), decide(slow, *one)
            ties += own.margin <= TOLERANCE
            apart = max(apart, difference(own, by_token))
            calls = {"fp32": decide(exact, *one).call, "token_by_token": by_token.call, "together": next_to.call}
            for name, call in calls.items():
                counts["equal"][name] += call == own.call
                counts["clear"][name] += call != own.call and own.margin > TOLERANCE
    return {**counts, "ties": ties, "apart": apart, "dtype": packed.info()["dtype"]}


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_bf16_decides_like_itself_without_near_ties(kind: str, tmp_path: Path) -> None:
    folder, total = build_checkpoint(tmp_path / kind, kind, seed=5), Counter[str]()

    @law(8)
    @example(tools=DEEP, told=[("a bed", "cab"), ("", "faced é")])
    @given(tools=tool_lists(most=3, parameters=3), told=st.lists(TOLD, min_size=2, max_size=4))
    def holds(tools: Any, told: list[Told]) -> None:
        result = compare(DeciderSpec(str(folder), tuple(tools)), told, together=3)
        assert not any(result["clear"][way] for way in WAYS)
        assert result["apart"] < TOLERANCE
        total.update({"decisions": len(told), "ties": result["ties"]})

    holds()
    assert total["ties"] < total["decisions"]  # else the law says nothing


# Between two levels of its own engines the lander is nearly undecided at times, so that the rule for those is tried.
@pytest.mark.parametrize(("model", "tools", "count"), [("lander", "bundled", 40), ("driver", "long", 16)])
def test_bundled_model_in_bf16_mostly_calls_what_fp32_calls(model: str, tools: str, count: int) -> None:
    spec = DeciderSpec(model, tuple(schemas(model)[tools]))
    each = [(one.observation, one.instruction) for one in situations(model, 2 * count)[count:]]
    result = compare(spec, each)
    assert not any(result["clear"][way] for way in WAYS)
    assert result["apart"] < TOLERANCE
    assert result["equal"]["fp32"] >= 0.9 * count
    assert result["ties"] < count / 2 and (result["ties"] > 0 or tools == "long")
    assert result["dtype"] == "bf16"
