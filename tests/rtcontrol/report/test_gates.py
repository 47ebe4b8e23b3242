"""A gate holds, or fails, or is refused; it never passes by saying nothing."""

from __future__ import annotations

from typing import Any

import pytest

from rtcontrol.loop.command import SPANS
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry import timeline
from rtcontrol.telemetry.causes import CAUSES
from rtcontrol.telemetry.gates import parse
from tests.helpers.processes import ROOT

REPORT: dict[str, Any] = {
    "env": "cart",
    "releases": 100,
    "miss_rate": 0.01,
    "judged": True,
    "pipeline": 1,
    "misses_by_cause": {"decide": 1},
    "misses_by_subcause": {"decide.queued": 1},
    "latency_ms": {"p50": 12.5, "p99": 40.0},
    "jitter_ms": {"p50": None},
    "max_age_ms": None,
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("miss_rate<=0.01", True),
        ("miss_rate < 0.01", False),
        (" latency_ms.p99 <= 4e1 ", True),
        ("latency_ms.p50>=13", False),
        ("releases==100", True),
        ("releases!=100", False),
        ("misses_by_cause.decide>0", True),
        # What did not happen is counted as nothing.
        ("misses_by_cause.host==0", True),
        ("misses_by_cause.unknown<=0", True),
        ("misses_by_subcause.decide.queued<=0", False),
        ("misses_by_subcause.pause.gc==0", True),
        # Nothing was measured: that is no reason to pass.
        ("jitter_ms.p50<=1000", False),
    ],
)
def test_a_gate_compares_a_number_of_the_report(text: str, holds: bool) -> None:
    assert parse(text).holds(REPORT) is holds


@pytest.mark.parametrize(
    "field", ["mis_rate", "latency_ms", "latency_ms.p98", "env", "judged", "misses_by_cause.boredom"]
)
def test_a_field_that_does_not_exist_is_refused_with_those_that_are_like_it(field: str) -> None:
    with pytest.raises(UserError, match=f"has no number {field}") as refused:
        parse(f"{field}<=1").holds(REPORT)
    assert "Perhaps" in str(refused.value)


@pytest.mark.parametrize(
    "text",
    ["", "miss_rate", "miss_rate<=", "miss_rate<=nan", "miss_rate=0.1", "<=3", "a<=b", "a<=1<=2", "misses==0 or 1"],
)
def test_what_is_no_gate_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is no gate"):
        parse(text)


def test_gates_timeline_and_page_know_the_causes_and_stamps_that_the_loop_tells() -> None:
    rows, cause = {}, ""
    for line in (ROOT / "docs/report.md").read_text().splitlines():
        cells = [cell.strip(" `") for cell in line.split("|")]
        if line.startswith("| ") and len(cells) == 5:
            cause = cells[1] or cause
            rows.setdefault(cause, []).extend(cells[2].replace("`", "").split(", "))
    for name, entry in CAUSES.items():
        subcauses = entry.subcauses
        assert parse(f"misses_by_cause.{name}==0").holds({"misses_by_cause": {}})
        for subcause in subcauses:
            assert parse(f"misses_by_subcause.{name}.{subcause}==0").holds({"misses_by_subcause": {}})
        assert {*filter(None, rows[name])} == {*subcauses}
    assert timeline.SPANS == SPANS
