"""`rtcontrol score`: a model in worlds. `rtcontrol eval`: a checkpoint on rows."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rtcontrol.cli.figures import (
    STDOUT,
    Device,
    JsonFile,
    Tenths,
    check_writable,
    for_people,
    save,
    widened,
)
from rtcontrol.loop.config import MAX_HZ, MIN_HZ
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.table import Terminal
from rtcontrol_client.console import printable
from rtcontrol_client.shutdown import Shutdown

if TYPE_CHECKING:
    from rtcontrol.models.evaluate.judge import Answer

LOG_WIDTH = 160


def score(
    env: Annotated[str, typer.Option(help="World: a bundled one (`rtcontrol envs`), or a .py file.")],
    agent: Annotated[
        str, typer.Option(help="Agent: a name, or a .py file with goals and expert. (default: the world's)")
    ] = "",
    model: Annotated[
        list[str] | None,
        typer.Option(help="Model or endpoint; may be repeated. (default: the agent's, if it has one)"),
    ] = None,
    hz: Annotated[
        float | None, typer.Option(min=MIN_HZ, max=MAX_HZ, help="Ticks a second. (default: the model's own, or 16)")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Episodes a goal.")] = 10,
    goal: Annotated[
        list[str] | None,
        typer.Option(help="Score this goal alone (or `all` of your own); may be repeated. (default: the world's list)"),
    ] = None,
    phrasings: Annotated[
        str | None,
        typer.Option(
            help="JSONL file of what people say, or the world's own list: held-out (of your own world: unseen)."
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="What runs the model.")] = "torch",
    json_file: JsonFile = None,
) -> None:
    """Fly a model in lockstep on seeds that it was not trained on: goal by goal beside expert, no-op and random, and
    told another goal than the one judged by; with --phrasings, by what people say.

    Examples:

      rtcontrol score --env lander --seeds 20 --json scores.json

      rtcontrol score --env road --model runs/mine --model driver

      rtcontrol score --env my_world.py --agent my_agent.py --model runs/mine      (docs/scores.md)

      rtcontrol score --env paddle --phrasings list.jsonl      (or the world's list: held-out)

      rtcontrol score --env lander --model decisions:https://HOST/v1#NAME      (or systemone:URL, or a chat model)

    A line of a list is `{"say": "...", "means": "<canonical instruction>"}`, with null for what means nothing. With
    --json all is kept raw, seed by seed. The page docs/scores.md says what is measured, and how.

    Exit status: 0; 2 mistake in what was given; 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM (what was measured is shown and
    kept).
    """
    from rtcontrol.score.score import Scoring, Settings
    from rtcontrol.score.tables import tables

    if json_file == STDOUT:
        raise UserError("--json - cannot hold a score, which is kept while it grows.", "Name a file.")
    settings = Settings(
        env,
        agent,
        tuple(model or ()),
        hz or 0.0,
        seeds,
        tuple(goal or ()),
        phrasings,
        engine=engine,
    )
    scoring = Scoring(settings, json_file)
    console = widened(Terminal(), LOG_WIDTH)
    for warning in scoring.warnings:
        print(printable(warning), file=sys.stderr)
    status = 0
    try:
        with Shutdown(), Tenths("flying", "score: {done} of {total} episodes") as progress:
            scoring.run(progress)
    except KeyboardInterrupt as interrupted:
        status = getattr(interrupted, "status", 130)
    for table in tables(scoring.document.data):
        note, table.caption = table.caption, None
        console.print(table)
        console.print(note, highlight=False)
        console.print()
    if status:
        print(
            f"interrupted: {f'{json_file} holds what was measured' if json_file else 'nothing is kept'}",
            file=sys.stderr,
        )
    elif json_file is not None:
        print(f"All figures: {json_file}")
    raise typer.Exit(status)


def evaluate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            show_default=False,
            help="mobile-actions, seal-tools, openfunctions, toolalpaca, each NAME[:PART,...][=PLACE]; or a file.",
        ),
    ],
    model: Annotated[str, typer.Option(help="Bundled name, folder or hub id of a checkpoint.")],
    engine: Annotated[str, typer.Option(help="What runs the model.")] = "torch",
    dtype: Annotated[str, typer.Option(help="auto, fp32 or bf16.")] = "auto",
    device: Device = None,
    threads: Annotated[int | None, typer.Option(help="Of torch, on a CPU.")] = None,
    value_tokens: Annotated[int, typer.Option(min=1, help="A free value has at most so many tokens.")] = 64,
    out: Annotated[
        Path | None, typer.Option(help="A new file for the answers, one a line.", callback=check_writable)
    ] = None,
    json_file: JsonFile = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The first so many samples alone.")] = None,
) -> None:
    """How often a model's calls are right, on a public set or a file of rows (docs/eval.md).

    Examples:

      rtcontrol eval rows.jsonl --model lander

      rtcontrol eval seal-tools=data/seal_tools --model runs/mine --out answers.jsonl --json scores.json
    """
    from rtcontrol.models.decider import DeciderSpec
    from rtcontrol.models.evaluate import rows as evaluating

    if out is not None and out.exists():
        raise UserError(f"--out {out} is there already.", "Name a new file.")
    read = evaluating.read(source, limit)
    spec = DeciderSpec(model, (), engine, dtype, device, threads, value_tokens=value_tokens)
    answerer = evaluating.Answerer(spec)
    with ExitStack() as opened, Tenths("answering", "answered: {done} of {total}") as progress:
        keep: Callable[[Answer], object] = lambda answer: None  # noqa: E731
        if out is not None:
            keep = partial(evaluating.write_answer, opened.enter_context(out.open("w", encoding="utf-8")))
        answers = evaluating.answer_all(read.rows, answerer, keep, progress)
    document = evaluating.document(read, answers, answerer.about)
    console = widened(for_people(json_file), LOG_WIDTH)
    for table in evaluating.tables(document):
        console.print(table)
    save(json_file, document)
