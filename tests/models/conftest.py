"""Fixtures of small checkpoints. Torch uses one thread, as small models gain nothing from more on shared cores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tests.models.small import KINDS, Oracle, build_checkpoint

torch.set_num_threads(1)


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random checkpoint."""
    return build_checkpoint(tmp_path_factory.mktemp("model") / "m", seed=7)


@pytest.fixture(scope="package")
def oracle(folder: Path) -> Oracle:
    return Oracle.load(folder)


@pytest.fixture(scope="package", params=KINDS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Oracle]:
    """A small checkpoint of each architecture, and its oracle."""
    folder = build_checkpoint(
        tmp_path_factory.mktemp("model") / request.param, request.param, seed=KINDS.index(request.param)
    )
    return folder, Oracle.load(folder)


@pytest.fixture(scope="session")
def sets() -> Path:
    """The folder with seal_tools, openfunctions_v1, toolalpaca, mobile_actions and qwen2_tokenizer."""
    if not (given := os.environ.get("RTCONTROL_DATA")):
        pytest.skip("RTCONTROL_DATA names no folder of data sets")
    return Path(given)
