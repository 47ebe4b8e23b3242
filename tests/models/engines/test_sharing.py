"""Sessions of one checkpoint share its runner, keep their own caches, and leave nothing behind."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from rtcontrol.models.runners.torch_runner import TorchRunner
from rtcontrol.models.runners.weights import ModelConfig, load_weights
from tests.models.small import build_checkpoint

CPU = torch.device("cpu")


def runner(folder: Path, dtype: str = "fp32", threads: int | None = None) -> TorchRunner:
    return TorchRunner.load(folder, dtype, "cpu", threads)


def test_one_runner_a_checkpoint_and_dtype_and_a_cache_a_session(folder: Path, tmp_path: Path) -> None:
    first, second = runner(folder), runner(folder)
    assert first is second
    one, other = (first.open([1, 2])[0] for _ in range(2))
    assert one.cache.keys.data_ptr() != other.cache.keys.data_ptr()
    assert runner(folder, "bf16").model.weights is not first.model.weights
    assert runner(build_checkpoint(tmp_path / "b", seed=1)).model.weights is not first.model.weights


def test_weights_are_freed_with_their_last_runner(tmp_path: Path) -> None:
    folder = build_checkpoint(tmp_path / "a")  # that no other test has open
    first, second = runner(folder), runner(folder, threads=2)
    held = weakref.ref(first.model.weights)
    assert first is not second
    del first
    assert held() is not None
    del second
    assert held() is None


def test_a_runner_leaves_the_threads_of_others_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, used = torch.get_num_threads(), []
    made = runner(folder, threads=before + 1)
    handle, _ = made.open([1, 2, 3])
    plain = made.model.forward

    def forward(*arguments: Any) -> Any:
        used.append(torch.get_num_threads())
        return plain(*arguments)

    monkeypatch.setattr(made.model, "forward", forward)
    handle.start([1, 2, 3, 4], 1)
    made.prefill(handle, 1)
    assert used == [before + 1]
    assert torch.get_num_threads() == before


def test_a_retrained_checkpoint_is_read_anew(tmp_path: Path) -> None:
    folder = build_checkpoint(tmp_path / "a")
    config = ModelConfig.load(folder)
    before = load_weights(folder, config, torch.float32, CPU)
    build_checkpoint(folder, seed=1)
    after = load_weights(folder, ModelConfig.load(folder), torch.float32, CPU)
    assert not torch.equal(before.embedding, after.embedding)


def test_what_a_runner_computed_is_stored_under_the_weights_that_it_has(tmp_path: Path) -> None:
    folder, prefix = build_checkpoint(tmp_path / "a", seed=2), [1, 2, 3]
    old = runner(folder)
    build_checkpoint(folder, seed=3)
    new = runner(folder)
    assert old is not new
    assert [made.open(prefix)[1].source for made in (old, new, old, new)] == ["computed", "computed", "disk", "disk"]


def test_a_cache_takes_memory_only_where_it_is_written(folder: Path) -> None:
    made = runner(folder)
    first = made.open([1, 2, 3])[0].cache.keys
    size = 2 * first.numel() * first.element_size()
    process = psutil.Process(os.getpid())
    before = process.memory_info().rss
    handles = [made.open([1, 2, 3])[0] for _ in range(40)]
    assert process.memory_info().rss - before < 20 * size
    assert not any(h.cache.keys[..., 3:, :].any() for h in handles[:1])
