"""A small Qwen through all of it: tokens, steps, resume, merge, export, decisions; in processes, and in sweeps."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.utils.data import BatchSampler

from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.checkpoint.special_tokens import ST_TOKENS
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.adopt import adopt
from rtcontrol.models.train.finetune import checkpoints
from rtcontrol.models.train.finetune.config import FinetuneRecipe, recipe
from rtcontrol.models.train.finetune.dataset import GroupCollator, GroupEncoder, SameToolsSampler, load
from rtcontrol.models.train.finetune.run import Job, finetune, opened
from rtcontrol.models.train.finetune.stopping import TrainingStopped
from rtcontrol.models.train.finetune.sweep import read_sweep, run_sweep
from tests.helpers.disks import files_of
from tests.helpers.processes import free_port, python
from tests.models.small import build, build_checkpoint, law, plain_base, shown, tool
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


@pytest.mark.parametrize(
    ("kind", "at", "own_words"),  # not what the bases say
    [
        ("qwen2", "left", False),
        ("qwen3", "right", False),
        ("gemma3", "left", False),
        pytest.param("qwen2", "left", True, marks=pytest.mark.slow),
        pytest.param("qwen3", "right", True, marks=pytest.mark.slow),
    ],
)
def test_a_qwen_is_trained_resumed_merged_exported_and_decides(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str, at: str, own_words: bool
) -> None:
    if own_words:
        base = qwen_base(tmp_path / "base", request.getfixturevalue("data"), kind)
    else:
        base = plain_base(tmp_path / "base", ("<|im_start|>", "<|im_end|>"), kind, seed=1, scale=0.1)
    rows = write(tmp_path / "rows.jsonl", simple_rows(at) * 10)
    recipe = FinetuneRecipe(**FAST, steps=20, dropout=0.05, vocabulary="rows" if kind == "gemma3" else "all")
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
    assert made.tokenizer.special_id("<content>") == (151_665 if own_words else made.tokenizer.size - 17)
    tied = made.config["tie_word_embeddings"]
    assert tied == (kind != "qwen3") and ("lm_head.weight" in expected) == (not tied)
    before = weights(tmp_path / "whole" / "base")
    changed = {n for n, w in expected.items() if not torch.equal(w, before[n].to(w.dtype))}
    assert changed == {n for n in expected if ".mlp." in n or "embed" in n or "lm_head" in n}
    moved = (expected["model.embed_tokens.weight"] != before["model.embed_tokens.weight"]).any(-1).nonzero().flatten()
    specials = {made.tokenizer.special_id(token) for token in ST_TOKENS}
    assert {*moved.tolist()} <= specials or kind != "gemma3"
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


def test_the_baseline_learns_to_write_each_rows_call_as_json(tmp_path: Path) -> None:
    base = plain_base(tmp_path / "base", ("<|im_start|>", "<|im_end|>"), seed=1, scale=0.1)
    rows = write(tmp_path / "rows.jsonl", simple_rows("left") * 10)
    recipe = FinetuneRecipe(**FAST, steps=60, dropout=0.0, way="json")
    whole = finetune(
        Job(str(base), (rows,), tmp_path / "out", recipe, (write(tmp_path / "held.jsonl", simple_rows("left")),))
    )
    assert whole.held_out is not None and whole.held_out["heads"] == {"json": 1.0}


def test_a_row_without_a_call_is_none_of_the_baselines(tmp_path: Path) -> None:
    base = build_checkpoint(tmp_path / "base", seed=2)
    rows = write(tmp_path / "rows.jsonl", [*simple_rows(), simple_rows()[0] | {"call": None}])
    with pytest.raises(UserError, match=r"rows.jsonl:5: a row without a call has no JSON"):
        finetune(Job(str(base), (rows,), tmp_path / "out", FinetuneRecipe(**FAST, way="json")))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base with ST tokens already."""
    return build_checkpoint(tmp_path_factory.mktemp("model") / "m", seed=2, scale=0.1)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("rows") / "rows.jsonl", random_rows(0, 40))


def job(base: Path, rows: Path, out: Path, **settings: Any) -> Job:
    return Job(str(base), (rows,), out, FinetuneRecipe(**{**FAST, "steps": 4, "save_every": 2, **settings}))


@pytest.fixture(scope="module")
def trained(small: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that is done."""
    out = tmp_path_factory.mktemp("trained") / "out"
    finetune(job(small, rows, out))
    return out


@pytest.fixture(scope="module")
def stopped(small: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that ended in its third step of four, behind a checkpoint."""
    out = tmp_path_factory.mktemp("stopped") / "out"
    with pytest.raises(PowerCutError):
        finetune(job(small, rows, out), cut_at(3))
    return out


def test_a_run_that_is_done_is_not_trained_on(small: Path, rows: Path, tmp_path: Path) -> None:
    once = Job(
        str(small), (rows,), tmp_path / "out", job(small, rows, tmp_path, dtype="bf16").recipe, (tmp_path / "h",)
    )
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


def test_layout_batches_and_activations_that_are_computed_again_change_no_step(
    small: Path, rows: Path, tmp_path: Path
) -> None:
    ways: list[dict[str, Any]] = [{}, {"layout": "separate"}, {"device_groups": 4}, {"gradient_checkpointing": True}]
    plain, *others = (
        finetune(job(small, rows, tmp_path / f"{n}", dropout=0.0, steps=2, **way)).history for n, way in enumerate(ways)
    )
    for other in others:
        for a, b in zip(plain, other, strict=True):
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


def test_the_adapter_alone_is_the_merged_model(small: Path, trained: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    ids = torch.arange(20)[None]
    plain = AutoModelForCausalLM.from_pretrained(small, dtype=torch.float32)
    before = plain(ids).logits
    adapter = PeftModel.from_pretrained(plain, trained / "adapter").eval()
    whole = AutoModelForCausalLM.from_pretrained(trained / "model", dtype=torch.float32).eval()
    torch.testing.assert_close(adapter(ids).logits, whole(ids).logits, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(before, whole(ids).logits, atol=1e-2)


def test_another_configuration_is_refused_by_name(small: Path, rows: Path, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "out")
    kept = weights(tmp_path / "out" / "model")
    changes: list[tuple[dict[str, Any], str]] = [
        ({"rank": 4, "seed": 9}, r"rank was 8, is 4; seed was 0, is 9"),
        ({"steps": 5}, r"steps was 4, is 5"),
    ]
    for change, told in changes:
        with pytest.raises(UserError, match=told):
            finetune(job(small, rows, tmp_path / "out", **change))
    assert all(torch.equal(w, kept[n]) for n, w in weights(tmp_path / "out" / "model").items())
    finetune(job(small, rows, tmp_path / "out", log_every=2, keep=5))  # what is said of it may change


def test_other_rows_and_another_base_are_refused_by_name(
    small: Path, rows: Path, stopped: Path, tmp_path: Path
) -> None:
    shutil.copytree(stopped, tmp_path / "out")
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


def test_a_damaged_checkpoint_is_named(small: Path, rows: Path, stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "out")
    for name in ("trained.safetensors", "optimizer.pt", "rng_state.pth"):
        path = tmp_path / "out" / "checkpoints" / "checkpoint-2" / name
        whole = path.read_bytes()
        path.write_bytes(whole[:100])
        with pytest.raises(UserError, match=r"checkpoint-2 is damaged"):
            finetune(job(small, rows, tmp_path / "out"))
        path.write_bytes(whole)


def test_a_full_disk_leaves_what_was_whole(
    small: Path, rows: Path, stopped: Path, trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(stopped, tmp_path / "out")
    with files_of(20_000), pytest.raises(UserError, match=r"cannot be saved in .*checkpoint-2 is whole"):
        finetune(job(small, rows, tmp_path / "out"))
    folder = tmp_path / "out" / "checkpoints"
    assert checkpoints.steps(folder) == [2] and not (folder / checkpoints.STAGING).exists()
    assert not list((tmp_path / "out").rglob("*.part"))
    made, expected = finetune(job(small, rows, tmp_path / "out")), weights(trained / "model")  # there is room again
    assert all(torch.equal(w, expected[n]) for n, w in weights(made.model).items())


def test_a_full_disk_at_the_export_keeps_the_training(small: Path, rows: Path, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "out")
    kept = weights(tmp_path / "out" / "model")
    with files_of(20_000), pytest.raises(UserError, match=r"cannot be saved .*checkpoint-4 is whole"):
        finetune(job(small, rows, tmp_path / "out"))
    assert (tmp_path / "out" / "adapter" / "adapter_model.safetensors").is_file()
    assert not list((tmp_path / "out").rglob("*.part"))
    assert all(torch.equal(w, kept[n]) for n, w in weights(tmp_path / "out" / "model").items())


def test_a_full_disk_while_tokens_are_added_leaves_no_base(tmp_path: Path) -> None:
    base = plain_base(tmp_path / "base", ("<|im_start|>", "<|im_end|>"))
    with files_of(20_000), pytest.raises(UserError, match="nothing was saved yet"):
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
    with pytest.raises(UserError, match="layers of chunked attention"):
        finetune(job(changed(layer_types=["chunked_attention"] * 2), rows, tmp_path / "out"))
    assert not (tmp_path / "out" / "run.json").exists()
    with pytest.raises(UserError, match="no linear layer 'w1' to adapt"):
        finetune(job(small, rows, tmp_path / "out", targets=("w1",)))
    with pytest.raises(UserError, match="is trained on and held out"):
        finetune(Job(str(small), (rows,), tmp_path / "out", FinetuneRecipe(**FAST), (rows,)))


# Batches of rows that share tools: each row once an epoch, each time in another order, the same after a resume.


pytest.importorskip("peft")
SETS = st.lists(st.integers(0, 6), min_size=1, max_size=80)


def order(sets: list[int], size: int, seed: int, epoch: int) -> list[int]:
    sampler = SameToolsSampler(sets, size, seed)
    sampler.epoch = epoch
    return list(sampler)


@law(200)
@given(sets=SETS, size=st.integers(1, 9), seed=st.integers(0, 5), epoch=st.integers(0, 5))
def test_each_row_is_drawn_once_an_epoch_and_whole_batches_are_of_one_set(
    sets: list[int], size: int, seed: int, epoch: int
) -> None:
    drawn = order(sets, size, seed, epoch)
    assert sorted(drawn) == [*range(len(sets))]
    assert drawn == order(sets, size, seed, epoch)
    batches = [[sets[row] for row in drawn[i : i + size]] for i in range(0, len(drawn), size)]
    pure = Counter(batch[0] for batch in batches if len(batch) == size and len({*batch}) == 1)
    for each, count in Counter(sets).items():
        assert pure[each] >= count // size
    for batch in batches:  # rows of a set are neighbours
        assert len({*batch}) == 1 + sum(a != b for a, b in pairwise(batch))


def test_another_epoch_and_another_seed_have_another_order() -> None:
    sets = [row % 3 for row in range(48)]
    orders = [order(sets, 8, seed, epoch) for seed in (0, 1) for epoch in (0, 1, 2)]
    assert len({*map(tuple, orders)}) == 6
    batches = [{frozenset(one[i : i + 8]) for i in range(0, 48, 8)} for one in orders]
    assert len({*map(frozenset, batches)}) == 6, "of other rows, too"


@law(50)
@given(rows=st.integers(1, 12), size=st.integers(1, 4), processes=st.integers(2, 3), epoch=st.integers(0, 2))
def test_processes_share_an_epoch(rows: int, size: int, processes: int, epoch: int) -> None:
    sets = [row % 5 for row in range(rows * size * processes)]
    drawn = []
    for process in range(processes):
        sampler = SameToolsSampler(sets, size, 0)
        sampler.epoch = epoch
        shard = BatchSamplerShard(BatchSampler(sampler, size, False), processes, process)
        drawn += [row for batch in shard for row in batch]
    assert sorted(drawn) == [*range(len(sets))]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("base") / "m", seed=2, scale=0.1)


def batches_job(base: Path, folder: Path, name: str, **settings: Any) -> Job:
    """Two epochs of 24 rows, six steps each."""
    rows = write(folder / "rows.jsonl", random_rows(0, 24, sets=3))
    given: dict[str, Any] = {
        "rank": 4, "alpha": 8, "lora_rate": 1e-3, "groups": 4, "device_groups": 2, "dtype": "fp32", "log_every": 1,
        "save_every": 4, "steps": 12, "keep": 9, "batches": "same-tools", **settings,
    }  # fmt: skip
    return Job(str(base), (rows,), folder / name, FinetuneRecipe(**given))


def test_a_run_draws_another_order_each_epoch_and_goes_on_in_the_middle_of_one(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[int, ...]] = []
    plain = GroupCollator.batch

    def watched(self: GroupCollator, groups: Any) -> Any:
        drawn.extend(hash((group.suffix, group.heads)) for group in groups)
        return plain(self, groups)

    monkeypatch.setattr(GroupCollator, "batch", watched)
    whole = finetune(batches_job(base, tmp_path, "whole"))
    first, second = drawn[:24], drawn[24:48]
    assert sorted(first) == sorted(second) and first != second

    class PowerCutError(Exception):
        pass

    def cut(line: dict[str, Any]) -> None:
        if line["step"] == 10:  # the checkpoint of step 8 is in the second epoch
            raise PowerCutError

    with pytest.raises(PowerCutError):
        finetune(batches_job(base, tmp_path, "cut"), cut)
    assert checkpoints.steps(tmp_path / "cut" / "checkpoints") == [4, 8]
    made = finetune(batches_job(base, tmp_path, "cut"))
    expected = load_file(whole.model / "model.safetensors")
    assert all(torch.equal(w, expected[n]) for n, w in load_file(made.model / "model.safetensors").items())
    with pytest.raises(UserError, match=r"batches was same-tools, is shuffled"):
        finetune(batches_job(base, tmp_path, "cut", batches="shuffled"))


@pytest.mark.slow
def test_two_processes_go_on_in_the_middle_of_an_epoch(base: Path, tmp_path: Path) -> None:
    told = batches_job(base, tmp_path, "unused").recipe.model_dump(exclude_none=True) | {"device": "cpu"}
    (tmp_path / "r.json").write_text(FinetuneRecipe(**told).model_dump_json(exclude_none=True))

    def command(out: str) -> list[str]:
        shared = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "rtcontrol"]
        own = ["models", "train", "--base", str(base), "--rows", str(tmp_path / "rows.jsonl")]
        return [*shared, *own, "--out", str(tmp_path / out), "--config", str(tmp_path / "r.json")]

    done = python(*command("whole"), env={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    for later in ("checkpoints/checkpoint-12", "adapter", "model"):
        shutil.rmtree(tmp_path / "cut" / later)
    done = python(*command("cut"), env={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    assert "step 8/12" not in done.stdout and "step 9/12" in done.stdout
    whole, made = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(w, whole[n]) for n, w in made.items())


# Two processes that share each step train what one trains.


pytest.importorskip("peft")
pytest.importorskip("accelerate")


# Both are one Python that has imported everything and forks; the launcher itself is in the slow test above.
FORKED = """
import os, sys
import accelerate, peft, transformers
import rtcontrol.models.train.finetune.run
from rtcontrol.cli.app import main

rank = str(int(os.fork() == 0))
os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
try:
    main()
finally:
    if rank == "0" and os.wait()[1]:
        sys.exit("the second process failed")
"""


def test_two_processes_step_by_the_gradients_of_one(tmp_path: Path) -> None:
    base = build_checkpoint(tmp_path / "base", seed=2, scale=0.1)
    rows = write(tmp_path / "rows.jsonl", random_rows(0, 16))
    settings = "rank = 4\nalpha = 8\nlog_every = 1\ndropout = 0.0\ngroups = 16\ndevice_groups = 8\nsteps = 2\n"
    rates = "lora_rate = 1e-3\nembedding_rate = 1e-3\ndtype = 'fp32'\ndevice = 'cpu'\n"
    (tmp_path / "r.toml").write_text(settings + rates)
    finetune(Job(str(base), (rows,), tmp_path / "one", recipe(file=tmp_path / "r.toml")))
    command = ["models", "train", "--base", str(base), "--rows", str(rows), "--out", str(tmp_path / "two")]
    command += ["--config", str(tmp_path / "r.toml")]
    done = python("-c", FORKED, *command, env={"OMP_NUM_THREADS": "1", "MASTER_PORT": str(free_port())})
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


# Trained under SimpleTool's own prompt, a model is asked what that server asks: eight heads behind its text.


pytest.importorskip("peft")
pytest.importorskip("accelerate")


def test_the_authors_prompt_goes_with_what_is_trained_under_it(tmp_path: Path, data: Path) -> None:
    base = build_checkpoint(tmp_path / "base", seed=2, scale=0.1)
    adopt(base, data / "simpletool_prompt" / "system_template.txt")
    rows = write(tmp_path / "rows.jsonl", random_rows(0, 12))
    settings = {"rank": 2, "alpha": 4, "groups": 4, "device_groups": 4, "steps": 1, "dtype": "fp32", "length": 4096}
    made = finetune(Job(str(base), (rows,), tmp_path / "out", FinetuneRecipe(**settings), drop_bad=True))
    template, tokenizer = opened(made.model)
    assert template.profile == "simpletool-v1" and template.content
    encoder = GroupEncoder(template, tokenizer, FinetuneRecipe(length=4096))
    groups = load([rows], encoder, drop_bad=True)
    assert len(groups) == made.groups > 3
    assert {len(group.heads) for group in groups} <= {8, 2}  # two of a null call
    text = tokenizer.decode(groups[0].suffix)
    assert "environment: [" in text and "history: [" in text


# Ablations differ in what they name alone; what is done is not done again.


pytest.importorskip("peft")
pytest.importorskip("accelerate")


def plan(folder: Path, **more: Any) -> Path:
    made = {
        "base": str(folder / "base"), "rows": [str(folder / "a.jsonl")], "out": str(folder / "out"),
        "held_out": [str(folder / "held.jsonl")],
        "recipe": {"rank": 4, "alpha": 8, "steps": 2, "groups": 4, "device_groups": 4, "dtype": "fp32"},
        "axes": {"rank": [2, 4], "rows": [[str(folder / "a.jsonl"), str(folder / "b.jsonl")]]},
    } | more  # fmt: skip
    (folder / "sweep.json").write_text(json.dumps(made))
    return folder / "sweep.json"


def test_each_axis_is_varied_alone_and_a_rank_keeps_its_scale(tmp_path: Path) -> None:
    runs = read_sweep(plan(tmp_path)).runs
    assert [r.name for r in runs] == ["plain", "rank-2", "rows-a-b"]  # rank 4 is what the recipe has
    assert [(r.job.recipe.rank, r.job.recipe.alpha, len(r.job.rows)) for r in runs] == [(4, 8, 1), (2, 4, 1), (4, 8, 2)]
    focal = {"focal": [[1.0] * 6, [1, 1, 1.5, 2, 2.5, 3]], "rank": [2, 4]}
    grid = read_sweep(plan(tmp_path, axes=focal, mode="grid")).runs
    assert len(grid) == 4 and {r.job.recipe.focal[-1] for r in grid} == {1.0, 3.0}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rows": []}, "has no rows"), ({"base": 3}, "base is 3"), ({"axis": {}}, "no 'axis'"),
        ({"axes": {"rank": 4}}, "the axis rank is 4"), ({"axes": {"rnk": [4]}}, "no setting 'rnk'"),
        ({"axes": {"rank": [0]}}, "rank is 0"), ({"mode": "all"}, "no 'all'"),
    ],
)  # fmt: skip
def test_what_a_file_gets_wrong_is_named_before_anything_is_trained(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    with pytest.raises(UserError, match=rf"sweep.json: .*{told}"):
        read_sweep(plan(tmp_path, **change))


def test_runs_are_compared_on_the_same_rows_and_done_once(tmp_path: Path) -> None:
    build_checkpoint(tmp_path / "base", seed=2, scale=0.1)
    for seed, name in enumerate(("a", "b", "held")):
        write(tmp_path / f"{name}.jsonl", random_rows(seed, 12))
    said: list[str] = []
    found = run_sweep(read_sweep(plan(tmp_path)), said.append)
    assert [one["name"] for one in found] == ["plain", "rank-2", "rows-a-b"]
    assert [one["groups"] for one in found] == [12, 12, 24]
    assert {one["held_out"]["rows"] for one in found} == {12}
    assert json.loads((tmp_path / "out" / "sweep.json").read_text())["runs"] == found
    assert any("step 2/2" in line for line in said)
    again: list[str] = []
    assert run_sweep(read_sweep(plan(tmp_path)), again.append) == found
    assert not any("step" in line for line in again)
    write(tmp_path / "b.jsonl", random_rows(7, 12))  # its run is of other rows now: it is not taken for done
    with pytest.raises(UserError, match="rows-a-b holds a run with another configuration: rows was"):
        run_sweep(read_sweep(plan(tmp_path)), again.append)
