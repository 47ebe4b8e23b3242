"""`rtcontrol eval`: models and endpoints on rows, judged."""

from __future__ import annotations

import sys
from collections.abc import Container, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from rtcontrol.cli.figures import JsonFile, Tenths, check_writable, for_people, save, show_table, widened
from rtcontrol.cli.options import BfclPython, group
from rtcontrol.evaluation.options import ModelOptions
from rtcontrol.models.errors import UserError
from rtcontrol.run.options import expanded
from rtcontrol.telemetry.figure_table import Table

if TYPE_CHECKING:
    from rtcontrol.evaluation.rows import EvalRows, RowSource

LOG_WIDTH = 160
RUN = "run"
HELP = """How often a model's calls are right, on a public set or a file of rows.

Examples:

  rtcontrol eval bfcl --model runs/mine --out answers.jsonl --json scores.json      (all single-turn categories)

  rtcontrol eval bfcl:simple_python,multiple --model Qwen/Qwen2.5-0.5B-Instruct

  rtcontrol eval seal-tools=data/seal_tools --model runs/mine --way json      (the same model writes JSON)

  rtcontrol eval rows.jsonl --model lander --html scores.html

  rtcontrol eval rows.jsonl --model decisions:http://10.0.0.5:8000      (or openai:URL#NAME, systemone:URL)

  rtcontrol eval compare heads.json json.json

  rtcontrol eval rescore predictions.jsonl --answers answers.jsonl

  rtcontrol eval oracle bfcl
"""


class EvalGroup(TyperGroup):
    """What is no command is a source: `rtcontrol eval bfcl` is `rtcontrol eval run bfcl`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            return RUN, self.get_command(ctx, RUN), args
        return super().resolve_command(ctx, args)


app = group(cls=EvalGroup)
Given = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        show_default=False,
        help="bfcl, mobile-actions, seal-tools, openfunctions, toolalpaca, each NAME[:PART,...][=PLACE]; or a file.",
    ),
]
Limit = Annotated[int | None, typer.Option(min=1, help="The first so many samples alone.")]
Rule = Annotated[
    str | None,
    typer.Option(help="official, strict, loose or exact. (default: official, a set without it strict, a file exact)"),
]
Wide = Annotated[
    str,
    typer.Option(
        "--overflow",
        help="Tools with over six parameters: merge (the last head has the rest), cut, or drop (their samples are left "
        "out, as SimpleTool's authors do).",
    ),
]
Html = Annotated[Path | None, typer.Option("--html", help="A page with plots.", callback=check_writable)]


@app.callback(help=HELP)
def evaluation() -> None:
    pass


@app.command(RUN)
@expanded
def run(
    source: Given,
    options: ModelOptions,
    out: Annotated[
        Path | None, typer.Option(help="The answers, one a line; a run that was stopped goes on there.")
    ] = None,
    json_file: JsonFile = None,
    html: Html = None,
    rule: Rule = None,
    limit: Limit = None,
    overflow: Wide = "merge",
    bfcl: BfclPython = None,
) -> None:
    """Answer all rows of a source, and judge the answers.

    Example: rtcontrol eval rows.jsonl --model lander
    """
    from rtcontrol.evaluation import rows as evaluating
    from rtcontrol.evaluation.endpoints import answerer
    from rtcontrol.models.metrics.predictions import Predictions

    found = evaluating.read(_source(source, bfcl, limit, overflow))
    by = found.rule(rule)
    made = answerer(options)
    with Predictions({"model": made.told, "data": found.told}, out) as kept:
        if kept.found:
            print(f"going on with what {out} holds: {len(kept.found)} answers", file=sys.stderr)
        try:
            with Tenths("answering", "answered: {done} of {total}") as told:
                evaluating.answer_all(found.rows, made, kept, told)
        except KeyboardInterrupt:
            keeps = (
                f"{out} holds {len(kept.found)} answers; the same command goes on there" if out else "nothing is kept"
            )
            print(f"interrupted: {keeps}", file=sys.stderr)
            raise
    _finish(evaluating.document(found, kept.found, made.told, by, made.tokens), json_file, html)


@app.command("rescore")
def rescore(
    predictions: Annotated[list[Path], typer.Argument(metavar="PREDICTIONS...", show_default=False)],
    answers: Annotated[
        list[Path] | None, typer.Option(help="Of published predictions: their answers, one file for each.")
    ] = None,
    questions: Annotated[
        list[Path] | None, typer.Option(help="And the questions, which say what was shown and called before.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Of answers that `eval --out` wrote: the rows' source.")] = None,
    rule: Rule = None,
    limit: Limit = None,
    overflow: Wide = "merge",
    bfcl: BfclPython = None,
    json_file: JsonFile = None,
    html: Html = None,
) -> None:
    """Judge again what was answered before: by `eval --out` (with --source), or by others (with --answers).

    Examples:

      rtcontrol eval rescore answers.jsonl --source bfcl --rule strict

      rtcontrol eval rescore live_simple.jsonl --answers possible_answer/live_simple.jsonl --questions live_simple.jsonl
    """
    from rtcontrol.evaluation import rows as evaluating
    from rtcontrol.evaluation.row_tables import rescored
    from rtcontrol.models.metrics.predictions import read
    from rtcontrol.models.metrics.published import rescore as judged

    if (source is None) == (not answers):
        raise UserError("What is right was not said, or twice.", "Give --source SOURCE, or --answers FILE.")
    if answers:
        for name, files in (("--answers", answers), ("--questions", questions or answers)):
            if len(files) != len(predictions):
                what = f"{len(predictions)} files of predictions and {len(files)} {name}."
                raise UserError(what, f"Give {name} for each, in the same order.")
        asked: list[Path | None] = list(questions) if questions else [None] * len(answers)
        document = {"rescored": [judged(*files) for files in zip(predictions, answers, asked, strict=True)]}
        _show([rescored(document)], json_file)
        save(json_file, document)
        return
    if len(predictions) > 1:
        raise UserError("With --source one file of answers is judged.", "Give one.")
    assert source is not None
    found = evaluating.read(_source(source, bfcl, limit, overflow))
    head, kept = read(predictions[0])
    _check_all(predictions[0], head.get("data", {}), kept, found)
    _finish(evaluating.document(found, kept, head.get("model", {}), found.rule(rule)), json_file, html)


def _source(given: str, bfcl: Path | None, limit: int | None, overflow: str) -> RowSource:
    from rtcontrol.evaluation.rows import OVERFLOWS, RowSource

    if overflow not in OVERFLOWS:
        raise UserError(f"Unknown --overflow {overflow!r}.", f"Choose {', '.join(OVERFLOWS)}.")
    return RowSource(given, bfcl, limit, OVERFLOWS[overflow])


def _check_all(path: Path, data: dict[str, Any], kept: Container[str], found: EvalRows) -> None:
    """Raises UserError where these are not answers to all of the rows."""
    given, own = found.source.given, found.told["digest"]
    if data.get("digest") != own:
        raise UserError(
            f"{path} answers {data.get('rows')} rows of {data.get('source')} ({data.get('digest')}), not of {given} "
            f"({own}).",
            "Give the source and --limit that it was made with.",
        )
    if missing := [row.id for row in found.rows if row.id not in kept]:
        raise UserError(
            f"{path} lacks {len(missing)} answers to {given}, as to {missing[0]}.",
            "Let the command that began it go on first.",
        )


@app.command("compare")
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", show_default=False)],
    json_file: JsonFile = None,
) -> None:
    """Two evaluations of the same rows (files of --json), sample by sample: the difference with its interval.

    Example: rtcontrol eval compare heads.json json.json
    """
    from rtcontrol.evaluation.row_tables import compared as tables
    from rtcontrol.evaluation.rows import compare as compared
    from rtcontrol.evaluation.rows import load

    document = compared(load(a), load(b), (str(a), str(b)))
    _show(tables(document), json_file)
    save(json_file, document)


@app.command("oracle")
def oracle(source: Given, limit: Limit = None, bfcl: BfclPython = None, json_file: JsonFile = None) -> None:
    """What a model that is always right would score: the rows' own calls through every rule, with all arguments, and
    with those that six heads hold.

    Example: rtcontrol eval oracle bfcl
    """
    from rtcontrol.evaluation.row_tables import oracle as tables
    from rtcontrol.evaluation.rows import RowSource
    from rtcontrol.evaluation.rows import oracle as measured

    document = measured(RowSource(source, bfcl, limit))
    _show(tables(document), json_file)
    save(json_file, document)


@app.command("page")
def page(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files of --json.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Where the page goes.")] = Path("scores.html"),
) -> None:
    """One page with plots of evaluations side by side.

    Example: rtcontrol eval page heads.json json.json --out scores.html
    """
    from rtcontrol.evaluation.rows import load

    _write_page([(path.stem, load(path)) for path in files], out)


def _finish(document: dict[str, Any], json_file: Path | None, html: Path | None) -> None:
    from rtcontrol.evaluation.row_tables import tables

    _show(tables(document), json_file)
    save(json_file, document)
    if html is not None:
        _write_page([(str(document["model"].get("name", "answers")), document)], html)


def _write_page(documents: list[tuple[str, dict[str, Any]]], out: Path) -> None:
    from rtcontrol.evaluation.as_html import render
    from rtcontrol.models.data.row import written_whole

    text = render(documents)
    with written_whole(out) as file:
        file.write(text)
    print(f"Page: {out}", file=sys.stderr)


def _show(tables: Sequence[Table], json_file: Path | None) -> None:
    console = widened(for_people(json_file), LOG_WIDTH)
    for table in tables:
        show_table(console, table, title_justify="left", caption_justify="left")
