"""Deciders of one checkpoint share its weights, keep their own caches, and leave nothing behind."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

import psutil
import torch

from rtcontrol.models.engines.torch_engine import TorchEngine
from rtcontrol.models.engines.weights import ModelConfig, load_weights
from rtcontrol.models.tokenizer import STTokenizer
from tests.models.small import build_checkpoint

CPU = torch.device("cpu")


def engine(folder: Path, dtype: str = "fp32") -> TorchEngine:
    return TorchEngine(folder, STTokenizer.load(folder / "tokenizer.json"), dtype, "cpu")


def test_one_set_of_weights_a_checkpoint_and_dtype(folder: Path, tmp_path: Path) -> None:
    first, second = engine(folder), engine(folder)
    assert first.model.weights is second.model.weights
    assert first.model.keys.data_ptr() != second.model.keys.data_ptr()
    assert engine(folder, "bf16").model.weights is not first.model.weights
    assert engine(build_checkpoint(tmp_path / "b", seed=1)).model.weights is not first.model.weights


def test_weights_are_freed_with_their_last_engine(tmp_path: Path) -> None:
    folder = build_checkpoint(tmp_path / "a")  # that no other test has open
    first, second = engine(folder), engine(folder)
    held = weakref.ref(first.model.weights)
    del first
    assert held() is not None
    del second
    assert held() is None


def test_a_retrained_checkpoint_is_read_anew(tmp_path: Path) -> None:
    folder = build_checkpoint(tmp_path / "a")
    config = ModelConfig.load(folder)
    before = load_weights(folder, config, torch.float32, CPU)
    build_checkpoint(folder, seed=1)
    after = load_weights(folder, ModelConfig.load(folder), torch.float32, CPU)
    assert not torch.equal(before.embedding, after.embedding)


def test_a_cache_takes_memory_only_where_it_is_written(folder: Path) -> None:
    first = engine(folder).model
    size = 2 * first.keys.numel() * first.keys.element_size()
    process = psutil.Process(os.getpid())
    before = process.memory_info().rss
    engines = [engine(folder) for _ in range(40)]
    assert process.memory_info().rss - before < 20 * size
    assert not any(e.model.keys.any() for e in engines[:1])
