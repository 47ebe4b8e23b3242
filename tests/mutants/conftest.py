"""A run of the mutants ends with a table: what noticed each, which survive, and which could not be tried."""

from __future__ import annotations

import time
from typing import Any

import pytest

VERDICTS = {"passed": "killed", "failed": "NOT KILLED", "skipped": "not tried here"}
STARTED_S = time.monotonic()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    rows = [
        (report.nodeid.partition("[")[2][:-1], VERDICTS[outcome], _by(report), report.duration)
        for outcome in VERDICTS
        for report in terminalreporter.stats.get(outcome, [])
        if isinstance(report, pytest.TestReport) and "test_mutant_is_noticed" in report.nodeid
    ]
    if not rows:
        return
    terminalreporter.section("mutants")
    width = max(len(claim) for claim, *_ in rows)
    for claim, verdict, by, seconds in sorted(rows):
        terminalreporter.write_line(f"{claim:{width}}  {verdict:14}  {seconds:5.0f} s  {by}")
    counts = ", ".join(f"{sum(row[1] == v for row in rows)} {v}" for v in VERDICTS.values())
    terminalreporter.write_line(f"{len(rows)} mutants: {counts}, in {time.monotonic() - STARTED_S:.0f} s")


def _by(report: pytest.TestReport) -> str:
    """The test that noticed it, or why none did."""
    if report.passed:
        return str(dict(report.user_properties).get("noticed", ""))
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])[:100]
    lines = str(getattr(getattr(report.longrepr, "reprcrash", None), "message", report.longrepr)).splitlines()
    return lines[0][:100] if lines else ""
