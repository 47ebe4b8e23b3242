"""What always right would score on BFCL: the converters through its own checker, row for row."""

from __future__ import annotations

import os
from typing import Any

import pytest

from rtcontrol.evaluation.rows import RowSource, oracle

# Samples; right with all arguments; right with those that six heads hold.
TABLE = {
    "simple_python": (400, 400, 400),
    "multiple": (200, 200, 200),
    "live_simple": (258, 256, 251),
    "live_multiple": (1053, 1051, 1009),
    "exec_simple": (100, 99, 99),
    "exec_multiple": (50, 48, 48),
}
QUICK = ("live_simple", "exec_simple", "exec_multiple")


def measured(categories: tuple[str, ...]) -> dict[str, tuple[int, int, int]]:
    if not os.environ.get("RTCONTROL_BFCL"):
        pytest.skip("RTCONTROL_BFCL names no interpreter that has bfcl-eval, nor the package's folder")
    found: dict[str, Any] = oracle(RowSource(f"bfcl:{','.join(categories)}"))["by_source"]
    return {
        name.rpartition(":")[2]: (one["samples"], one["official"]["all"], one["official"]["six"])
        for name, one in found.items()
    }


def test_gold_calls_pass_the_official_checker_as_often_as_they_can() -> None:
    assert measured(QUICK) == {name: TABLE[name] for name in QUICK}


@pytest.mark.slow
def test_gold_calls_of_all_categories_pass_the_official_checker() -> None:
    assert measured(tuple(TABLE)) == TABLE
