"""The commands of `rtcontrol data`, which make training rows from public data sets, chats, records and templates."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from rtcontrol.cli.command import CommandLine, command
from rtcontrol.cli.figures import check_writable, console_for_tables, count_rows, group, group_options, save, say
from rtcontrol.models.errors import UserError
from rtcontrol.settings import MISSING, setting

if TYPE_CHECKING:
    from rtcontrol.models.data.row import Row
    from rtcontrol.models.data.sample import Tally

OUT = "File for the rows, a JSON object per line."
BALANCE = "Shares of calls with 1 to 6 arguments (or 0 to 6), or `paper`: 18,20,18,17,15,12. (default: as in the data)"
app = group()


@group_options(app)
def data() -> None:
    """Make training rows, each with instruction, observation, tools, history and call."""


@command(app, ("out",), figures=True)
def convert(
    line: CommandLine,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="NAME[:PART,...][=PLACE] or a file of rows. NAME: mobile-actions, seal-tools, openfunctions, "
            "toolalpaca, xlam, openai (chats with tools, JSONL). PLACE: file, folder or hub id.",
            show_default=False,
        ),
    ],
    out: Path = setting("data", MISSING, OUT),
    purpose: Literal["train", "eval"] = setting("data", "train", "eval: keep order and all samples.", leaf="for"),
    balance: str | None = setting("data", None, BALANCE),
    seed: int = setting("data", 0, "Seed of all sampling."),
) -> None:
    """Convert public data sets to rows: one row per call, with the previous calls in the history.

    Tools get at most six argument heads. Samples that cannot be converted are counted by reason, each with an example.

    Examples:

        rtcontrol data convert xlam --set data.balance=paper --out train.jsonl
        rtcontrol data convert seal-tools=~/Seal-Tools_Dataset openai=my_chats.jsonl --out train.jsonl
    """
    from rtcontrol.models.data import convert as converting
    from rtcontrol.models.data import sets
    from rtcontrol.models.data.row import write_rows
    from rtcontrol.models.data.sample import Tally

    check_writable(out)
    if purpose == "eval" and balance:
        raise UserError("data.balance can only be used for training.", "Leave it out with data.for=eval.")
    shares = converting.parse_shares(balance) if balance else None
    tally, samples = Tally(), chain.from_iterable(map(sets.read_source, sources))
    rows: Iterable[Row] = count_rows(converting.convert_rows(samples, tally, purpose, seed))
    if shares is not None:
        rows = converting.balance_rows(list(rows), shares, seed, tally)
    count, console = write_rows(out, _require_rows(rows, tally)), console_for_tables(line.json)
    _show_tally(console, tally)
    say(console, f"{count} rows: {out}")
    save(line.json, {"out": str(out), "rows_written": count, **tally.to_dict()})


@command(app, ("out",), name="from-recording")
def from_recording(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Records (record.mcap), or runs' folders.", show_default=False),
    ],
    out: Path = setting("data", Path("rows.jsonl"), f"{OUT} (default: rows.jsonl)"),
) -> None:
    """Convert records of runs to rows.

    Example:

        rtcontrol data from-recording runs/monday runs/tuesday/record.mcap --out week.jsonl

    Each tick whose call was executed in time becomes a row.
    """
    from rtcontrol.models.data.row import atomic_writer
    from rtcontrol.telemetry.record_reader import read_record, record_path, training_rows

    count, record = 0, files[0]
    try:
        with atomic_writer(out) as lines:
            for record in map(record_path, files):
                before = count
                for row in training_rows(read_record(record)):
                    lines.write(json.dumps(row, ensure_ascii=False) + "\n")
                    count += 1
                if count == before:
                    hint = "Record a run with record.observations=yes (the default)."
                    raise UserError(f"{record} has no observations with a call, so it gives no rows.", hint)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{record} is not a record of a run ({type(error).__name__}: {error}).", "Give a run's record.mcap."
        ) from error
    print(f"{count} rows: {out}")


@command(app, ("out",), figures=True)
def synthesise(
    line: CommandLine,
    tools: Annotated[
        Path, typer.Argument(help="A .json file of tools, or a .jsonl file of rows with tools.", show_default=False)
    ],
    rows: int = setting("data", 1000, "Number of rows to make.", ge=1),
    out: Path = setting("data", MISSING, OUT),
    balance: str | None = setting("data", None, BALANCE),
    seed: int = setting("data", 0, "Seed of all sampling."),
) -> None:
    """Generate rows for given tools from sentence templates and random values. Rejected rows are counted by reason.

    Example: `rtcontrol data synthesise tools.json --set data.rows=2000 --out synthetic.jsonl`
    """
    from rtcontrol.models.data.convert import parse_shares
    from rtcontrol.models.data.row import write_rows
    from rtcontrol.models.data.sample import Tally
    from rtcontrol.models.data.synthesis import random_rows, read_tools

    check_writable(out)
    sets, tally, console = read_tools(tools), Tally(), console_for_tables(line.json)
    shares = parse_shares(balance or "paper")
    count = write_rows(out, count_rows(random_rows(sets, rows, seed, tally, shares)))
    _show_tally(console, tally)
    say(console, f"{count} rows: {out}")
    save(line.json, {"out": str(out), "rows_written": count, **tally.to_dict()})


def _require_rows(rows: Iterable[Row], tally: Tally) -> Iterator[Row]:
    """Yield the rows. Raises UserError before anything is written if there are no rows."""
    if (first := next(iterator := iter(rows), None)) is None:
        most = [f"{n} for {why}, as {tally.places[name, why][0]}" for (name, why), n in tally.dropped.most_common(1)]
        hint = f"Most often dropped: {most[0]}." if most else "Give another SOURCE."
        raise UserError("The source gives no rows.", hint)
    yield first
    yield from iterator


def _show_tally(console: Console, tally: Tally) -> None:
    for source in {**tally.samples, **tally.rows}:
        say(console, f"{source}: {tally.samples[source]} samples, {tally.rows[source]} rows")
    for title, counts in (("dropped", tally.dropped), ("kept with a note", tally.noted)):
        for (source, reason), count in counts.most_common():
            say(console, f"{title}: {count} of {source}, {reason}; the first: {tally.places[source, reason][0]}")
