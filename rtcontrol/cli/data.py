"""`rtcontrol data`: rows to learn from."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from rtcontrol.cli import data_sets, data_synthesise
from rtcontrol.models.errors import UserError

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False
)


app.command()(data_sets.convert)
app.command()(data_sets.stats)
app.command()(data_sets.show)
app.command()(data_synthesise.synthesise)


@app.callback()
def data() -> None:
    """Rows to learn from: instruction, observation, tools, history and call."""


@app.command("from-recording")
def from_recording(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Records (record.mcap), or runs' folders.", show_default=False),
    ],
    teacher: Annotated[
        bool,
        typer.Option("--teacher", help="Of runs with --backup: what the first decider answered, each for what it saw."),
    ] = False,
    out: Annotated[Path, typer.Option(help="Where the rows go, one JSON object a line.")] = Path("rows.jsonl"),
) -> None:
    """Records as rows: instruction, observation, tools, history and call of each tick whose call acted in time.

    With --teacher, of each answer of the first decider that was sure, however late it came, with the observation that
    it answers: so a small model learns from a large one that was too slow to fly.

    Examples:

      rtcontrol data from-recording runs/soak --out soak.jsonl

      rtcontrol data from-recording runs/monday runs/tuesday/record.mcap --teacher --out teacher.jsonl
    """
    from rtcontrol.telemetry.record_reader import read_record, record_in, rows, teacher_rows

    count, part, record = 0, out.parent / f"{out.name}.part", files[0]
    try:
        with part.open("w", encoding="utf-8") as lines:
            for record in map(record_in, files):
                before = count
                for row in (teacher_rows if teacher else rows)(read_record(record)):
                    lines.write(json.dumps(row, ensure_ascii=False) + "\n")
                    count += 1
                if count == before:
                    what = "sure and legal answers of a first decider" if teacher else "observations with a call"
                    option = "--backup MODEL, a --backup-below that its answers reach and " if teacher else ""
                    remedy = f"Record with {option}--record-observations yes, the default."
                    raise UserError(f"{record} has no {what}: no row.", remedy)
        part.replace(out)
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}).", "Give another --out.") from error
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{record} is no record of a run ({type(error).__name__}: {error}).", "Give a run's record.mcap."
        ) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    print(f"{count} rows: {out}")
