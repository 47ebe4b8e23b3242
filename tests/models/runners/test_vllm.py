"""vLLM's engine decides like ours. It runs in another environment, with the interpreter RTCONTROL_VLLM_PYTHON."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.bench.situations import situations, tool_lists
from tests.helpers.processes import ROOT

PYTHON = os.environ.get("RTCONTROL_VLLM_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(580),
    pytest.mark.skipif(not PYTHON, reason="RTCONTROL_VLLM_PYTHON names no interpreter that has vLLM"),
]
Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """A function that runs a job of vllm_program.py."""

    def run(check: str, env: dict[str, str] | None = None, **job: Any) -> dict[str, Any]:
        wanted = {"tools": tool_lists("lander")["bundled"], "dtype": "fp32", "check": check, **job}
        wanted["asked"] = [(s.instruction, s.observation) for s in situations("lander", job.get("asked", 40))]
        path = tmp_path / "job.json"
        path.write_text(json.dumps(wanted))
        command = [str(PYTHON), "-m", "tests.models.runners.vllm_program", str(path)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", **(env or {})}
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        print(json.dumps({k: v for k, v in result.items() if k != "info"}))
        return result

    return run


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_vllm_and_torch_agree_on_500_lander_observations(ask: Ask, dtype: str) -> None:
    result = ask("calls", dtype=dtype, asked=500)
    assert result["caps"]["engine"] == "vllm" and result["caps"]["dtype"] == dtype and result["asked"] == 500
    assert result["differ"] == []
    assert result["passes"][0] == result["passes"][1] == 500, "the lander's values differ in their first token"


def test_vllm_follows_the_runner_protocol(ask: Ask) -> None:
    result = ask("others")
    assert result["one engine"] and result["together"] is True and result["many"] is True
    figures = result["figures"]
    assert figures["steps"] == 12 and figures["requests"] == 24, "all that a pass asks for is in one step"
    whole = result["prefix"] // 32 * 32
    assert figures["cached_tokens"] >= 24 * whole > 0, "the prefix is cached"
    assert result["kept"] == 0, "no scores of a pass that was answered"
    slices, same = result["sliced"]
    assert slices > 1 and same
    assert result["info"]["engine"] == "vllm" and result["info"]["cached_tokens"] > 0


def test_vllm_gives_scores_from_a_worker_in_another_process(ask: Ask) -> None:
    """This is also so with tensor parallelism, where no worker is in the engine's process."""
    result = ask("calls", env={"RTCONTROL_VLLM_ARGS": '{"distributed_executor_backend": "mp"}'})
    assert result["differ"] == []
