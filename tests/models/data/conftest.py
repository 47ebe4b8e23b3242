"""Where the public sets are: none of them is in the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rtcontrol.models.data.sources import bfcl


@pytest.fixture(scope="session")
def sets() -> Path:
    """The folder with seal_tools, openfunctions_v1, toolalpaca, mobile_actions and qwen2_tokenizer."""
    if not (given := os.environ.get("RTCONTROL_DATA")):
        pytest.skip("RTCONTROL_DATA names no folder of data sets")
    return Path(given)


@pytest.fixture(scope="session")
def package() -> Path:
    """The folder of bfcl_eval."""
    if not os.environ.get(bfcl.VARIABLE):
        pytest.skip(f"{bfcl.VARIABLE} names no interpreter that has bfcl-eval, nor the package's folder")
    return bfcl.package_folder()
