"""Results gathered from the runs, and their tables put into a page, each between its marks."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rtcontrol.bench.table import markdown
from rtcontrol.experiments import runs
from rtcontrol.experiments.tables import Results, tables
from rtcontrol.models.errors import UserError


def gathered(names: Sequence[str], seeds: int, out: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """By experiment, arm and seed, what is done."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name in names:
        arms = found.setdefault(name, {})
        for seed in (runs.RATES_SEED,) if name == runs.RATES else range(seeds):
            for arm, run in runs.of(name, seed, out).items():
                result = run.result()
                if result is not None:
                    arms.setdefault(arm, {})[str(seed)] = result
    return found


def check_marks(text: str, names: Sequence[str]) -> None:
    """Raises UserError where a mark is missing."""
    for mark in (mark for name in names for mark in _marks(name)):
        if mark not in text:
            raise UserError(f"The page lacks {mark}.", "Put it where the table is to begin, or to end.")


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name} -->", f"<!-- /{name} -->"


def filled(text: str, results: Results) -> str:
    """The page with the tables of `results` in place of those that it has. Raises UserError where a mark is missing."""
    for name, table in tables(results):
        check_marks(text, [name])
        begin, end = _marks(name)
        block = f"{begin}\n{markdown([table])}\n{end}"
        text = re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _, new=block: new, text, flags=re.DOTALL)  # type: ignore[misc]
    return text


def write_tables(folder: Path) -> list[Path]:
    """Put the tables of the folder's results into the page beside it, where there are both; gives what changed."""
    results, page = folder / "experiments.json", folder.parent / "experiments.md"
    if not (results.exists() and page.exists()):
        return []
    text = page.read_text("utf-8")
    new = filled(text, json.loads(results.read_text("utf-8"))["experiments"])
    if new == text:
        return []
    page.write_text(new, "utf-8")
    return [page]
