from __future__ import annotations

import json
from pathlib import Path

import pytest

from rtcontrol.evaluation.experiments import runs
from rtcontrol.evaluation.experiments.tables import check_marks, filled, gathered, percent, tables, write_tables
from rtcontrol.models.errors import UserError

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_has_the_tables_of_the_results_beside_it() -> None:
    results = json.loads((DOCS / "benchmarks" / "experiments.json").read_text("utf-8"))["experiments"]
    page = (DOCS / "experiments.md").read_text("utf-8")
    assert filled(page, results) == page
    assert {name for name, _ in tables(results)} == {*runs.NAMES}


def test_the_command_of_all_pages_fills_this_one_too(tmp_path: Path) -> None:
    page = (DOCS / "experiments.md").read_text("utf-8")
    assert write_tables(tmp_path / "benchmarks") == []
    (tmp_path / "benchmarks").mkdir()
    results = (DOCS / "benchmarks" / "experiments.json").read_text("utf-8")
    (tmp_path / "benchmarks" / "experiments.json").write_text(results)
    (tmp_path / "experiments.md").write_text(page.replace("97.7", "1.0"))
    assert write_tables(tmp_path / "benchmarks") == [tmp_path / "experiments.md"]
    assert (tmp_path / "experiments.md").read_text() == page


def test_a_mark_that_is_missing_is_named() -> None:
    results = json.loads((DOCS / "benchmarks" / "experiments.json").read_text("utf-8"))["experiments"]
    with pytest.raises(UserError, match="<!-- rates -->"):
        filled("# Nothing", results)
    with pytest.raises(UserError, match="<!-- /forms -->"):
        check_marks("<!-- forms -->", ["forms"])


def test_a_share_is_the_mean_over_seeds_with_each_behind_it() -> None:
    assert percent([[90, 100], [100, 100], [95, 100]]) == "**95.0** ± 12.4: 90.0, 100.0, 95.0"
    assert percent([[90, 100]]) == "90.0"


def test_an_experiment_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no experiment 'form'"):
        list(runs.planned(["form"], 1, tmp_path))


def test_arms_in_common_are_one_run_and_nothing_is_gathered_that_is_not_done(tmp_path: Path) -> None:
    planned = list(runs.planned(runs.NAMES, 2, tmp_path))
    assert len({run.folder for run in planned}) < len(planned)
    balanced, plain = runs.of("balance", 0, tmp_path)["balanced"], runs.of("forms", 0, tmp_path)["heads"]
    assert balanced.folder == plain.folder
    assert not any(gathered(runs.NAMES, 2, tmp_path).values())
