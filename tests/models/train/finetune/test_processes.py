"""Two processes that share each step train what one trains."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rtcontrol.models.train.finetune.config import recipe
from rtcontrol.models.train.finetune.run import Job, finetune
from tests.helpers.processes import ROOT, environment
from tests.models.small import build_checkpoint
from tests.models.train.finetune.rows import random_rows, write

pytest.importorskip("peft")
pytest.importorskip("accelerate")


def test_two_processes_step_by_the_gradients_of_one(tmp_path: Path) -> None:
    base = build_checkpoint(tmp_path / "base", seed=2, scale=0.1)
    rows = write(tmp_path / "rows.jsonl", random_rows(0, 16))
    settings = "rank = 4\nalpha = 8\nlog_every = 1\ndropout = 0.0\ngroups = 16\ndevice_groups = 8\nsteps = 2\n"
    rates = "lora_rate = 1e-3\nembedding_rate = 1e-3\ndtype = 'fp32'\ndevice = 'cpu'\n"
    (tmp_path / "r.toml").write_text(settings + rates)
    finetune(Job(str(base), (rows,), tmp_path / "one", recipe(file=tmp_path / "r.toml")))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "rtcontrol",
    ]
    command += ["models", "train", "--base", str(base), "--rows", str(rows), "--out", str(tmp_path / "two")]
    command += ["--config", str(tmp_path / "r.toml")]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(OMP_NUM_THREADS="1"), text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("Checkpoint: ") == 1
    logs = [
        [json.loads(line) for line in (tmp_path / n / "log.jsonl").read_text().splitlines()] for n in ("one", "two")
    ]
    for a, b in zip(*logs, strict=True):  # AdamW would hide a wrong scale
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-4)
        assert b["grad_norm"] == pytest.approx(a["grad_norm"], rel=1e-3)
    one, two = (load_file(tmp_path / out / "model" / "model.safetensors") for out in ("one", "two"))
    before = load_file(base / "model.safetensors")
    # A step of 16 rows, in whatever order: each process has half of them.
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, atol=2e-5, rtol=1e-3, msg=name)
    assert any(not torch.allclose(weight, before[name], atol=1e-4) for name, weight in one.items())
