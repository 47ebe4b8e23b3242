"""The report as JUnit XML: each run a suite, each gate a test of it."""

from __future__ import annotations

from collections.abc import Sequence

from junitparser import Failure, JUnitXml, TestCase, TestSuite

from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.gates import Gate
from rtcontrol.telemetry.recorded import Recorded
from rtcontrol.telemetry.report import causes, on_time_share
from rtcontrol_client.console import printable

TOLD = (
    *("env", "agent", "model", "engine", "host", "clock", "hz", "deadline_ms", "started_at", "ended_by"),
    *("instruction", "releases", "ticks", "on_time", "null", "held", "misses", "skipped_releases", "miss_rate"),
    "longest_miss_run",
)


def render(runs: Sequence[Recorded], gates: Sequence[Gate]) -> str:
    """UserError without gates: what tests nothing passes always."""
    if not gates:
        raise UserError("--format junit tests nothing without a gate.", "Give such as --gate 'miss_rate<=0.005'.")
    xml = JUnitXml("rtcontrol")
    for run in runs:
        suite = TestSuite(run.name)
        suite.timestamp = str(run.report["started_at"])
        for name in TOLD:
            suite.add_property(name, printable(str(run.report[name])))  # XML has no place for ESC
        suite.add_property("on_time_share", f"{on_time_share(run.report):.6f}")
        for gate in gates:
            case, value = TestCase(gate.text, classname=f"rtcontrol.{run.name}"), gate.value(run.report)
            case.time = float(run.report["duration_s"] or 0.0)
            if not gate.holds(run.report):
                measured = "nothing was measured" if value is None else f"it is {value:g}"
                failure = Failure(f"{gate.text} does not hold: {measured}", "gate")
                failure.text = f"misses by cause: {causes(run.report)}; longest run {run.report['longest_miss_run']}"
                case.result = [failure]
            suite.add_testcase(case)
        xml.add_testsuite(suite)
    xml.update_statistics()
    text: str = xml.tostring().decode("utf-8")
    return text if text.endswith("\n") else text + "\n"
