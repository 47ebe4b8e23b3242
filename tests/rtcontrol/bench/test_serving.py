"""`rtcontrol bench serving` and `train`: what is compared is the same, and tuned on both sides."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from commands import refused

from rtcontrol.bench.serving import (
    CHANGING,
    CONSTANT,
    HEAD_TOKENS,
    HEADS,
    JSON,
    OURS,
    VOCABULARY,
    eight_token_heads,
    quickest,
)
from rtcontrol.bench.situations import HeadCalls, situations
from rtcontrol.bench.train import PROMPTS, random_groups
from rtcontrol.models.call import Call
from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.models.train.groups import pack_groups
from rtcontrol.models.train.packing import pad_together, separate
from rtcontrol.models.train.scratch import ModelShape
from tests.helpers.processes import ROOT

TINY = ModelShape(hidden=24, layers=1, heads=2, kv_heads=1, intermediate=32)
PYTHON = os.environ.get("RTCONTROL_VLLM_PYTHON")


def test_four_heads_of_eight_tokens_are_all_evaluated(tmp_path: Path) -> None:
    tools, each = eight_token_heads(tmp_path / "m", 3, TINY)
    decider = DeciderSpec(str(tmp_path / "m"), tuple(tools)).build()
    assert VOCABULARY - 64 < decider.runner.caps.vocabulary <= VOCABULARY
    prompts = [
        [*decider.template.prefix_ids(decider.plan.tools), *decider.template.suffix_ids(s.instruction, s.observation)]
        for s in each
    ]
    assert {len(p) for p in prompts} == {CONSTANT + CHANGING}
    assert prompts[0][:CONSTANT] == prompts[1][:CONSTANT]
    assert sum(a == b for a, b in zip(*(p[CONSTANT:] for p in prompts[:2]), strict=True)) < 4
    for one in each:
        decision = decider.decide(one.observation, one.instruction)
        assert decision.forward_passes == 1 and decision.call is not None
        values = [text for _, text in decider.plan.head_values(decision.call)]
        assert [len(decider.tokenizer.encode(str(text))) for text in values] == [HEAD_TOKENS] * 4
    assert decision.tokens == CHANGING + 4 * HEAD_TOKENS


def test_heads_become_typed_calls_or_none() -> None:
    go = {"name": "go", "parameters": {"properties": {"n": {"enum": [1, 2]}, "on": {"type": "boolean"}}}}
    decider: STDecider = DeciderSpec("lander", (go, {"name": "stop"})).build()
    calls = HeadCalls(decider)

    def call(*heads: str) -> Call | None:
        return calls.call([tuple(decider.tokenizer.encode(text)) for text in heads])

    assert call("go", "2", "true") == Call("go", {"n": 2, "on": True})
    assert call("go", "", "false") == Call("go", {"on": False})
    assert call("stop", "2", "true") == Call("stop", {})
    assert call("go", "3", "true") is None and call("fly", "", "") is None


def test_the_quickest_number_of_threads_is_taken() -> None:
    tried: list[float] = []

    def decide(seconds: float, one: Any) -> None:
        tried.append(seconds)
        time.sleep(seconds)

    assert quickest([0.05, 0.001, 0.06], decide, situations("lander", 3)) == 0.001
    assert tried == [0.05, 0.001, 0.06] * 3
    assert quickest([0.5], decide, situations("lander", 3)) == 0.5 and 0.5 not in tried


def test_what_is_missing_or_unknown_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    hint = refused(capsys, "bench", "serving")
    assert "has no vllm" in hint and "fleet/bin/rtcontrol bench serving" in hint
    assert "Choose late, lander" in refused(capsys, "bench", "serving", "submarine")
    assert "Choose fp32, bf16" in refused(capsys, "bench", "serving", "--dtype", "int3")


@pytest.mark.slow
@pytest.mark.timeout(580)
@pytest.mark.skipif(not PYTHON, reason="RTCONTROL_VLLM_PYTHON names no interpreter that has vLLM")
@pytest.mark.parametrize("case", ["late", "lander"])
def test_vllm_decides_the_same_prompts_by_the_same_weights(case: str, tmp_path: Path) -> None:
    out = tmp_path / "serving.json"
    command = [str(PYTHON), "-m", "rtcontrol", "bench", "serving", case, "--dtype", "fp32", "--decisions", "12"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'bridges'}"}
    subprocess.run([*command, "--json", str(out)], check=True, env=env)
    result: dict[str, Any] = json.loads(out.read_text())["cases"][f"{case}, fp32"]
    counts = result["counts"]
    assert set(result["ms"]) == {OURS, HEADS, JSON} and result["decisions"] == 12
    assert counts["one_pass_passes"] == 1 and counts[f"{JSON}_legal"] == 1.0
    if case == "lander":
        assert counts[f"{HEADS}_equal"] >= 0.9 and counts[f"{HEADS}_tokens"] == 2 * result["heads"]
    else:
        assert result["prompt_tokens"] == CONSTANT + CHANGING and result["heads"] == 4
        assert counts[f"{HEADS}_tokens"] == 4 * HEAD_TOKENS and counts[f"{HEADS}_steps"] == HEAD_TOKENS


def test_training_samples_share_nothing_and_have_eight_heads() -> None:
    groups = random_groups(8)
    assert all(len(g.heads) == 8 and PROMPTS[0] <= len(g.suffix) <= PROMPTS[1] for g in groups)
    assert len({g.suffix[:2] for g in groups}) == 8
    packed, apart = pack_groups((1,), groups), pad_together(separate((1,), groups))
    assert sorted(packed.labels.tolist()) == sorted(apart.labels.tolist())
    # Every prompt stands there once, whichever its neighbours are.
    assert packed.tokens.numel() == 1 + sum(len(g.suffix) + sum(len(h.ids) for h in g.heads) for g in groups)
    assert apart.tokens.shape[0] == 64
