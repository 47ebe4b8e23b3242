"""Fine-tune a small Qwen completely (tokens, steps, resume, merge, export, decisions), in one and in two processes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.finetune import FinetuneJob, FinetuneRun, finetune
from rtcontrol.models.train.recipe import FinetuneRecipe
from tests.helpers.disks import files_of
from tests.models.small import build, build_checkpoint, plain_base, reconfigure, shown, tool
from tests.models.train.finetune_rows import random_rows, write

pytest.importorskip("peft")
TOOLS = [tool("go", 1, at=["left", "right"], fast={"type": "boolean"}), tool("stop")]
# Learning rates at which a tiny random model learns within the time of a test.
FAST: dict[str, Any] = {
    "rank": 8, "alpha": 16, "lora_rate": 1e-2, "embedding_rate": 5e-2, "head_rate": 5e-2, "groups": 4,
    "device_groups": 2, "dtype": "fp32", "save_every_s": 0.0,
}  # fmt: skip


def simple_rows(at: str = "right") -> list[dict[str, Any]]:
    """Return rows for which one call is always right, as random weights cannot learn more in twenty steps."""
    call = {"name": "go", "arguments": {"at": at}}
    told = ["go left", "go right", "go left fast", "stop"]
    return [{"instruction": t, "observation": "x", "tools": TOOLS, "history": [], "call": call} for t in told]


class PowerCutError(Exception):
    """Simulates a power cut, which ends a run at once."""


def cut_at(step: int) -> Any:
    def progress(line: dict[str, Any]) -> None:
        if line.get("step") == step:
            raise PowerCutError

    return progress


def logged(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "training" / "log.jsonl").read_text().splitlines()]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


# The labelled call differs from what the bases decide.
@pytest.mark.parametrize(("kind", "at"), [("qwen2", "left"), ("qwen3", "right")])
def test_qwen_is_trained_resumed_merged_exported_and_decides(tmp_path: Path, kind: str, at: str) -> None:
    base = plain_base(tmp_path / "base", ("<|im_start|>", "<|im_end|>"), kind, seed=1, scale=0.1)
    rows = write(tmp_path / "rows.jsonl", simple_rows(at) * 10)
    recipe = FinetuneRecipe(**FAST, steps=30, dropout=0.05)
    whole = finetune(FinetuneJob(str(base), (rows,), tmp_path / "whole", recipe))
    lines = logged(tmp_path / "whole")
    assert whole.steps == 30 and [line["step"] for line in lines] == [*range(1, 31)]
    assert lines[-1]["loss"] < 0.5 * lines[0]["loss"]

    cut = FinetuneJob(str(base), (rows,), tmp_path / "cut", recipe)
    with pytest.raises(PowerCutError):
        finetune(cut, cut_at(14))  # the unsaved step is repeated
    assert not (tmp_path / "cut" / "model").exists()
    second = finetune(cut)
    assert [line["step"] for line in logged(tmp_path / "cut")] == [*range(1, 15), *range(14, 31)]
    expected = weights(whole.model)
    assert all(torch.equal(found, expected[name]) for name, found in weights(second.model).items())

    made = Checkpoint.open(str(whole.model))
    assert made.tokenizer.special_id("<content>") == made.tokenizer.size - 17
    tied = made.config["tie_word_embeddings"]
    assert tied == (kind != "qwen3") and ("lm_head.weight" in expected) == (not tied)
    before = weights(tmp_path / "whole" / "base")
    changed = {n for n, w in expected.items() if not torch.equal(w, before[n].to(w.dtype))}
    assert changed == {n for n in expected if ".mlp." in n or "embed" in n or "lm_head" in n}
    for engine in ("torch", "transformers"):
        decided = [
            shown(build(folder, TOOLS, engine=engine, dtype="fp32").decide("x", "go left"))
            for folder in (tmp_path / "whole" / "base", whole.model)
        ]
        assert decided[0] != ("go", {"at": at}) and decided[1] == ("go", {"at": at})
    learnt = TrainingMetadata.load(whole.model)
    assert learnt is not None and learnt.tools is not None and len(learnt.tools) == 2 and not learnt.allow_null
    card = (whole.model / "README.md").read_text()
    assert all(sha in card for sha in whole.rows.files.values()) and "| rank | 8 |" in card


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model that already has the ST tokens."""
    return build_checkpoint(tmp_path_factory.mktemp("model") / "m", seed=2, scale=0.1)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("rows") / "rows.jsonl", random_rows(0, 40))


def job(base: Path, rows: Path, out: Path, **settings: Any) -> FinetuneJob:
    return FinetuneJob(str(base), (rows,), out, FinetuneRecipe(**{**FAST, "steps": 4, **settings}))


@pytest.fixture(scope="module")
def trained(small: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    out = tmp_path_factory.mktemp("trained") / "out"
    finetune(job(small, rows, out))
    return out


@pytest.fixture(scope="module")
def stopped(small: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that stopped in its third of four steps, after saving two."""
    out = tmp_path_factory.mktemp("stopped") / "out"
    with pytest.raises(PowerCutError):
        finetune(job(small, rows, out), cut_at(3))
    return out


def test_interrupted_run_resumes_to_the_same_weights(small: Path, rows: Path, tmp_path: Path, trained: Path) -> None:
    made = job(small, rows, tmp_path / "out", save_every_s=1e6)

    def stop(line: dict[str, Any]) -> None:
        if line["step"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finetune(made, stop)
    told: list[dict[str, Any]] = []
    again = finetune(made, told.append)
    assert told[0] == {"resumed": 3, "steps": 4} and [line["step"] for line in told[1:]] == [4]
    kept = weights(trained / "model")
    assert all(torch.equal(w, kept[n]) for n, w in weights(again.model).items())


def test_batching_and_recomputed_activations_keep_every_step(small: Path, rows: Path, tmp_path: Path) -> None:
    ways: list[dict[str, Any]] = [{}, {"device_groups": 4}, {"gradient_checkpointing": True}]
    for number, way in enumerate(ways):
        finetune(job(small, rows, tmp_path / f"{number}", dropout=0.0, steps=2, **way))
    plain, *others = (logged(tmp_path / f"{number}") for number in range(len(ways)))
    for other in others:
        for a, b in zip(plain, other, strict=True):
            assert a["loss"] == pytest.approx(b["loss"], abs=2e-4)
            assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-3)


def test_each_row_occurs_once_per_epoch_in_a_new_order(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(FinetuneRun, "after_step", lambda self, progress: drawn.append(self.groups(None)[0]))
    some = write(tmp_path / "rows.jsonl", random_rows(0, 10))
    finetune(job(small, some, tmp_path / "out", steps=None, epochs=2.0))
    assert [len(step) for step in drawn] == [4, 4, 2, 4, 4, 2]
    first, second = (sorted((row for step in part for row in step), key=repr) for part in (drawn[:3], drawn[3:]))
    assert first == second and drawn[0] != drawn[3]


def test_bf16_trains_in_fp32_and_stops_when_done(small: Path, rows: Path, tmp_path: Path) -> None:
    once = job(small, rows, tmp_path / "out", dtype="bf16", embedding_rate=1e-6)
    made, kept = finetune(once), weights(tmp_path / "out" / "model")
    saved = torch.load(tmp_path / "out" / "training" / "state.pt", weights_only=True)["model"]
    assert {w.dtype for w in saved.values()} == {torch.float32}
    (name,) = (n for n in saved if "embed" in n)
    # Steps of 1e-6 on weights of 0.1, which bf16 would round away.
    moved = (saved[name] - load_file(small / "model.safetensors")["model.embed_tokens.weight"]).abs()
    assert 0 < float(moved.max()) < 1e-3
    assert {w.dtype for w in kept.values()} == {torch.bfloat16}
    again = finetune(once)
    assert again.steps == made.steps == 4 and again.to_dict() == made.to_dict()
    assert all(torch.equal(w, kept[n]) for n, w in weights(again.model).items())


def test_rank_zero_trains_all_weights(small: Path, rows: Path, tmp_path: Path) -> None:
    finetune(job(small, rows, tmp_path / "out", rank=0, steps=2))
    before = weights(small)
    assert all(not torch.equal(weight, before[name]) for name, weight in weights(tmp_path / "out" / "model").items())


def test_resume_with_changed_settings_rows_or_base_is_refused(
    small: Path, rows: Path, stopped: Path, tmp_path: Path
) -> None:
    out, other = tmp_path / "out", write(tmp_path / "other.jsonl", random_rows(1, 40))
    shutil.copytree(stopped, out)
    kept = (out / "training" / "state.pt").read_bytes()
    another = build_checkpoint(tmp_path / "another", seed=3, scale=0.1)
    for changed, told in (
        (job(small, rows, out, rank=4, seed=9), r"rank was 8, is 4; seed was 0, is 9"),
        (job(small, rows, out, steps=5), r"steps was 4, is 5"),
        (job(small, other, out), r"rows was rows.jsonl \(\w{12}\), is other.jsonl \(\w{12}\)"),
        (job(another, rows, out), r"base was m \(\w{12}\), is another \(\w{12}\)"),
    ):
        with pytest.raises(UserError, match=told):
            finetune(changed)
    assert (out / "training" / "state.pt").read_bytes() == kept
    finetune(job(small, rows, out, save_every_s=9.0))  # settings without effect on the result may change


def test_full_disk_keeps_complete_files(small: Path, rows: Path, stopped: Path, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "out")
    with files_of(20_000), pytest.raises(UserError, match=r"cannot be saved in .*state saved before is intact"):
        finetune(job(small, rows, tmp_path / "out"))
    assert {p.name for p in (tmp_path / "out" / "training").iterdir()} == {"state.pt", "log.jsonl"}
    made, expected = finetune(job(small, rows, tmp_path / "out")), weights(trained / "model")  # the disk has room again
    assert all(torch.equal(w, expected[n]) for n, w in weights(made.model).items())


def test_untrainable_base_is_refused(small: Path, rows: Path, tmp_path: Path) -> None:
    def changed(**config: Any) -> Path:
        return reconfigure(build_checkpoint(tmp_path / "changed", seed=2), **config)

    with pytest.raises(UserError, match="is quantised"):
        finetune(job(changed(quantization_config={"quant_method": "awq"}), rows, tmp_path / "out"))
    with pytest.raises(UserError, match=r"tokenizer has \d+ tokens, but its model has only 100 embeddings"):
        finetune(job(changed(vocab_size=100), rows, tmp_path / "out"))
    with pytest.raises(UserError, match="is a qwen2 model, or has a sliding window"):
        finetune(job(changed(use_sliding_window=True, sliding_window=16), rows, tmp_path / "out"))
    assert not (tmp_path / "out" / "training" / "state.pt").exists()
    with pytest.raises(UserError, match="no linear layer 'w1' for LoRA"):
        finetune(job(small, rows, tmp_path / "out", targets=("w1",)))
