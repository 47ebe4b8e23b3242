"""`rtcontrol rows`."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from rtcontrol.models.errors import UserError

app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


@app.command()
def rows(
    file: Annotated[Path, typer.Argument(help="A record.mcap, or a run's folder.")],
    out: Annotated[Path, typer.Option(help="Where the rows go, one JSON object a line.")] = Path("rows.jsonl"),
) -> None:
    """A record as rows: instruction, observation, tools, history and call of each tick whose call acted in time.

    Example: rtcontrol rows runs/soak --out soak.jsonl
    """
    from rtcontrol.record.reading import read_record, record_in
    from rtcontrol.record.rows import rows as rows_of

    record, count, part = record_in(file), 0, out.parent / f"{out.name}.part"
    try:
        with part.open("w", encoding="utf-8") as lines:
            for row in rows_of(read_record(record)):
                lines.write(json.dumps(row, ensure_ascii=False) + "\n")
                count += 1
        if not count:
            what = f"{record} has no observations with a call: no row."
            raise UserError(what, "Record with --record-observations yes, the default.")
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
