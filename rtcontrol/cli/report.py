"""`rtcontrol report` and `rtcontrol replay`: what runs came to, and their decisions made again."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from rtcontrol.cli.command import CommandLine, command
from rtcontrol.cli.figures import STDOUT, for_people, group, save, say
from rtcontrol.models.errors import UserError
from rtcontrol.models.files import no_link, replace_file
from rtcontrol.run.run import ERRED, MISSED, mostly_errors
from rtcontrol.settings import setting
from rtcontrol.telemetry import report as reports
from rtcontrol.telemetry import table
from rtcontrol.telemetry.recorded import Gate, Recorded, as_json, load, parse, require_ticks
from rtcontrol.telemetry.table import Terminal
from rtcontrol_client.console import printable


class Format(StrEnum):
    TERMINAL = "terminal"
    JSON = "json"
    PERFETTO = "perfetto"
    HTML = "html"


# Of formats that are files: what they are called next to the record.
FILES = {Format.HTML: ".html", Format.PERFETTO: ".pftrace"}
app_report, app_replay = group(), group()


@command(app_report)
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or records; of several, a report of all.")],
    format: Annotated[Format, typer.Option(help="html: a page of its own; perfetto: for ui.perfetto.dev.")] = (
        Format.TERMINAL
    ),
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write it here; - is standard output. (default: html, perfetto: a file next to the first record)",
            show_default=False,
        ),
    ] = None,
    gate: Annotated[
        list[str] | None, typer.Option(help="Exit status 3 unless it holds: 'miss_rate<=0.005'. May be repeated.")
    ] = None,
) -> int:
    """Show what a run came to, from its record alone: also after it was killed.

    Without --format and --out, report.json is written next to the record, too, unless the run itself wrote it. A gate
    is a field of report.json (dots lead inwards), a comparison and a number.

    Examples:

      rtcontrol report runs/lander-20260801T120000

      rtcontrol report runs/a runs/b --format html --out both.html      (side by side)

      rtcontrol report runs/soak --format json --gate 'miss_rate<=0.005' --gate 'latency_ms.p99<=50'

      rtcontrol report runs/soak --format perfetto      (open report.pftrace at https://ui.perfetto.dev)
    """
    gates = [parse(text) for text in gate or ()]
    loaded = load(runs)
    require_ticks(loaded)
    results = [(run, g, g.value(run.report), g.holds(run.report)) for run in loaded for g in gates]
    if format is Format.TERMINAL and out is None:
        _terminal(loaded, Terminal())
        for run in loaded:
            if not reports.whole(_beside(run)) and (refused := reports.write(run.report, _beside(run))):
                what = f"The report could not be written to {_beside(run).parent} ({refused})."
                raise UserError(what, "Free some space.")
    else:
        _put(_rendered(format, loaded, gates), out or (_beside(loaded[0], FILES[format]) if format in FILES else None))
    for run, g, value, holds in results:
        measured = "nothing was measured" if value is None else f"{value:g}"
        line = f"{run.name}: {g.text}: {'holds' if holds else 'DOES NOT HOLD'} ({measured})"
        print(printable(line), file=sys.stderr)
    return 0 if all(holds for *_, holds in results) else MISSED


def _rendered(format: Format, runs: Sequence[Recorded], gates: Sequence[Gate]) -> str | bytes:
    """Return the report; each format's module is imported only now. Raises UserError where its package is missing."""
    if format is Format.TERMINAL:
        text = io.StringIO()
        _terminal(runs, Terminal(file=text, width=120))
        return text.getvalue()
    if format is Format.JSON:
        return as_json(runs, gates)
    if format is Format.PERFETTO:
        if find_spec("perfetto") is None:
            raise UserError("--format perfetto needs it, not installed here.", "pip install 'rtcontrol[formats]'.")
        from rtcontrol.telemetry import as_perfetto

        return as_perfetto.render(runs)
    from rtcontrol.telemetry import as_html

    return as_html.render(runs, gates)


def _terminal(runs: Sequence[Recorded], console: Terminal) -> None:
    for run in runs:
        table.show(run.report, console)


def _beside(run: Recorded, suffix: str = ".json") -> Path:
    """Return the path next to the record: report-2.json of record-2.mcap. A link there is removed: a folder from
    elsewhere names no file to write to."""
    return no_link(run.record.with_name(run.record.stem.replace("record", "report") + suffix))


def _put(rendered: str | bytes, out: Path | None) -> None:
    """Write to the file, or to standard output."""
    packed = rendered.encode() if isinstance(rendered, str) else rendered
    if out is None or out == STDOUT:
        sys.stdout.flush()
        sys.stdout.buffer.write(packed)
        sys.stdout.buffer.flush()
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        replace_file(out, packed)
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}).", "Give another --out.") from None
    print(printable(f"report: {out}"), file=sys.stderr)


@command(app_replay, ("model", "diff"), figures=True)
def replay(
    line: CommandLine,
    file: Annotated[Path, typer.Argument(help="A record.mcap, or a run's folder.")],
    model: str | None = setting("replay", None, "Decides again. (default: the recorded one)"),
    agent: str | None = setting("replay", None, "FILE.py whose expert is meant by --model expert."),
    diff: bool = setting("replay", False, "Show each tick that was decided otherwise."),
) -> int:
    """Decide recorded observations again, and compare with what was decided then, tick by tick.

    Without a clock, in order, each with the instruction and history that were recorded: twice gives the same. What was
    recorded with record.observations=no cannot be replayed.

    Exit status: 0; 2 a mistake in the command; 8 a tenth of the decisions or more ended in an error.

    Examples:

      rtcontrol replay runs/soak --model expert --diff

      rtcontrol replay runs/soak/record.mcap --model lander --json replay.json

      rtcontrol replay runs/mine --model expert --set replay.agent=my_agent.py
    """
    from rtcontrol.run import assembly
    from rtcontrol.run.replay import recording
    from rtcontrol.run.replay import replay as decide_again

    recorded, console = recording(file), for_people(line.json)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("decisions", total=len(recorded.seen))
        chosen = None if agent is None else assembly.agent(agent)
        result, _ = decide_again(recorded, model, lambda done: bar.update(task, completed=done), chosen)
    if not result["whole"]:
        say(console, f"{file} was cut short: what it holds is replayed.")
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
        f"ERRORS: {result['errors']} of {result['decisions']} decisions ended in one, most often: "
        f"{printable(str(result['commonest_error']))}. Correct it there.",
        file=sys.stderr,
    )
    return ERRED
