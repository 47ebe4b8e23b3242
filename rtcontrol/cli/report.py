"""`rtcontrol report`: what runs came to, in five formats, and whether that is good enough."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from rtcontrol.models.errors import UserError
from rtcontrol.models.files import no_link, replace_file
from rtcontrol.run.run import MISSED
from rtcontrol.telemetry import report as reports
from rtcontrol.telemetry.gates import Gate, parse
from rtcontrol.telemetry.recorded import Recorded, begun, load
from rtcontrol_client.console import printable


class Format(StrEnum):
    TERMINAL = "terminal"
    JSON = "json"
    PERFETTO = "perfetto"
    HTML = "html"


EXTRA = {Format.PERFETTO: "perfetto"}  # of the extra `formats`

# Of formats that are files: what they are called beside the record.
FILES = {Format.HTML: ".html", Format.PERFETTO: ".pftrace"}


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or records; of several, a report of all.")],
    format: Annotated[Format, typer.Option(help="html: a page of its own; perfetto: for ui.perfetto.dev.")] = (
        Format.TERMINAL
    ),
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write it here; - is standard output. (default: html, perfetto: a file beside the first record)",
            show_default=False,
        ),
    ] = None,
    gate: Annotated[
        list[str] | None, typer.Option(help="Exit status 3 unless it holds: 'miss_rate<=0.005'. May be repeated.")
    ] = None,
) -> None:
    """What a run came to, from its record alone: also after it was killed.

    Without --format and --out, report.json is made anew beside the record too. One that says more of the run, since
    the disk was full, say, is kept, and its counts are shown and judged. A gate is a field of report.json (dots lead
    inwards), a comparison and a number.

    Examples:

      rtcontrol report runs/lander-20260801T120000

      rtcontrol report runs/a runs/b --format html --out both.html      (side by side)

      rtcontrol report runs/soak --format json --gate 'miss_rate<=0.005' --gate 'latency_ms.p99<=50'

      rtcontrol report runs/soak --format perfetto      (open report.pftrace at https://ui.perfetto.dev)
    """
    gates = [parse(text) for text in gate or ()]
    loaded = load(runs)
    richer = {i: kept for i, run in enumerate(loaded) if (kept := reports.richer(_json(run), run.report)) is not None}
    shown = [replace(run, report=richer[i][0]) if i in richer else run for i, run in enumerate(loaded)]
    begun(shown)
    held = [(run, g, g.holds(run.report)) for run in shown for g in gates]
    if format is Format.TERMINAL:
        _terminal(shown, out)
    else:
        _put(_rendered(format, shown, gates), out or _beside(format, shown[0]))
    for i, run in enumerate(loaded):
        if i in richer:
            print(printable(f"{_json(run)} is kept, and shown here: {richer[i][1]}."), file=sys.stderr)
        elif format is Format.TERMINAL and out is None and (refused := reports.write(run.report, _json(run))):
            raise UserError(f"The report could not be written to {_json(run).parent} ({refused}).", "Free some space.")
    for run, g, holds in held:
        value = g.value(run.report)
        said = "nothing was measured" if value is None else f"{value:g}"
        line = f"{run.name}: {g.text}: {'holds' if holds else 'DOES NOT HOLD'} ({said})"
        print(printable(line), file=sys.stderr)
    if not all(holds for *_, holds in held):
        raise typer.Exit(MISSED)


def _rendered(format: Format, runs: Sequence[Recorded], gates: Sequence[Gate]) -> str | bytes:
    """Each in a module of its own, imported only now. Raises UserError where its package is not installed."""
    if (package := EXTRA.get(format)) and find_spec(package) is None:
        raise UserError(f"--format {format} needs {package}, not installed here.", "pip install 'rtcontrol[formats]'.")
    if format is Format.JSON:
        from rtcontrol.telemetry import as_json

        return as_json.render(runs, gates)
    if format is Format.PERFETTO:
        from rtcontrol.telemetry import as_perfetto

        return as_perfetto.render(runs, gates)
    from rtcontrol.telemetry import as_html

    return as_html.render(runs, gates)


def _terminal(runs: Sequence[Recorded], out: Path | None) -> None:
    from rtcontrol.telemetry import table
    from rtcontrol.telemetry.table import Terminal

    console = Terminal() if out is None else Terminal(file=io.StringIO(), width=120)
    for run in runs:
        table.show(run.report, console)
    if isinstance(console.file, io.StringIO) and out is not None:
        _put(console.file.getvalue(), out)


def _json(run: Recorded) -> Path:
    return _named(run, ".json")


def _beside(format: Format, run: Recorded) -> Path | None:
    return _named(run, FILES[format]) if format in FILES else None


def _named(run: Recorded, suffix: str) -> Path:
    """Beside the record: report.json of record.mcap, report-2.json of record-2.mcap. A link that lies there is taken
    away: a stranger's folder names no file to write to."""
    return no_link(run.record.with_name(run.record.stem.replace("record", "report") + suffix))


def _put(made: str | bytes, out: Path | None) -> None:
    """To the file, or to standard output."""
    packed = made.encode() if isinstance(made, str) else made
    if out is None or str(out) == "-":
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
