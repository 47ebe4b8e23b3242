"""docs/fit.md runs as it stands there."""

from __future__ import annotations

import itertools
import json
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from rtcontrol.models.train import trainer
from rtcontrol.training.dataset import LEAST_ROWS, check, tools_of
from tests.helpers.processes import ROOT

PAGE = (ROOT / "docs/fit.md").read_text("utf-8")


def test_the_page_of_fit_runs_and_its_row_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    now = itertools.count(step=3.0)  # its minute is twenty steps
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: next(now)))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "belt.py").write_text(code, "utf-8")
    runpy.run_path("belt.py")
    told = capsys.readouterr().out
    assert "Wilson 95 %" in told
    assert re.search(r"^(STOP|SLOW|RUN)\(\)$", told, re.MULTILINE)
    assert (tmp_path / "runs/belt/rtcontrol.json").is_file()
    (row,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    tools = tools_of({"STOP": "Stop the belt."})
    _, rows = check(((f"fit.md:{n}", row) for n in range(LEAST_ROWS)), tools)
    assert rows[0].row.call is not None and json.loads(row)["call"]["name"] == "STOP"
