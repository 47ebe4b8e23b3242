"""The commands `rtcontrol report`, which shows results of runs, and `replay`, which makes recorded decisions again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from rtcontrol.cli.command import CommandLine, command
from rtcontrol.cli.figures import console_for_tables, group, save, say
from rtcontrol.models.errors import UserError
from rtcontrol.models.files import replace_file
from rtcontrol.run.run import ERRORS, MISSED, mostly_errors
from rtcontrol.settings import setting
from rtcontrol.telemetry import report as reports
from rtcontrol.telemetry import table
from rtcontrol.telemetry.progress import Progress
from rtcontrol.telemetry.recorded import Gate, RecordedRun, format_json, load_runs, parse_gate
from rtcontrol.telemetry.table import Terminal
from rtcontrol_client.console import printable

# Report formats that are written to a file next to the record. By format: the file's suffix.
FILES = {"html": ".html", "perfetto": ".pftrace"}
app_report, app_replay = group(), group()


@command(app_report)
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders or records of runs. Several runs give a joint report.")],
    format: Annotated[
        Literal["terminal", "json", "perfetto", "html"], typer.Option(help="perfetto: for ui.perfetto.dev.")
    ] = "terminal",
    gate: Annotated[
        list[str] | None, typer.Option(help="Exit status 3 if false: 'miss_rate<=0.005'. May be repeated.")
    ] = None,
) -> int:
    """Show the results of a run from its record, even if the run was killed.

    Without --format, report.json is also written next to the record, unless the run has written it. A gate compares a
    field of report.json (with dots for nested fields) with a number.

    Examples:

        rtcontrol report runs/lander-20260801T120000
        rtcontrol report runs/a runs/b --format html   # side by side, next to the first record
        rtcontrol report runs/soak --format json --gate 'miss_rate<=0.005' --gate 'latency_ms.p99<=50'
        rtcontrol report runs/soak --format perfetto   # open report.pftrace at https://ui.perfetto.dev
    """
    gates = [parse_gate(text) for text in gate or ()]
    loaded = load_runs(runs)
    results = [(run, g, g.value(run.report), g.holds(run.report)) for run in loaded for g in gates]
    if format == "terminal":
        for run in loaded:
            table.print_report(run.report, Terminal())
            if not reports.is_complete(_report_path(run)) and (
                refused := reports.write_report(run.report, _report_path(run))
            ):
                what = f"The report could not be written to {_report_path(run).parent} ({refused})."
                raise UserError(what, "Free some space.")
    elif format == "json":
        print(format_json(loaded, gates), end="")
    else:
        _write_output(_render_report(format, loaded, gates), _report_path(loaded[0], FILES[format]))
    for run, g, value, holds in results:
        measured = "nothing was measured" if value is None else f"{value:g}"
        line = f"{run.name}: {g.text}: {'holds' if holds else 'DOES NOT HOLD'} ({measured})"
        print(printable(line), file=sys.stderr)
    return 0 if all(holds for *_, holds in results) else MISSED


def _render_report(format: str, runs: Sequence[RecordedRun], gates: Sequence[Gate]) -> str | bytes:
    """Return the report in the format perfetto or html. Raises UserError if the format's package is not installed."""
    if format == "perfetto":
        if find_spec("perfetto") is None:
            problem = "--format perfetto needs the package perfetto, which is not installed."
            raise UserError(problem, "Run `pip install 'rtcontrol[formats]'`.")
        from rtcontrol.telemetry import as_perfetto

        return as_perfetto.render_trace(runs)
    from rtcontrol.telemetry import as_html

    return as_html.render_page(runs, gates)


def _report_path(run: RecordedRun, suffix: str = ".json") -> Path:
    """Return the path of a report next to its record, such as report-2.json for record-2.mcap."""
    return run.record.with_name(run.record.stem.replace("record", "report") + suffix)


def _write_output(rendered: str | bytes, out: Path) -> None:
    try:
        replace_file(out, rendered.encode() if isinstance(rendered, str) else rendered)
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}).", "Free some space.") from None
    print(printable(f"report: {out}"), file=sys.stderr)


@command(app_replay, ("model",), figures=True)
def replay(
    line: CommandLine,
    file: Annotated[Path, typer.Argument(help="A record.mcap, or a run's folder.")],
    model: str | None = setting("replay", None, "Model for the decisions. (default: the recorded model)"),
    agent: str | None = setting("replay", None, "FILE.py with the expert for --model expert."),
    diff: bool = setting("replay", False, "Show each tick whose decision differs."),
) -> int:
    """Make the decisions of a recorded run again, and compare them with the recorded decisions, tick by tick.

    Decisions are made in order, without a clock, with the recorded instructions and histories, so a second replay gives
    the same result. A run with record.observations=no cannot be replayed.

    Exit status: 0; 2 an error in the command; 8 a tenth of the decisions or more ended in an error.

    Examples:

        rtcontrol replay runs/soak --model lander --set replay.diff=true
        rtcontrol replay runs/mine --model expert --set replay.agent=my_agent.py --json replay.json
    """
    from rtcontrol.run import assembly
    from rtcontrol.run.replay import read_recording
    from rtcontrol.run.replay import replay as decide_again

    recorded, console = read_recording(file), console_for_tables(line.json)
    chosen = None if agent is None else assembly.load_agent(agent)
    with Progress("{done} of {total} decisions") as shown:
        result, _ = decide_again(recorded, model, lambda done: shown(done, len(recorded.decisions)), chosen)
    if not result["whole"]:
        say(console, f"{file} was cut short; its existing ticks were replayed.")
    for each in result["differing"] if diff else ():
        now_called = each["replayed"] or each["error"]
        say(console, f"tick {each['k']}, seen at {each['t_s']:.3f} s: {each['recorded']} then, {now_called} now")
    share = "" if result["agreement"] is None else f" ({100 * result['agreement']:.2f} %)"
    ms, agreed = result["decide_ms"], f"{result['agreed']} of {result['compared']} the same{share}"
    say(console, f"{result['recorded']['model']} then, {result['replayed']['model']} now, on {file}: {agreed}")
    say(console, f"{result['decisions']} decisions, {result['errors']} errors, {result['above_period']} above a period")
    say(console, f"decide p50 {ms['p50']} ms, p99 {ms['p99']} ms")
    save(line.json, result)
    if not mostly_errors(result["errors"], result["decisions"]):
        return 0
    print(
        f"ERRORS: {result['errors']} of {result['decisions']} decisions ended in an error, most often: "
        f"{printable(str(result['commonest_error']))}. Correct the code there.",
        file=sys.stderr,
    )
    return ERRORS
