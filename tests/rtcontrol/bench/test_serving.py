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

from rtcontrol.bench.serving import HEADS, JSON, OURS, quickest
from rtcontrol.bench.situations import HeadCalls, situations
from rtcontrol.bench.train import PROMPTS, random_groups
from rtcontrol.models.call import Call
from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.models.train.groups import pack_groups
from rtcontrol.models.train.packing import pad_together, separate
from tests.helpers.processes import ROOT

PYTHON = os.environ.get("RTCONTROL_VLLM_PYTHON")


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


def test_a_missing_vllm_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    hint = refused(capsys, "bench", "serving")
    assert "has no vllm" in hint and "fleet/bin/rtcontrol bench serving" in hint


@pytest.mark.slow
@pytest.mark.timeout(580)
@pytest.mark.skipif(not PYTHON, reason="RTCONTROL_VLLM_PYTHON names no interpreter that has vLLM")
def test_vllm_decides_the_same_prompts_by_the_same_weights(tmp_path: Path) -> None:
    out = tmp_path / "serving.json"
    command = [str(PYTHON), "-m", "rtcontrol", "bench", "serving", "--dtype", "fp32", "--decisions", "12"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'bridges'}"}
    subprocess.run([*command, "--json", str(out)], check=True, env=env)
    result: dict[str, Any] = json.loads(out.read_text())["cases"]["lander, fp32"]
    counts = result["counts"]
    assert set(result["ms"]) == {OURS, HEADS, JSON} and result["decisions"] == 12
    assert counts["one_pass_steps"] == 1 and counts[f"{JSON}_legal"] == 1.0
    assert counts[f"{HEADS}_equal"] >= 0.9 and counts[f"{HEADS}_steps"] == 2


def test_training_samples_share_nothing_and_have_eight_heads() -> None:
    groups = random_groups(8)
    assert all(len(g.heads) == 8 and PROMPTS[0] <= len(g.suffix) <= PROMPTS[1] for g in groups)
    assert len({g.suffix[:2] for g in groups}) == 8
    packed, apart = pack_groups((1,), groups), pad_together(separate((1,), groups))
    assert sorted(packed.labels.tolist()) == sorted(apart.labels.tolist())
    # Every prompt stands there once, whichever its neighbours are.
    assert packed.tokens.numel() == 1 + sum(len(g.suffix) + sum(len(h.ids) for h in g.heads) for g in groups)
    assert apart.tokens.shape[0] == 64
