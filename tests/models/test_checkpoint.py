"""Where a model's name leads."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rtcontrol.models.checkpoint.checkpoint import ZOO, resolve
from rtcontrol.models.errors import UserError


def test_a_name_that_is_a_bundled_model_and_a_folder_here_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lander").mkdir()
    assert resolve("lander") == ZOO / "lander"  # a folder that holds no model is none of two
    shutil.copy(ZOO / "lander" / "config.json", tmp_path / "lander")
    with pytest.raises(UserError, match="a bundled model, and a folder here") as refused:
        resolve("lander")
    assert "./lander" in refused.value.remedy
    assert resolve("./lander") == Path("lander")


def test_a_bundled_model_is_itself_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ZOO)
    assert resolve("lander") == ZOO / "lander"
