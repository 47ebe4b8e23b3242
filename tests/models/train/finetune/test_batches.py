"""Batches of rows that share tools: each row once an epoch, each time in another order, the same after a resume."""

from __future__ import annotations

import shutil
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

from rtcontrol.models.errors import UserError
from rtcontrol.models.train.finetune import checkpoints
from rtcontrol.models.train.finetune.config import FinetuneRecipe
from rtcontrol.models.train.finetune.dataset import GroupCollator, SameToolsSampler
from rtcontrol.models.train.finetune.run import Job, finetune
from tests.helpers.processes import python
from tests.models.small import build_checkpoint, law
from tests.models.train.finetune.rows import random_rows, write

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


def job(base: Path, folder: Path, name: str, **settings: Any) -> Job:
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
    whole = finetune(job(base, tmp_path, "whole"))
    first, second = drawn[:24], drawn[24:48]
    assert sorted(first) == sorted(second) and first != second

    class PowerCutError(Exception):
        pass

    def cut(line: dict[str, Any]) -> None:
        if line["step"] == 10:  # the checkpoint of step 8 is in the second epoch
            raise PowerCutError

    with pytest.raises(PowerCutError):
        finetune(job(base, tmp_path, "cut"), cut)
    assert checkpoints.steps(tmp_path / "cut" / "checkpoints") == [4, 8]
    made = finetune(job(base, tmp_path, "cut"))
    expected = load_file(whole.model / "model.safetensors")
    assert all(torch.equal(w, expected[n]) for n, w in load_file(made.model / "model.safetensors").items())
    with pytest.raises(UserError, match=r"batches was same-tools, is shuffled"):
        finetune(job(base, tmp_path, "cut", batches="shuffled"))


@pytest.mark.slow
def test_two_processes_go_on_in_the_middle_of_an_epoch(base: Path, tmp_path: Path) -> None:
    told = job(base, tmp_path, "unused").recipe.model_dump(exclude_none=True) | {"device": "cpu"}
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
