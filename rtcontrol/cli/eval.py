"""`rtcontrol eval`: a model or an endpoint on rows, judged."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rtcontrol.cli.figures import Device, JsonFile, Tenths, for_people, save, show_table, widened

LOG_WIDTH = 160
HELP = """How often a model's calls are right, on a public set or a file of rows (docs/eval.md).

Examples:

  rtcontrol eval rows.jsonl --model lander

  rtcontrol eval seal-tools=data/seal_tools --model runs/mine --out answers.jsonl --json scores.json

  rtcontrol eval rows.jsonl --model decisions:http://10.0.0.5:8000      (or systemone:URL, chat:URL#NAME)
"""
app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


@app.command(help=HELP)
def _eval(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            show_default=False,
            help="mobile-actions, seal-tools, openfunctions, toolalpaca, each NAME[:PART,...][=PLACE]; or a file.",
        ),
    ],
    model: Annotated[
        str, typer.Option(help="A checkpoint, as for run; or decisions:URL, systemone:URL, chat:URL#NAME.")
    ],
    engine: Annotated[str, typer.Option(help="What runs the model.")] = "torch",
    dtype: Annotated[str, typer.Option(help="auto, fp32 or bf16.")] = "auto",
    device: Device = None,
    threads: Annotated[int | None, typer.Option(help="Of torch, on a CPU.")] = None,
    value_tokens: Annotated[int, typer.Option(min=1, help="A free value has at most so many tokens.")] = 64,
    out: Annotated[
        Path | None, typer.Option(help="The answers, one a line; the same command resumes a stopped run there.")
    ] = None,
    json_file: JsonFile = None,
    rule: Annotated[
        str | None, typer.Option(help="strict or exact. (default: strict for a public set, exact for a file)")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The first so many samples alone.")] = None,
) -> None:
    from rtcontrol.evaluation import rows as evaluating
    from rtcontrol.evaluation.answerers import HeadsAnswerer, RemoteAnswerer, is_remote
    from rtcontrol.evaluation.predictions import Predictions

    found = evaluating.read(source, limit)
    by = found.rule(rule)
    made = (
        RemoteAnswerer(model)
        if is_remote(model)
        else HeadsAnswerer(model, engine, dtype, device, threads, value_tokens)
    )
    with Predictions({"model": made.told, "data": found.fingerprint}, out) as kept:
        if kept.found:
            print(f"going on with what {out} holds: {len(kept.found)} answers", file=sys.stderr)
        try:
            with Tenths("answering", "answered: {done} of {total}") as progress:
                evaluating.answer_all(found.rows, made, kept, progress)
        except KeyboardInterrupt:
            keeps = (
                f"{out} holds {len(kept.found)} answers; the same command goes on there" if out else "nothing is kept"
            )
            print(f"interrupted: {keeps}", file=sys.stderr)
            raise
    document = evaluating.document(found, kept.found, made.told, by)
    console = widened(for_people(json_file), LOG_WIDTH)
    for table in evaluating.tables(document):
        show_table(console, table, title_justify="left", caption_justify="left")
    save(json_file, document)
