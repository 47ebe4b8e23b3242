"""Small models gain nothing from threads, and lose much where other work shares the cores."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.models.small import Oracle, build_checkpoint

torch.set_num_threads(1)


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint."""
    return build_checkpoint(tmp_path_factory.mktemp("model") / "m", seed=7)


@pytest.fixture(scope="package")
def oracle(folder: Path) -> Oracle:
    return Oracle.load(folder)
