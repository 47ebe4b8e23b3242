"""vLLM's engine decides as ours does; in an environment of its own, whose interpreter RTCONTROL_VLLM_PYTHON names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rtcontrol.bench.situations import schemas, situations
from rtcontrol.models.checkpoint.checkpoint import resolve
from rtcontrol.models.runners.quantized_weights import AWQ_ORDER
from tests.helpers.processes import ROOT
from tests.models.runners.test_quantized_weights import words
from tests.models.runners.vllm_program import TOLERANCE
from tests.models.small import MARGIN

PYTHON = os.environ.get("RTCONTROL_VLLM_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(580),
    pytest.mark.skipif(not PYTHON, reason="RTCONTROL_VLLM_PYTHON names no interpreter that has vLLM"),
]
Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Runs a job of the program's."""

    def run(check: str, env: dict[str, str] | None = None, **job: Any) -> dict[str, Any]:
        given = {"model": "lander", "tools": schemas("lander")["bundled"], "dtype": "fp32", "tolerance": MARGIN, **job}
        given |= {"check": check}
        if "asked" not in job or isinstance(job["asked"], int):
            given["asked"] = [(s.instruction, s.observation) for s in situations("lander", job.get("asked", 40))]
        path = tmp_path / "job.json"
        path.write_text(json.dumps(given))
        command = [str(PYTHON), "-m", "tests.models.runners.vllm_program", str(path)]
        own = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", **(env or {})}
        done = subprocess.run(command, env=own, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        print(json.dumps({k: v for k, v in found.items() if k != "info"}))
        return found

    return run


@pytest.mark.parametrize(("dtype", "tolerance"), [("fp32", MARGIN), ("bf16", TOLERANCE)])
def test_vllm_gives_the_calls_of_torch_on_500_observations_of_the_lander(
    ask: Ask, dtype: str, tolerance: float
) -> None:
    found = ask("calls", dtype=dtype, tolerance=tolerance, asked=500)
    assert found["caps"]["engine"] == "vllm" and found["caps"]["dtype"] == dtype and found["asked"] == 500
    assert [d for d in found["differ"] if not d["tie"]] == []
    assert found["ties"] < 250 and found["apart"] < tolerance
    assert found["passes"][0] == found["passes"][1] == 500, "the lander's values differ in their first token"


def test_vllm_keeps_the_protocol_of_runners(ask: Ask) -> None:
    found = ask("others")
    assert found["one engine"] and found["together"] is True and found["many"] is True
    figures = found["figures"]
    assert figures["steps"] == 12 and figures["requests"] == 24, "all that a pass asks for is in one step"
    whole = found["prefix"] // 32 * 32
    assert figures["cached_tokens"] >= 24 * whole > 0, "the prefix is cached"
    assert found["kept"] == 0, "no scores of a pass that was answered"
    slices, same = found["sliced"]
    assert slices > 1 and same
    assert found["info"]["engine"] == "vllm" and found["info"]["cached_tokens"] > 0


def test_vllm_gives_up_a_decision_between_two_steps(ask: Ask) -> None:
    found = ask("stopped", env={"RTCONTROL_VLLM_ARGS": '{"max_num_batched_tokens": 256}'})
    assert found["tokens"] > 2 * 256, "several steps"
    assert found["gone"] and found["steps"] == 2 and not found["left"]
    assert found["same"], "the next decision is sound"


def test_vllm_gives_scores_from_a_worker_in_another_process(ask: Ask) -> None:
    """As with tensor parallelism, where no worker is in the engine's process."""
    found = ask("calls", env={"RTCONTROL_VLLM_ARGS": '{"distributed_executor_backend": "mp"}'})
    assert found["differ"] == [] and found["ties"] == 0


Parts = dict[str, torch.Tensor]  # of one weight [outputs, inputs], in a checkpoint's file
GROUP = 32  # inputs that share a scale


def as_awq(weight: torch.Tensor) -> Parts:
    """AutoAWQ's format, GEMM order: four bits with zeros."""
    grouped = weight.unflatten(1, (-1, GROUP))  # [outputs, groups, inputs of one]
    low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
    scale = ((high - low) / 15).clamp(min=1e-6).half()
    zero = (-low / scale).round().clamp(0, 15).int()
    q = ((grouped / scale[..., None]).round() + zero[..., None]).clamp(0, 15).int().flatten(1)
    return {"qweight": words(q.T, AWQ_ORDER), "qzeros": words(zero.T, AWQ_ORDER), "scales": scale.T.contiguous()}


def as_gptq(weight: torch.Tensor) -> Parts:
    """GPTQ's own format: four bits about a zero of 8, which it keeps one too small."""
    grouped = weight.unflatten(1, (-1, GROUP))
    scale = (grouped.abs().amax(-1) / 7).clamp(min=1e-6).half()
    q = ((grouped / scale[..., None]).round() + 8).clamp(0, 15).int().flatten(1)
    index, zeros = torch.arange(weight.shape[1]) // GROUP, words(torch.full(scale.T.shape, 7))
    parts = {"qweight": words(q).T.contiguous(), "qzeros": zeros, "scales": scale.T.contiguous()}
    return {**parts, "g_idx": index.int()}


AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}


@pytest.mark.parametrize(
    ("parts", "config"),
    [(as_awq, AWQ), (as_gptq, GPTQ)],
    ids=["awq", "gptq"],
)
def test_vllm_and_torch_give_the_same_calls_of_a_checkpoint_in_anothers_format(
    ask: Ask, tmp_path: Path, parts: Callable[[torch.Tensor], Parts], config: dict[str, Any]
) -> None:
    """Of the lander, rounded to the nearest."""
    folder = tmp_path / "rounded"
    shutil.copytree(resolve("lander"), folder)
    tensors = load_file(str(folder / "model.safetensors"))
    for name in [n for n in tensors if n.endswith("proj.weight")]:
        at, weight = name.removesuffix("weight"), tensors.pop(name).float()
        tensors |= {at + part: tensor for part, tensor in parts(weight).items()}
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": config}))
    found = ask("calls", model=str(folder), dtype="bf16", tolerance=TOLERANCE, asked=100)
    assert config["quant_method"] in found["caps"]["weights"]
    assert [d for d in found["differ"] if not d["tie"]] == []
    assert found["apart"] < TOLERANCE
