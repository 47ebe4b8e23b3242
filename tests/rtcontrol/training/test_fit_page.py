"""docs/fit.md runs as it stands there."""

from __future__ import annotations

import json
import re
from pathlib import Path

from rtcontrol.training.dataset import LEAST_ROWS, check, tools_of
from tests.helpers.processes import ROOT, python

PAGE = (ROOT / "docs/fit.md").read_text("utf-8")


def test_the_page_of_fit_runs_and_its_row_is_one(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    ran = python("-c", code, cwd=tmp_path, timeout=280)
    assert ran.returncode == 0, ran.stderr
    assert "Wilson 95 %" in ran.stdout and "green and red" in ran.stdout
    assert re.search(r"^(STOP|SLOW|RUN)\(\)$", ran.stdout, re.MULTILINE)
    assert (tmp_path / "runs/belt/rtcontrol.json").is_file()
    (row,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    tools = tools_of({"STOP": "Stop the belt."})
    _, rows = check(((f"fit.md:{n}", row) for n in range(LEAST_ROWS)), tools)
    assert rows[0].row.call is not None and json.loads(row)["call"]["name"] == "STOP"
