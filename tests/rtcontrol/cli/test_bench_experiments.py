from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from rtcontrol.cli.bench import app

RESULTS = Path(__file__).parents[3] / "docs" / "experiments" / "results.json"


def test_results_of_before_are_shown_and_put_into_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Mine\n<!-- latency -->\nold\n<!-- /latency -->\nafter\n")
    command = ["experiments", "latency", "--results", str(RESULTS), "--page", str(page)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "JSON, grammar" in done.output and "**" not in done.output
    written = page.read_text()
    assert "old" not in written and "| heads |" in written and written.endswith("after\n")


def test_what_holds_no_results_is_told(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_text(json.dumps([]))
    done = CliRunner().invoke(app, ["experiments", "--results", str(file)])
    assert done.exit_code != 0 and "holds no results" in str(done.exception)
