"""A fitted model of the signals task for all tests of this folder, and a fast clock."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

import rtcontrol
from rtcontrol.models.train import trainer
from rtcontrol.training.fit import Fitted
from tests.rtcontrol.training.signals import TOOLS, rows


@pytest.fixture(scope="session")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Fitted, list[dict[str, Any]]]:
    """Return a model of the signals task that was stopped once and resumed, with its progress lines."""
    out = tmp_path_factory.mktemp("fit") / "signals"
    lines: list[dict[str, Any]] = []
    now = itertools.count(step=0.25)

    def stop(line: dict[str, Any]) -> None:
        lines.append(line)
        if line["samples"] >= 1_000:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: next(now)))
        with pytest.raises(KeyboardInterrupt):
            rtcontrol.fit(rows(), TOOLS, out=out, minutes=3, tell=stop)
        assert not (out / "config.json").exists()  # no half of a checkpoint
        return rtcontrol.fit(rows(), TOOLS, out=out, minutes=3, tell=lines.append), lines


@pytest.fixture
def fast_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a second pass at each step of a fit, so that its minutes are the same number of steps anywhere."""
    now = itertools.count(step=1.0)
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: next(now)))
