"""The report as JSON: of one run its report.json and what follows from it, of several a list of these."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rtcontrol.telemetry.gates import Gate
from rtcontrol.telemetry.recorded import Recorded


def render(runs: Sequence[Recorded], gates: Sequence[Gate]) -> str:
    """With `name`, `stages_ms`, `windows`, `bursts`, `what_if` and `gates` besides the fields of report.json."""
    made = []
    for run in runs:
        judged = [{"gate": g.text, "value": g.value(run.report), "holds": g.holds(run.report)} for g in gates]
        made.append({"name": run.name, **run.report, **run.derived(), "gates": judged})
    return json.dumps(made[0] if len(made) == 1 else made, indent=2, default=str) + "\n"
