"""The commands `rtcontrol score`, which runs a model in worlds, and `eval`, which tests a checkpoint on rows."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rtcontrol.cli.command import CommandLine, command
from rtcontrol.cli.figures import STDOUT, check_writable, console_for_tables, group, save
from rtcontrol.models.errors import UserError
from rtcontrol.settings import MAX_HZ, MISSING, setting
from rtcontrol.telemetry.progress import Progress
from rtcontrol_client.console import printable
from rtcontrol_client.shutdown import Shutdown

if TYPE_CHECKING:
    from rtcontrol.models.evaluate.judge import Answer

app_score, app_eval = group(), group()


@command(app_score, ("env", "agent", "models", "seeds"), figures=True)
def score(
    line: CommandLine,
    env: str = setting("score", MISSING, "World: a bundled one (`rtcontrol envs`), or a .py file."),
    agent: str = setting("score", "", "A name, or a .py file with goals and expert. (default: the world's agent)"),
    models: tuple[str, ...] = setting("score", (), "Model; may be repeated. (default: the agent's)", flag="model"),
    seeds: int = setting("score", 10, "Episodes per goal.", ge=1),
    hz: float = setting("score", 0.0, "Ticks per second; 0: the rate of the model's training, or 16.", ge=0, le=MAX_HZ),
    goals: tuple[str, ...] = setting("score", (), "Only these goals, or `all`. (default: the world's list)"),
    phrasings: str | None = setting("score", None, "JSONL file of sentences, or a list of the world: held-out."),
    engine: str = setting("host", "torch", "What runs the model."),
) -> int:
    """Score how well a model reaches goals in a world, in lockstep, on seeds that it was not trained on.

    The model is compared with the expert, no calls, random calls, and itself when it is instructed another goal. With
    score.phrasings, the instructions are sentences of people.

    Examples:

        rtcontrol score --env lander --seeds 20 --json scores.json
        rtcontrol score --env my_world.py --agent my_agent.py --model runs/mine --model chat:URL   # docs/evaluation.md
        rtcontrol score --env paddle --set score.phrasings=list.jsonl   # or the world's list: held-out

    A line of such a file is `{"say": "...", "means": "<canonical instruction>"}`, or `"means": null` for no goal.
    With --json, the raw results of every seed are written. docs/evaluation.md explains the measurement.

    Exit status: 0; 2 an error in the command; 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM (the results so far are shown and
    written).
    """
    from rtcontrol.score.score import Scoring, Settings
    from rtcontrol.score.tables import tables, unfamiliar_notes

    if line.json == STDOUT:
        raise UserError("A score cannot be written to --json -, since it is saved after each step.", "Give a file.")
    scoring = Scoring(Settings(env, agent, models, hz, seeds, goals, phrasings, engine=engine), line.json)
    console = console_for_tables(line.json)
    for warning in scoring.warnings:
        print(printable(warning), file=sys.stderr)
    status = 0
    try:
        with Shutdown(), Progress("score: {done} of {total} episodes") as progress:
            scoring.run(progress)
    except KeyboardInterrupt as interrupted:
        status = getattr(interrupted, "status", 130)
    for table in tables(scoring.document.data):
        note, table.caption = table.caption, None
        console.print(table)
        console.print(note, highlight=False)
        console.print()
    for note in unfamiliar_notes(scoring.document.data):
        console.print(note, highlight=False)
    if status:
        results_note = f"{line.json} has the results so far" if line.json else "no results were saved"
        print(f"interrupted: {results_note}", file=sys.stderr)
    elif line.json is not None:
        print(f"All figures: {line.json}")
    return status


@command(app_eval, ("model",), name="eval", figures=True)
def evaluate(
    line: CommandLine,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            show_default=False,
            help="mobile-actions, seal-tools, openfunctions, toolalpaca, each NAME[:PART,...][=PLACE]; or a file.",
        ),
    ],
    model: str = setting("eval", MISSING, "Bundled name, folder or hub id of a checkpoint."),
    out: Path | None = setting("eval", None, "A new file for the answers, a JSON object per line."),
    limit: int | None = setting("eval", None, "Use only this many samples, from the first.", ge=1),
    engine: str = setting("host", "torch", "What runs the model."),
    device: str | None = setting("eval", None, "cpu, cuda or cuda:NUMBER. (default: a GPU if there is one)"),
    value_tokens: int = setting("eval", 64, "Most tokens of a free value.", ge=1),
) -> None:
    """Count how many of a model's calls are right, on a public data set or a file of rows.

    Examples:

        rtcontrol eval rows.jsonl --model lander
        rtcontrol eval seal-tools=data/seal_tools --model runs/mine --set eval.out=answers.jsonl --json scores.json

    docs/evaluation.md lists the data sets, and explains the scores.
    """
    from rtcontrol.models.decider import DeciderSpec
    from rtcontrol.models.evaluate import rows as evaluating

    if out is not None:
        if out.exists():
            raise UserError(f"The file eval.out={out} already exists.", "Give a new file.")
        check_writable(out)
    read = evaluating.read_eval_rows(source, limit)
    spec = DeciderSpec(model, (), engine, device=device, value_tokens=value_tokens)
    answerer = evaluating.RowAnswerer(spec)
    with ExitStack() as opened, Progress("answered: {done} of {total}") as progress:
        keep: Callable[[Answer], object] = lambda answer: None  # noqa: E731
        if out is not None:
            keep = partial(evaluating.write_answer, opened.enter_context(out.open("w", encoding="utf-8")))
        answers = evaluating.answer_all(read.rows, answerer, keep, progress)
    document = evaluating.build_document(read, answers, answerer.about)
    console = console_for_tables(line.json)
    for table in evaluating.tables(document):
        console.print(table)
    save(line.json, document)
