"""`rtcontrol bench`: the command line of the benchmarks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from rtcontrol.models.errors import UserError

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Measure on this machine, side by side with the baselines."
)

NAMES = {
    "bare_forward": "bare forward (floor)",
    "one_pass": "one packed pass",
    "token_by_token": "token by token",
    "token_by_token_skip_forced": "token by token, forced tokens skipped",
    "hf_json": "Hugging Face generate, JSON call (tokens forced)",
}


@app.callback()
def bench() -> None:
    """Measure on this machine, side by side with the baselines."""


@app.command()
def decide(
    model: Annotated[str, typer.Option(help="Bundled name or checkpoint folder.")] = "lander",
    decisions: Annotated[int, typer.Option(min=20, help="Decisions to measure for each schema.")] = 300,
    dtype: Annotated[str, typer.Option(help="auto, fp32 or bf16.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads of torch (default: torch's own).")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write raw milliseconds and ratios here.")] = None,
) -> None:
    """One-pass decisions against their floor, token-by-token decoding and a generated JSON call.

    Examples:

      rtcontrol bench decide

      rtcontrol bench decide --decisions 1000 --json decide.json
    """
    from rtcontrol.bench.decide import WARM_UP, bench_schema
    from rtcontrol.bench.situations import observations, schemas
    from rtcontrol.machine import describe

    check_writable(json_file)
    texts = observations(decisions + WARM_UP)
    results: dict[str, dict[str, Any]] = {}
    console = Console()
    with Progress(console=console, transient=True) as bar:
        for name, tools in schemas().items():
            task = bar.add_task(f"schema {name}", total=len(texts))
            step = lambda n, task=task: bar.advance(task, n)  # noqa: E731
            results[name] = bench_schema(model, tools, texts, 5, step, dtype=dtype, threads=threads)
    for name, result in results.items():
        console.print(_table(name, result))
    if json_file:
        document = {**results["bundled"], "long": results["long"], "machine": describe()}
        document["ratios"] = {**results["bundled"]["ratios"], "long": results["long"]["ratios"]}
        json_file.write_text(json.dumps(document, indent=1) + "\n")
        console.print(f"Raw milliseconds: {json_file}")


@app.command()
def train(
    rows: Annotated[int, typer.Option(min=32, help="Training samples to run each way.")] = 64,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here.")] = None,
) -> None:
    """Packed-tree training against one sequence a head (length-sorted, at its best batch size): samples a second.

    Prompts of 300 tokens, eight heads, values of 1 to 8 tokens, random ids, the bundled model's shape.

    Example: rtcontrol bench train --rows 64
    """
    from rtcontrol.bench.train import compare
    from rtcontrol.machine import describe
    from rtcontrol.models.train.scratch import ModelShape

    check_writable(json_file)
    console = Console()
    with console.status("training") as status:
        found = compare(rows, ModelShape(), lambda what: status.update(what))
    table = Table("way", "samples/s", title=f"{rows} samples each way, forward and backward")
    for way, speed in found["samples_per_s"].items():
        table.add_row(way, f"{speed:.2f}")
    console.print(table)
    for name, ratio in found["ratios"].items():
        console.print(f"{name}: {ratio:.2f}")
    if json_file:
        json_file.write_text(json.dumps({**found, "machine": describe()}, indent=1) + "\n")


def check_writable(path: Path | None) -> None:
    """Refuse, before anything is measured, a file that could not be written after."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}).", "Give another path.") from None


def _table(name: str, result: dict[str, Any]) -> Table:
    tokens = result["tokens"]
    table = Table(
        title=f"schema {name}: {result['decisions']} decisions, {result['info']['dtype']}, "
        f"{tokens['uncached_prompt_tokens']:.0f} uncached prompt tokens, {tokens['packed_tokens']:.0f} packed in all",
        caption=f"all ST ways gave the same call in {result['agreement']:.1%} of decisions",
    )
    for column in ("way", "passes", "p50 ms", "p90 ms", "p99 ms", "times one pass"):
        table.add_column(column, justify="left" if column == "way" else "right")
    passes = {
        "bare_forward": 1.0,
        "one_pass": tokens["forward_passes"],
        "token_by_token": tokens["token_by_token_passes"],
        "token_by_token_skip_forced": tokens["token_by_token_skip_forced_passes"],
        "hf_json": tokens["json_tokens"],
    }
    one = result["ms"]["one_pass"]["p50"]
    for way, ms in result["ms"].items():
        figures = [f"{ms[p]:.2f}" for p in ("p50", "p90", "p99")]
        table.add_row(NAMES[way], f"{passes[way]:.0f}", *figures, f"{ms['p50'] / one:.2f}")
    return table
