from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rtcontrol.cli.bench import app
from rtcontrol.models.errors import UserError

RESULTS = Path(__file__).parents[3] / "docs" / "benchmarks" / "experiments.json"


def test_results_of_before_are_shown_and_put_into_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Mine\n<!-- latency -->\nold\n<!-- /latency -->\nafter\n")
    command = ["experiments", "latency", "--results", str(RESULTS), "--page", str(page)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "JSON, grammar" in done.output and "**" not in done.output
    written = page.read_text()
    assert "old" not in written and "| heads |" in written and written.endswith("after\n")


@pytest.mark.parametrize("document", [[], {"experiments": []}, {"experiments": {"forms": {"heads": {"0": {}}}}}])
def test_what_holds_no_results_is_told(tmp_path: Path, document: Any) -> None:
    file = tmp_path / "r.json"
    file.write_text(json.dumps(document))
    done = CliRunner().invoke(app, ["experiments", "--results", str(file)])
    assert isinstance(done.exception, UserError) and "holds no such results" in str(done.exception)


def test_a_page_without_marks_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Mine\n")
    done = CliRunner().invoke(app, ["experiments", "forms", "--out", str(tmp_path / "out"), "--page", str(page)])
    assert isinstance(done.exception, UserError) and not (tmp_path / "out").exists()
