"""`rtcontrol data`: rows to learn from: public sets and records as rows, and what rows hold."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from rtcontrol.cli import data_synthesise
from rtcontrol.cli.figures import JsonFile, check_writable, count_rows, for_people, save, say
from rtcontrol.cli.options import BfclPython, group
from rtcontrol.models.errors import UserError
from rtcontrol_client.console import printable
from rtcontrol_client.shutdown import unicode

if TYPE_CHECKING:
    from rtcontrol.models.data.row import DataRow
    from rtcontrol.models.data.stats import Stats, Tally

app = group()
Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="NAME[:PART,...][=PLACE] or a file of rows. NAME: bfcl, mobile-actions, seal-tools, openfunctions, "
        "toolalpaca, xlam, openai (chats with tools, JSONL). PLACE: file, folder or hub id.",
        show_default=False,
    ),
]
Optionals = Annotated[
    Literal["omit", "give"], typer.Option(help="BFCL's gold values that may be left out: omit or give.")
]
Purpose = Annotated[
    Literal["train", "eval"],
    typer.Option(
        "--for", help="train: calls shuffled, wrong rows dropped. eval: as given, all that can be shown kept."
    ),
]
Overflow = Annotated[
    Literal["merge", "cut", "drop"],
    typer.Option(help="Tools of more than six parameters: merge the rest in head 6, cut it, or drop their samples."),
]
Seed = Annotated[int, typer.Option(help="Draws whatever is drawn.")]


@app.callback()
def data() -> None:
    """Rows to learn from: instruction, observation, tools, history and call."""


@app.command()
def convert(
    sources: Sources,
    out: Annotated[Path, typer.Option(help="Where the rows go, one JSON object a line.", callback=check_writable)],
    purpose: Purpose = "train",
    overflow: Overflow = "merge",
    balance: Annotated[
        str | None,
        typer.Option(help="Shares of calls with 1 to 6 arguments (or 0 to 6), or `paper`: 18,20,18,17,15,12."),
    ] = None,
    balance_by: Annotated[
        Literal["drop", "weight"], typer.Option(help="Leave rows out (drop), or set their weights (weight).")
    ] = "drop",
    pass_through: Annotated[
        int, typer.Option(min=0, help="So many rows more of functions that hand a text on word for word.")
    ] = 0,
    optionals: Optionals = "omit",
    python: BfclPython = None,
    seed: Seed = 0,
    tool_sets: Annotated[
        bool, typer.Option("--tool-sets", help="Write each set of tools once; its rows name it by its hash.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Public sets as rows: each call a row, with the calls before it in its history; tools in head order, at most six
    argument heads. Whatever gives no row is counted, with the reason and its first places.

    Examples:

      rtcontrol data convert xlam --balance paper --pass-through 2000 --out train.jsonl

      rtcontrol data convert bfcl --python ~/bfcl/bin/python --for eval --out bfcl.jsonl      (docs/data.md)

      rtcontrol data convert bfcl:live_multiple --for eval --overflow cut --out live.jsonl --json counts.json

      rtcontrol data convert seal-tools=~/Seal-Tools_Dataset openai=my_chats.jsonl --out train.jsonl
    """
    from rtcontrol.models.data import convert as converting
    from rtcontrol.models.data.canonical import rows as passed
    from rtcontrol.models.data.row import write_rows
    from rtcontrol.models.data.stats import PAPER, Tally, balanced, shares_of

    if purpose == "eval" and (balance or pass_through):
        raise UserError("--balance and --pass-through are for training.", "Leave them out with --for eval.")
    shares = shares_of(PAPER if balance == "paper" else balance) if balance else None
    options, tally = converting.ConvertOptions(purpose, overflow, seed), Tally()
    rows: Iterable[DataRow] = count_rows(_read(sources, options, tally, optionals, python))
    if pass_through:
        taught = list(rows)
        if not taught:
            raise UserError("No row: pass-through rows take the tools and queries of others.", _why(tally))
        rows = [*taught, *converting.rows(passed(pass_through, taught, seed), options, tally)]
    if shares is not None:
        rows = balanced(list(rows), shares, balance_by, seed, tally)
    count, console = write_rows(out, _some(rows, tally), tool_sets), for_people(json_file)
    _show_tally(console, tally)
    say(console, f"{count} rows: {out}")
    save(json_file, {"out": str(out), "rows_written": count, **tally.to_dict()})


@app.command()
def stats(
    sources: Sources,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer.json or its folder: counts tokens, too.", show_default=False)
    ] = None,
    overflow: Annotated[
        Literal["merge", "cut"], typer.Option(help="Whose heads: the sixth merged, or the call's first six arguments.")
    ] = "merge",
    compact: Annotated[bool, typer.Option("--compact", help="Heads write JSON without spaces.")] = False,
    optionals: Optionals = "omit",
    python: BfclPython = None,
    json_file: JsonFile = None,
) -> None:
    """What rows hold: of each sample the most parameters of any tool shown, how many arguments calls have, and with
    --tokenizer the tokens of a call as JSON, of its longest head, and what lies between (from the gold calls).

    Examples:

      rtcontrol data stats train.jsonl

      rtcontrol data stats bfcl openfunctions=openfunctions_v1 --tokenizer Qwen2.5-0.5B --overflow cut --json stats.json
    """
    from rtcontrol.models.data import convert as converting
    from rtcontrol.models.data.stats import StatsOptions, Tally, Tokens
    from rtcontrol.models.data.stats import stats as counted

    tokens, tally = None if tokenizer is None else Tokens(tokenizer), Tally()
    rows = count_rows(_read(sources, converting.ConvertOptions("eval"), tally, optionals, python))
    each, together = counted(_some(rows, tally), StatsOptions(tokens, overflow, compact))
    shown = {**each, "all": together} if len(each) > 1 else each
    console = for_people(json_file)
    _show_counts(console, shown)
    if tokens is not None:
        _show_tokens(console, shown)
    _show_tally(console, tally, rows=False)
    figures = {"sources": {name: one.to_dict() for name, one in each.items()}, "all": together.to_dict()}
    save(json_file, {**figures, "dropped": tally.to_dict()["dropped"]})


@app.command()
def show(
    sources: Sources,
    count: Annotated[int, typer.Option("-n", min=1, help="How many rows.")] = 3,
    skip: Annotated[int, typer.Option(min=0, help="So many first are passed over.")] = 0,
    sample: Annotated[
        str | None, typer.Option(help="Those of one sample alone, by its id.", show_default=False)
    ] = None,
    purpose: Purpose = "eval",
    overflow: Overflow = "merge",
    python: BfclPython = None,
    as_json: Annotated[bool, typer.Option("--json", help="As they are written, one JSON object a line.")] = False,
) -> None:
    """Rows to look at: what is asked and known, the tools shown, the calls before, the call, and what each head writes.

    Examples:

      rtcontrol data show train.jsonl -n 5

      rtcontrol data show bfcl:parallel --sample parallel_3

      rtcontrol data show train.jsonl --skip 1000 -n 1 --json
    """
    from rtcontrol.models.data import convert as converting
    from rtcontrol.models.data.stats import Tally

    tally = Tally()
    rows = _read(sources, converting.ConvertOptions(purpose, overflow), tally, "omit", python)
    wanted = (row for row in rows if sample is None or row.sample == sample)
    found = list(islice(wanted, skip, skip + count))
    if not found:
        what = f"there is no sample {sample!r}" if sample is not None else f"there are no {skip + 1} of them"
        raise UserError(f"No row to show: {what}.", _why(tally))
    for row in found:
        print(json.dumps(row.to_dict(), ensure_ascii=not unicode(sys.stdout)) if as_json else _shown(row))


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
    from rtcontrol.models.data.row import written_whole
    from rtcontrol.telemetry.record_reader import read_record, record_in, rows, teacher_rows

    count, record = 0, files[0]
    try:
        with written_whole(out) as lines:
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
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{record} is no record of a run ({type(error).__name__}: {error}).", "Give a run's record.mcap."
        ) from error
    print(f"{count} rows: {out}")


app.command()(data_synthesise.synthesise)


def _read(
    sources: list[str], options: Any, tally: Tally, optionals: Literal["omit", "give"], python: Path | None
) -> Iterator[DataRow]:
    from itertools import chain

    from rtcontrol.models.data import convert as converting
    from rtcontrol.models.data.sources import registry

    found = [registry.read(one, registry.SourceOptions(python, optionals)) for one in sources]
    return converting.rows(chain.from_iterable(found), options, tally)


def _some(rows: Iterable[DataRow], tally: Tally) -> Iterator[DataRow]:
    """The rows; that there is none is told before anything is written."""
    empty = True
    for row in rows:
        empty = False
        yield row
    if empty:
        raise UserError("There is no row.", _why(tally))


def _why(tally: Tally) -> str:
    if not tally.dropped:
        return "Give another SOURCE."
    (source, reason), count = tally.dropped.most_common(1)[0]
    return f"Dropped most: {count} for {reason}, as {tally.places[source, reason][0]}."


def _show_tally(console: Console, tally: Tally, rows: bool = True) -> None:
    if rows:
        table = Table("source", "samples", "rows", title="Read")
        for source in {**tally.samples, **tally.rows}:
            table.add_row(source, str(tally.samples[source]), str(tally.rows[source]))
        console.print(table)
    for title, counts in (("Dropped", tally.dropped), ("Kept, with a word", tally.noted)):
        if counts:
            table = Table("count", "reason", "source", "the first", title=title)
            for (source, reason), count in counts.most_common():
                table.add_row(str(count), reason, source, tally.places[source, reason][0])
            console.print(table)


def _show_counts(console: Console, stats: dict[str, Stats]) -> None:
    table = Table("source", "samples", "rows", "over 6", "max", title="Parameters, and arguments of calls in %")
    for count in ("0", "1", "2", "3", "4", "5", "6", "more"):
        table.add_column(count, justify="right")
    for name, one in stats.items():
        found, total = one.to_dict(), one.arguments.total() or 1
        shares = [one.arguments[n] for n in range(7)]
        shares.append(one.arguments.total() - sum(shares))
        numbers = (found["samples"], found["rows"], found["parameters"]["over_six"], found["parameters"]["max"])
        table.add_row(name, *map(str, numbers), *(f"{100 * share / total:.1f}" for share in shares))
    console.print(table)


def _show_tokens(console: Console, stats: dict[str, Stats]) -> None:
    title = "Tokens of a call: mean / median / P90, ratios of these"
    columns = ("source", "calls", "JSON", "in <tool_call>", "longest head", "ratio", "ratio in <tool_call>")
    table = Table(*columns, "function longest", title=title)
    for name, one in stats.items():
        if (found := one.to_dict().get("tokens")) is None:
            continue
        counts = (_three(found[key], 1) for key in ("json", "json_wrapped", "longest_head"))
        ratios = (_three(found[key], 2) for key in ("compression", "compression_wrapped"))
        longest = f"{found['function_head_longest']:.0%}"
        table.add_row(name, str(len(one.heads)), *counts, *ratios, longest)
    console.print(table)
    table = Table("source", "tools", "longest", "the rest", "longest", title="Tokens of a prompt: mean / median / P90")
    for name, one in stats.items():
        if (found := one.to_dict().get("tokens")) is not None:
            parts = (found["tools"], found["instruction_observation_history"])
            table.add_row(name, *(text for part in parts for text in (_three(part, 0), f"{part['max']:.0f}")))
    console.print(table)


def _three(found: dict[str, float], digits: int) -> str:
    return " / ".join(f"{found[key]:.{digits}f}" for key in ("mean", "p50", "p90"))


def _shown(row: DataRow) -> str:
    from rtcontrol.models.data.stats import head_texts
    from rtcontrol.models.schema.tool_schema import ToolSchema

    tools = [ToolSchema.from_openai(tool) for tool in row.tools]
    lines = [f"{row.id}  ({row.source})", f"  instruction  {row.instruction}"]
    lines += [f"  observation  {row.observation}"] if row.observation else []
    for tool in tools:
        names = (p.name if p.required else f"[{p.name}]" for p in tool.parameters)
        lines.append(f"  tool         {tool.name}({', '.join(names)})")
    lines += [f"  history      {text}" for text in row.history]
    lines.append(f"  call         {row.call.text() if row.call else 'null: the call in force stays'}")
    if row.call is not None:
        called = next(tool for tool in tools if tool.name == row.call.name)
        lines.append(f"  heads        {' | '.join(head_texts(row.call, called, compact=True))}")
    lines += [f"  weight       {row.weight}"] if row.weight != 1.0 else []
    return "\n".join(map(printable, lines))
