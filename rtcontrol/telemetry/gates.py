"""Gates: what a report must hold, such as `miss_rate<=0.005`, for continuous integration to fail a run by."""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.causes import CAUSES

COMPARED = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
GATE = re.compile(r"\s*([A-Za-z][\w.]*)\s*(<=|>=|==|!=|<|>)\s*(\S+)\s*")
NAMES = " ".join(CAUSES)
# Counts by name: what did not happen is not in the report, and is 0.
COUNTS = {
    "misses_by_cause": NAMES,
    "misses_by_subcause": " ".join(f"{cause}.{sub}" for cause, entry in CAUSES.items() for sub in entry.subcauses),
    "skipped_by_cause": NAMES,
    "acknowledged": "executed expired refused failed",
}


@dataclass(frozen=True)
class Gate:
    """`field` of the report against `limit`. One of which nothing was measured does not hold."""

    text: str
    field: str
    compare: str
    limit: float

    def value(self, report: Mapping[str, Any]) -> float | None:
        """What the report says; None where nothing was measured. UserError where it has no such number."""
        known = dict(numbers(report))
        if self.field not in known:
            near = difflib.get_close_matches(self.field, known, n=3, cutoff=0.6) or ["miss_rate", "latency_ms.p99"]
            raise UserError(
                f"--gate '{self.text}': the report has no number {self.field}.",
                f"Perhaps {', '.join(near)}? `rtcontrol report --format json` shows all.",
            )
        return known[self.field]

    def holds(self, report: Mapping[str, Any]) -> bool:
        value = self.value(report)
        return value is not None and COMPARED[self.compare](value, self.limit)


def parse(text: str) -> Gate:
    """UserError where it is none."""
    found = GATE.fullmatch(text)
    try:
        limit = float(found[3]) if found else math.nan
    except ValueError:
        limit = math.nan
    if found is None or math.isnan(limit):
        raise UserError(f"--gate '{text}' is no gate.", "Give FIELD, a comparison, a number: 'miss_rate<=0.005'.")
    return Gate("".join(found.groups()), found[1], found[2], limit)


def numbers(report: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    """The numbers of a report by dotted name, also those that nobody counted anything of."""
    for name, value in report.items():
        if name in COUNTS:
            for key in {*COUNTS[name].split(), *value}:
                yield f"{name}.{key}", value.get(key, 0)
        elif isinstance(value, dict):
            for key, inner in numbers(value):
                yield f"{name}.{key}", inner
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield name, value
        elif value is None:
            yield name, None
