"""The law of bf16: where no choice is a near-tie, it calls the same token by token and with others; rates are told."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rtcontrol.bench.dtype import TOLERANCE, compare, decide
from rtcontrol.bench.situations import Situation, schemas, situations
from rtcontrol.models.decider import DeciderSpec
from tests.models.small import TOLD, build, build_checkpoint, law, tool, tool_lists

ENDS = ("at last", "by hand", "for now")
WAYS = ("token_by_token", "together")
# Values that part only many tokens behind their beginning, which drawn ones seldom do: each pass stands on all before.
DEEP = [tool(name, v=[f"to the far end of the left side of a road {end}" for end in ENDS]) for name in ("go", "stop")]


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_bf16_decides_like_itself_token_by_token_and_together_wherever_no_choice_is_a_near_tie(
    kind: str, tmp_path: Path
) -> None:
    folder, total = build_checkpoint(tmp_path / kind, kind, seed=5), Counter[str]()

    @law(8)
    @example(tools=DEEP, told=[("a bed", "cab"), ("", "faced é")])
    @given(tools=tool_lists(most=3, parameters=3), told=st.lists(TOLD, min_size=2, max_size=4))
    def holds(tools: Any, told: list[tuple[str, str]]) -> None:
        asked = [Situation(instruction, seen) for seen, instruction in told]
        found = compare(DeciderSpec(str(folder), tuple(tools)), asked, together=3)
        assert not any(found["differ_without_near_tie"][way] for way in WAYS)
        assert found["largest_difference"] < TOLERANCE
        total.update({"decisions": found["decisions"], "near-ties": found["near_ties"]})
        total.update({f"equal to {way}": count for way, count in found["equal"].items()})

    holds()
    print(f"{kind}: {dict(total)}")
    assert total["near-ties"] < total["decisions"]  # else the law says nothing


# Between two levels of its own engines the lander is nearly undecided at times, so that the rule for those is tried.
@pytest.mark.parametrize(("model", "tools", "count"), [("lander", "bundled", 40), ("driver", "long", 32)])
def test_bundled_model_in_bf16_holds_the_law_and_mostly_calls_what_fp32_calls(
    model: str, tools: str, count: int
) -> None:
    spec = DeciderSpec(model, tuple(schemas(model)[tools]))
    found = compare(spec, situations(model, 2 * count)[count:])
    print(tools, found["equal"], found["near_ties"], found["largest_difference"])
    assert not any(found["differ_without_near_tie"][way] for way in WAYS)
    assert found["largest_difference"] < TOLERANCE
    assert found["equal"]["fp32"] >= 0.9 * count
    assert found["near_ties"] < count / 2 and (found["near_ties"] > 0 or tools == "long")
    assert found["info"]["dtype"] == "bf16"


def test_a_margin_is_the_smallest_lead_on_the_way_to_the_call(tmp_path: Path) -> None:
    folder = build_checkpoint(tmp_path / "m", seed=5)
    tools = [{"name": n, "parameters": {"properties": {"v": {"enum": ["left", "right"]}}}} for n in ("go", "stop")]
    decider = build(folder, tools)
    one = decide(decider, Situation("alpha", "beta"))
    deciding = decider.begin("beta", "alpha").deciding
    assert deciding.work is not None
    confidence = decider.decide("beta", "alpha").confidence
    # Of two choices the probability tells the margin: p = 1 / (1 + exp(-lead)), and the largest score is above a lead.
    assert 0 < one.margin < 2 and min(confidence.values()) > 0.5
    assert (one.margin > TOLERANCE) == (decide(decider, Situation("alpha", "beta")).margin > TOLERANCE)
