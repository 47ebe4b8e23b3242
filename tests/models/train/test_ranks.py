"""Two real processes that train one model: other rows each, the same weights, files once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rtcontrol.models.errors import UserError
from rtcontrol.models.train.rows import Row
from rtcontrol.models.train.trainer import first_process_says, process_count, process_rank, run_processes
from tests.helpers.processes import ROOT, environment, until
from tests.models.train.test_trainer import CONFIG, source, trainer


def train(out: Path, chunks: int, fail: bool = False) -> None:
    run = trainer(out / "run", replace(CONFIG, samples=chunks * process_count() * 32))
    drawn: list[int] = []

    def noted(chunk: int) -> Sequence[Row]:
        drawn.append(chunk)
        if fail and process_rank():
            raise UserError("The second has no more rows.", "Give it some.")
        return source(chunk)

    run.source = noted
    run.run()
    torch.save(run.model.state_dict(), out / f"{process_rank()}.pt")
    (out / f"{process_rank()}.json").write_text(json.dumps({"drawn": drawn, "samples": run.samples}))


def test_two_have_other_rows_and_the_same_weights_and_write_files_once(tmp_path: Path) -> None:
    run_processes(2, train, tmp_path, 3)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert (first["drawn"], second["drawn"]) == ([0, 2, 4], [1, 3, 5])
    assert first["samples"] == second["samples"] == 192
    ours, theirs = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["samples"] for line in lines] == [64, 128, 192]
    saved = torch.load(tmp_path / "run" / "state.pt")
    assert all(torch.equal(saved["model"][name], ours[name]) for name in ours)


def test_one_process_alone_needs_nobody(tmp_path: Path) -> None:
    run_processes(1, train, tmp_path, 2)
    assert json.loads((tmp_path / "0.json").read_text()) == {"drawn": [0, 1], "samples": 64}
    assert process_count() == 1 and first_process_says(True) and not first_process_says(False)


def waits(folder: Path) -> None:
    (folder / str(os.getpid())).touch()
    time.sleep(600)


def test_where_the_process_that_waits_is_killed_all_end(tmp_path: Path) -> None:
    code = f"from tests.models.train.test_ranks import *; ranks.together(2, waits, Path({str(tmp_path)!r}))"
    # As a shell starts what runs in its background.
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, env=environment()) as first:
        until(lambda: len([*tmp_path.iterdir()]) == 2, seconds=60)
        first.kill()
    until(lambda: not any(Path("/proc", child.name).exists() for child in tmp_path.iterdir()))


def test_where_one_fails_all_end_and_its_error_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="The second has no more rows"):
        run_processes(2, train, tmp_path, 2, True)
    assert not (tmp_path / "0.pt").exists()
