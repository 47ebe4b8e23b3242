"""Ablations differ in what they name alone; what is done is not done again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.models.errors import UserError
from rtcontrol.models.train.finetune.sweep import read_sweep, run_sweep
from tests.models.small import build_checkpoint
from tests.models.train.finetune.rows import random_rows, write

pytest.importorskip("peft")
pytest.importorskip("accelerate")


def plan(folder: Path, **more: Any) -> Path:
    made = {
        "base": str(folder / "base"), "rows": [str(folder / "a.jsonl")], "out": str(folder / "out"),
        "held_out": [str(folder / "held.jsonl")],
        "recipe": {"rank": 4, "alpha": 8, "steps": 2, "groups": 4, "device_groups": 4, "dtype": "fp32"},
        "axes": {"rank": [2, 4], "rows": [[str(folder / "a.jsonl"), str(folder / "b.jsonl")]]},
    } | more  # fmt: skip
    (folder / "sweep.json").write_text(json.dumps(made))
    return folder / "sweep.json"


def test_each_axis_is_varied_alone_and_a_rank_keeps_its_scale(tmp_path: Path) -> None:
    runs = read_sweep(plan(tmp_path)).runs
    assert [r.name for r in runs] == ["plain", "rank-2", "rows-a-b"]  # rank 4 is what the recipe has
    assert [(r.job.recipe.rank, r.job.recipe.alpha, len(r.job.rows)) for r in runs] == [(4, 8, 1), (2, 4, 1), (4, 8, 2)]
    focal = {"focal": [[1.0] * 6, [1, 1, 1.5, 2, 2.5, 3]], "rank": [2, 4]}
    grid = read_sweep(plan(tmp_path, axes=focal, mode="grid")).runs
    assert len(grid) == 4 and {r.job.recipe.focal[-1] for r in grid} == {1.0, 3.0}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rows": []}, "has no rows"),
        ({"base": 3}, "base is 3"),
        ({"axis": {}}, "no 'axis'"),
        ({"axes": {"rank": 4}}, "the axis rank is 4"),
        ({"axes": {"rnk": [4]}}, "no setting 'rnk'"),
        ({"axes": {"rank": [0]}}, "rank is 0"),
        ({"mode": "all"}, "no 'all'"),
    ],
)
def test_what_a_file_gets_wrong_is_named_before_anything_is_trained(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    with pytest.raises(UserError, match=rf"sweep.json: .*{told}"):
        read_sweep(plan(tmp_path, **change))


def test_runs_are_compared_on_the_same_rows_and_done_once(tmp_path: Path) -> None:
    build_checkpoint(tmp_path / "base", seed=2, scale=0.1)
    for seed, name in enumerate(("a", "b", "held")):
        write(tmp_path / f"{name}.jsonl", random_rows(seed, 12))
    said: list[str] = []
    found = run_sweep(read_sweep(plan(tmp_path)), said.append)
    assert [one["name"] for one in found] == ["plain", "rank-2", "rows-a-b"]
    assert [one["groups"] for one in found] == [12, 12, 24]
    assert {one["held_out"]["rows"] for one in found} == {12}
    assert json.loads((tmp_path / "out" / "sweep.json").read_text())["runs"] == found
    assert any("step 2/2" in line for line in said)
    again: list[str] = []
    assert run_sweep(read_sweep(plan(tmp_path)), again.append) == found
    assert not any("step" in line for line in again)
    write(tmp_path / "b.jsonl", random_rows(7, 12))  # its run is of other rows now: it is not taken for done
    with pytest.raises(UserError, match="rows-a-b holds a run with another configuration: rows was"):
        run_sweep(read_sweep(plan(tmp_path)), again.append)
