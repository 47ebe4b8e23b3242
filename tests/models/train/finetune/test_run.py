"""A small Qwen with the true tokenizer through all of it: tokens, steps, resume, merge, export, engines, decisions."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.finetune import checkpoints
from rtcontrol.models.train.finetune.config import FinetuneRecipe
from rtcontrol.models.train.finetune.run import Job, finetune
from rtcontrol.models.train.finetune.stopping import TrainingStopped
from tests.helpers.disks import files_of
from tests.models.small import build, build_checkpoint, shown, tool
from tests.models.train.finetune.rows import qwen_base, random_rows, write

pytest.importorskip("peft")
pytest.importorskip("accelerate")
TOOLS = [tool("go", 1, at=["left", "right"], fast={"type": "boolean"}), tool("stop")]
# Rates at which a tiny random model learns something in a test's time.
FAST: dict[str, Any] = {
    "rank": 8, "alpha": 16, "lora_rate": 1e-2, "embedding_rate": 5e-2, "head_rate": 5e-2, "groups": 4,
    "device_groups": 2, "dtype": "fp32", "log_every": 1, "save_every": 10,
}  # fmt: skip


def simple_rows(at: str = "right") -> list[dict[str, Any]]:
    """Whatever is told, one call is right: no more can be learnt in twenty steps from random weights."""
    call = {"name": "go", "arguments": {"at": at}}
    told = ["go left", "go right", "go left fast", "stop"]
    return [{"instruction": t, "observation": "x", "tools": TOOLS, "history": [], "call": call} for t in told]


class PowerCutError(Exception):
    """Ends a run without a word."""


def cut_at(step: int) -> Any:
    def progress(line: dict[str, Any]) -> None:
        if line["step"] == step:
            raise PowerCutError

    return progress


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize(("kind", "at"), [("qwen2", "left"), ("qwen3", "right")])  # not what the bases say
def test_a_qwen_is_trained_resumed_merged_exported_and_decides(tmp_path: Path, data: Path, kind: str, at: str) -> None:
    base = qwen_base(tmp_path / "base", data, kind)
    rows = write(tmp_path / "rows.jsonl", simple_rows(at) * 10)
    recipe = FinetuneRecipe(**FAST, steps=20, dropout=0.05)
    held_out = (write(tmp_path / "held.jsonl", simple_rows(at)),)
    whole = finetune(Job(str(base), (rows,), tmp_path / "whole", recipe, held_out))
    assert whole.steps == 20 and len(whole.history) == 20
    assert whole.history[-1]["loss"] < 0.5 * whole.history[0]["loss"]

    cut = Job(str(base), (rows,), tmp_path / "cut", recipe, held_out)
    with pytest.raises(PowerCutError):
        finetune(cut, cut_at(14))  # what was done after the checkpoint of step 10 is done again
    assert checkpoints.steps(tmp_path / "cut" / "checkpoints") == [10]
    assert not (tmp_path / "cut" / "model").exists()
    second = finetune(cut)
    assert [line["loss"] for line in second.history] == [line["loss"] for line in whole.history]
    expected = weights(whole.model)
    assert all(torch.equal(found, expected[name]) for name, found in weights(second.model).items())
    lines = (tmp_path / "cut" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [*range(1, 21)]

    made = Checkpoint.open(str(whole.model))
    assert made.tokenizer.special_id("<content>") == 151_665
    tied = made.config["tie_word_embeddings"]
    assert tied == (kind == "qwen2") and ("lm_head.weight" in expected) == (not tied)
    before = weights(tmp_path / "whole" / "base")
    changed = {n for n, w in expected.items() if not torch.equal(w, before[n].to(w.dtype))}
    assert changed == {n for n in expected if ".mlp." in n or "embed" in n or "lm_head" in n}
    for engine in ("torch", "transformers"):
        decided = [
            shown(build(folder, TOOLS, engine=engine, dtype="fp32").decide("x", "go left"))
            for folder in (tmp_path / "whole" / "base", whole.model)
        ]
        assert decided[0] != ("go", {"at": at}) and decided[1] == ("go", {"at": at})
    assert whole.held_out is not None and whole.held_out["rows_right"] == 1.0
    learnt = TrainingMetadata.of(whole.model)
    assert learnt is not None and learnt.tools is not None and len(learnt.tools) == 2 and not learnt.allow_null
    card = (whole.model / "README.md").read_text()
    assert all(sha in card for sha in whole.seen.files.values()) and "| rank | 8 |" in card


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base with ST tokens already."""
    return build_checkpoint(tmp_path_factory.mktemp("model") / "m", seed=2, scale=0.1)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write(tmp_path / "rows.jsonl", random_rows(0, 40))


def job(base: Path, rows: Path, out: Path, **settings: Any) -> Job:
    return Job(str(base), (rows,), out, FinetuneRecipe(**{**FAST, "steps": 4, "save_every": 2, **settings}))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_run_that_is_done_is_not_trained_on(small: Path, rows: Path, tmp_path: Path, dtype: str) -> None:
    once = Job(str(small), (rows,), tmp_path / "out", job(small, rows, tmp_path, dtype=dtype).recipe, (tmp_path / "h",))
    write(tmp_path / "h", random_rows(1, 8))
    first, kept = finetune(once), weights(tmp_path / "out" / "model")
    again = finetune(once)
    assert again.steps == first.steps == 4 and again.to_dict() == first.to_dict()
    assert all(torch.equal(w, kept[n]) for n, w in weights(again.model).items())


def test_ctrl_c_keeps_the_step_under_way_and_the_run_ends_as_one_that_was_not_stopped(
    small: Path, rows: Path, tmp_path: Path
) -> None:
    more = {"steps": 8, "save_every": 100, "log_every": 1}
    made = job(small, rows, tmp_path / "out", **more)
    told: list[dict[str, Any]] = []

    def stop(line: dict[str, Any]) -> None:
        told.append(line)
        if line.get("step") == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(TrainingStopped) as stopped:
        finetune(made, stop)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler and stopped.value.steps == 4
    again = finetune(made, told.append)
    assert {"resumed": 4, "steps": 8} in told
    whole = finetune(job(small, rows, tmp_path / "whole", **more))
    kept = weights(whole.model)
    assert all(torch.equal(w, kept[n]) for n, w in weights(again.model).items())


def test_both_layouts_train_alike(small: Path, rows: Path, tmp_path: Path) -> None:
    one, other = (
        finetune(job(small, rows, tmp_path / layout, layout=layout, dropout=0.0)) for layout in ("packed", "separate")
    )
    for a, b in zip(one.history, other.history, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-4)


def test_activations_that_are_computed_again_change_nothing(small: Path, rows: Path, tmp_path: Path) -> None:
    one, other = (
        finetune(job(small, rows, tmp_path / f"{on}", gradient_checkpointing=on, dropout=0.0, steps=2))
        for on in (False, True)
    )
    for a, b in zip(one.history, other.history, strict=True):
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-5)


def test_a_steps_loss_is_one_mean_however_it_is_cut_into_batches(small: Path, rows: Path, tmp_path: Path) -> None:
    losses = [
        finetune(job(small, rows, tmp_path / f"{n}", device_groups=n, dropout=0.0, steps=3)).history for n in (1, 4)
    ]
    for a, b in zip(*losses, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-4)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-3)


def test_bf16_trains_its_parameters_in_fp32(small: Path, rows: Path, tmp_path: Path) -> None:
    made = finetune(job(small, rows, tmp_path / "out", dtype="bf16", embedding_rate=1e-6))
    saved = load_file(tmp_path / "out" / "checkpoints" / "checkpoint-4" / checkpoints.WEIGHTS)
    assert {w.dtype for w in saved.values()} == {torch.float32}
    (name,) = (n for n in saved if "embed" in n)
    # Steps of 1e-6 on weights of 0.1, of which bf16 would have kept none.
    moved = (saved[name] - load_file(small / "model.safetensors")["model.embed_tokens.weight"]).abs()
    assert 0 < float(moved.max()) < 1e-3
    assert {w.dtype for w in weights(made.model).values()} == {torch.bfloat16}


def test_the_adapter_alone_is_the_merged_model(small: Path, rows: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    made = finetune(job(small, rows, tmp_path / "out"))
    ids = torch.arange(20)[None]
    plain = AutoModelForCausalLM.from_pretrained(small, dtype=torch.float32)
    before = plain(ids).logits
    adapter = PeftModel.from_pretrained(plain, tmp_path / "out" / "adapter").eval()
    whole = AutoModelForCausalLM.from_pretrained(made.model, dtype=torch.float32).eval()
    torch.testing.assert_close(adapter(ids).logits, whole(ids).logits, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(before, whole(ids).logits, atol=1e-2)


@pytest.mark.parametrize(
    ("change", "told"),
    [({"rank": 4, "seed": 9}, r"rank was 8, is 4; seed was 0, is 9"), ({"steps": 5}, r"steps was 4, is 5")],
)
def test_another_configuration_is_refused_by_name(
    small: Path, rows: Path, tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    finetune(job(small, rows, tmp_path / "out"))
    kept = weights(tmp_path / "out" / "model")
    with pytest.raises(UserError, match=told):
        finetune(job(small, rows, tmp_path / "out", **change))
    assert all(torch.equal(w, kept[n]) for n, w in weights(tmp_path / "out" / "model").items())
    finetune(job(small, rows, tmp_path / "out", log_every=2, keep=5))  # what is said of it may change


def test_other_rows_and_another_base_are_refused_by_name(small: Path, rows: Path, tmp_path: Path) -> None:
    with pytest.raises(PowerCutError):
        finetune(job(small, rows, tmp_path / "out"), cut_at(3))
    with pytest.raises(UserError, match=r"rows was .*rows.jsonl \(\w{12}\), is .*other.jsonl \(\w{12}\)"):
        finetune(job(small, write(tmp_path / "other.jsonl", random_rows(1, 40)), tmp_path / "out"))
    another = build_checkpoint(tmp_path / "another", seed=3, scale=0.1)
    with pytest.raises(UserError, match=r"base was .*/m \(\w{12}\), is .*/another \(\w{12}\)"):
        finetune(job(another, rows, tmp_path / "out"))
    # A checkpoint that came from elsewhere says itself whose it is.
    (tmp_path / "out" / "checkpoints").rename(tmp_path / "taken")
    with pytest.raises(PowerCutError):
        finetune(job(another, rows, tmp_path / "new"), cut_at(1))
    (tmp_path / "new" / "checkpoints").rmdir()
    (tmp_path / "taken").rename(tmp_path / "new" / "checkpoints")
    with pytest.raises(UserError, match=r"checkpoint-2 holds a run with another configuration: base was"):
        finetune(job(another, rows, tmp_path / "new"))


@pytest.mark.parametrize("name", ["trained.safetensors", "optimizer.pt", "rng_state.pth"])
def test_a_damaged_checkpoint_is_named(small: Path, rows: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(PowerCutError):
        finetune(job(small, rows, tmp_path / "out"), cut_at(3))
    path = tmp_path / "out" / "checkpoints" / "checkpoint-2" / name
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=r"checkpoint-2 is damaged"):
        finetune(job(small, rows, tmp_path / "out"))


def test_a_full_disk_leaves_what_was_whole(small: Path, rows: Path, tmp_path: Path) -> None:
    with pytest.raises(PowerCutError):
        finetune(job(small, rows, tmp_path / "out"), cut_at(3))
    with files_of(20_000), pytest.raises(UserError, match=r"cannot be saved in .*checkpoint-2 is whole"):
        finetune(job(small, rows, tmp_path / "out"))
    folder = tmp_path / "out" / "checkpoints"
    assert checkpoints.steps(folder) == [2] and not (folder / checkpoints.STAGING).exists()
    assert not list((tmp_path / "out").rglob("*.part"))
    made = finetune(job(small, rows, tmp_path / "out"))  # there is room again
    expected = finetune(job(small, rows, tmp_path / "other"))
    assert all(torch.equal(w, weights(expected.model)[n]) for n, w in weights(made.model).items())


def test_a_full_disk_at_the_export_keeps_the_training(small: Path, rows: Path, tmp_path: Path) -> None:
    finetune(job(small, rows, tmp_path / "out"))
    kept = weights(tmp_path / "out" / "model")
    with files_of(20_000), pytest.raises(UserError, match=r"cannot be saved .*checkpoint-4 is whole"):
        finetune(job(small, rows, tmp_path / "out"))
    assert (tmp_path / "out" / "adapter" / "adapter_model.safetensors").is_file()
    assert not list((tmp_path / "out").rglob("*.part"))
    assert all(torch.equal(w, kept[n]) for n, w in weights(tmp_path / "out" / "model").items())


def test_a_full_disk_while_tokens_are_added_leaves_no_base(tmp_path: Path, data: Path) -> None:
    base = qwen_base(tmp_path / "base", data, layers=1)
    with files_of(2**20), pytest.raises(UserError, match="nothing was saved yet"):
        finetune(job(base, write(tmp_path / "rows.jsonl", simple_rows()), tmp_path / "out"))
    assert not [p for p in (tmp_path / "out").iterdir() if p.name.startswith("base")]


def test_a_base_that_cannot_be_trained_is_refused(small: Path, rows: Path, tmp_path: Path) -> None:
    def changed(**config: Any) -> Path:
        folder = build_checkpoint(tmp_path / "changed", seed=2)
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | config))
        return folder

    with pytest.raises(UserError, match="is quantised"):
        finetune(job(changed(quantization_config={"quant_method": "awq"}), rows, tmp_path / "out"))
    with pytest.raises(UserError, match=r"tokenizer has \d+ tokens, its model only 100 rows"):
        finetune(job(changed(vocab_size=100), rows, tmp_path / "out"))
    with pytest.raises(UserError, match="other than full attention"):
        finetune(job(changed(layer_types=["sliding_attention"] * 2), rows, tmp_path / "out"))
    assert not (tmp_path / "out" / "run.json").exists()
    with pytest.raises(UserError, match="no linear layer 'w1' to adapt"):
        finetune(job(small, rows, tmp_path / "out", targets=("w1",)))
    with pytest.raises(UserError, match="is trained on and held out"):
        finetune(Job(str(small), (rows,), tmp_path / "out", FinetuneRecipe(**FAST), (rows,)))
