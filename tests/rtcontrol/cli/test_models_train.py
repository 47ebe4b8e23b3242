"""`rtcontrol models train` and `sweep`: what they print and write, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import call, refused

from tests.models.small import build_checkpoint
from tests.models.train.finetune.rows import random_rows, write

pytest.importorskip("peft")
pytest.importorskip("accelerate")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("model") / "m", seed=2, scale=0.1)


def test_a_model_is_trained_from_rows_and_goes_on(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, held = write(tmp_path / "r.jsonl", random_rows(0, 40)), write(tmp_path / "h.jsonl", random_rows(1, 8))
    command = (
        "models", "train", "--base", str(base), "--rows", str(rows), "--held-out", str(held), "--rank", "4",
        "--device", "cpu", "--dtype", "fp32", "--steps", "2", "--out", str(tmp_path / "out"),
    )  # fmt: skip
    assert call(*command, "--json", str(tmp_path / "found.json")) == 0
    said = capsys.readouterr().out
    assert (
        "step 1/2  loss" in said
        and "step 2/2  loss" in said
        and "of 8 rows right" in said
        and f"Checkpoint: {tmp_path}/out/model" in said
    )
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["run"]["recipe"]["alpha"] == 8 and found["steps"] == 2 and found["held_out"]["rows"] == 8
    assert call(*command) == 0
    assert "step" not in capsys.readouterr().out.replace("2 steps", "")  # nothing was left to do
    assert call("models", "info", str(tmp_path / "out" / "model")) == 0
    said = refused(capsys, *command[:-2], "--out", str(tmp_path / "out"), "--seed", "3")
    assert "seed was 0, is 3" in said


def test_what_is_wrong_is_told_in_a_line(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = write(tmp_path / "r.jsonl", [*random_rows(0, 2), {"instruction": "go"}])
    command = ("models", "train", "--base", str(base), "--rows", str(rows), "--out", str(tmp_path / "out"))
    assert f"{rows}:3: the row has no 'observation'" in refused(capsys, *command, "--device", "cpu")
    assert "no preset 'papre'" in refused(capsys, *command, "--preset", "papre")
    assert "sees no GPU" in refused(capsys, *command, "--device", "cuda:7")
    assert "no model" in refused(capsys, *command[:2], "--base", "nowhere", *command[4:]).lower()
    assert "cannot be read" in refused(capsys, "models", "sweep", str(tmp_path / "none.toml"))
    assert not (tmp_path / "out" / "run.json").exists()


def test_a_sweep_is_printed_as_a_table(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = write(tmp_path / "r.jsonl", random_rows(0, 8))
    (tmp_path / "s.toml").write_text(
        f'base = "{base}"\nrows = ["{rows}"]\nout = "{tmp_path}/out"\n[axes]\nrank = [2]\n'
        "[recipe]\nrank = 4\nalpha = 8\n"
        'steps = 1\ngroups = 4\ndevice_groups = 4\ndtype = "fp32"\ndevice = "cpu"\n'
    )
    assert call("models", "sweep", str(tmp_path / "s.toml")) == 0
    said = capsys.readouterr().out
    assert "[2/2] rank-2" in said and "rank 2" in said
