"""Fixtures for the chat tests: a random model of each family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from tests.models.chat.families import KINDS, checkpoint


@pytest.fixture(scope="module", params=sorted(KINDS))
def model(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Any]:
    """Return the family, the checkpoint, and Hugging Face's model of the checkpoint."""
    family = request.param
    folder = checkpoint(tmp_path_factory.mktemp(family), family, seed=sorted(KINDS).index(family))
    return family, folder, AutoModelForCausalLM.from_pretrained(folder).eval()
