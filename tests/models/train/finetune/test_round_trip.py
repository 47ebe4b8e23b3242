"""A Qwen-shaped base by commands alone to a checkpoint that every runner loads, and that decides alike in each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rtcontrol.models.data.row import read_rows
from rtcontrol.models.runners.hf_runner import runner as hf_runner
from rtcontrol.models.runners.torch_runner import PagedRunner
from tests.helpers.processes import ROOT, Program, cli, environment, until
from tests.models.small import build, over, shown
from tests.models.train.finetune.rows import qwen_base, random_rows, write

pytest.importorskip("peft")
pytest.importorskip("accelerate")
PYTHON = os.environ.get("RTCONTROL_VLLM_PYTHON")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
SETTINGS = """rank = 16
alpha = 32
lora_rate = 1e-3
embedding_rate = 1e-2
head_rate = 1e-2
groups = 4
device_groups = 2
steps = 20
save_every = 10
log_every = 1
dtype = "fp32"
device = "cpu"
"""
DECIDED = 24


@dataclass(frozen=True)
class Trip:
    """A run's folder, and rows that it was not trained on."""

    out: Path
    rows: Path

    @property
    def model(self) -> Path:
        return self.out / "model"

    def answers(self, engine: str, folder: Path) -> list[Any]:
        """`rtcontrol eval`: the calls, in the rows' order."""
        out, figures = folder / f"{engine}.jsonl", folder / f"{engine}.json"
        command = ["-m", "rtcontrol", "eval", str(self.rows), "--model", str(self.model), "--engine", engine]
        command += ["--dtype", "fp32", "--value-tokens", "8", "--out", str(out), "--json", str(figures)]
        if engine == "vllm":
            env = environment(CUDA_VISIBLE_DEVICES="", VLLM_CPU_KVCACHE_SPACE="1")
            done = subprocess.run([str(PYTHON), *command], cwd=ROOT, env=env, capture_output=True, text=True)
        else:
            done = cli(*command[2:], timeout=600)
        assert done.returncode == 0, done.stderr[-4000:]
        told = json.loads(figures.read_text())
        assert told["model"]["engine"] == engine and told["errors"] == {} and told["rows"]["count"] == DECIDED
        return [json.loads(line)["calls"] for line in out.read_text().splitlines()[1:]]


@pytest.fixture(scope="module", params=["qwen2", "qwen3"])  # a tied head, and one of its own
def trip(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, data: Path) -> Trip:
    """ST tokens added, killed in the middle of training, gone on with, merged and exported."""
    folder = tmp_path_factory.mktemp(request.param)
    # vLLM's attention on a CPU takes heads of 32 numbers and more.
    base = qwen_base(folder / "base", data, request.param, hidden=128, initializer_range=0.1)
    done = cli("models", "adopt", "--base", str(base), "--out", str(folder / "st"))
    assert done.returncode == 0, done.stderr
    write(folder / "train.jsonl", random_rows(0, 100))
    (folder / "recipe.toml").write_text(SETTINGS)
    made = Trip(folder / "run", write(folder / "rows.jsonl", random_rows(3, DECIDED, sets=DECIDED)))
    command = ["models", "train", "--base", str(folder / "st"), "--rows", str(folder / "train.jsonl")]
    command += ["--out", str(made.out), "--config", str(folder / "recipe.toml")]
    first = Program(["-m", "rtcontrol", *command], folder / "first.log")
    until((made.out / "checkpoints" / "checkpoint-10").exists, "no checkpoint", 500)
    first.end(signal.SIGKILL)
    assert not made.model.exists()
    done = cli(*command, timeout=600)
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line)["step"] for line in (made.out / "log.jsonl").read_text().splitlines()]
    assert steps == [*range(1, 21)]
    return made


@pytest.fixture(scope="module")
def expected(trip: Trip, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """By the engine torch."""
    found = trip.answers("torch", tmp_path_factory.mktemp("torch"))
    assert len({json.dumps(calls) for calls in found}) > DECIDED / 3, "each row has its own tools"
    return found


@pytest.mark.parametrize(
    "engine",
    [
        "transformers",
        pytest.param(
            "vllm", marks=pytest.mark.skipif(not PYTHON, reason="RTCONTROL_VLLM_PYTHON names no interpreter with vLLM")
        ),
    ],
)
def test_a_fine_tuned_checkpoint_answers_rows_in_every_engine_alike(
    trip: Trip, expected: list[Any], tmp_path: Path, engine: str
) -> None:
    assert trip.answers(engine, tmp_path) == expected


def test_pages_and_hugging_face_path_by_path_decide_as_the_engine_torch(trip: Trip) -> None:
    """What the engines run where there is a GPU, and where a model takes no tree."""
    made = AutoModelForCausalLM.from_pretrained(trip.model, dtype=torch.float32).eval()
    runners = [PagedRunner(trip.model, torch.float32, torch.device("cpu"), 1), hf_runner(made)]
    for row in list(read_rows(trip.rows))[: DECIDED // 2]:
        options: dict[str, Any] = {"dtype": "fp32", "value_tokens": 8, "allow_null": True}
        plain = build(trip.model, row.tools, **options)  # type: ignore[arg-type]
        told = row.observation, row.instruction
        first = plain.decide(*told)
        for runner in runners:
            found = over(build(trip.model, row.tools, **options), runner).decide(*told)  # type: ignore[arg-type]
            assert shown(found) == shown(first)
            assert found.confidence == pytest.approx(first.confidence, abs=1e-3)
