"""`rtcontrol bench` of pretrained models: what a pass costs, and whether its calls are Hugging Face's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rtcontrol.bench.options import BenchOptions
from rtcontrol.cli.bench_group import Document
from rtcontrol.cli.figures import Shown
from rtcontrol.run.options import Without


def pretrained(
    shown: Shown,
    options: Annotated[BenchOptions, Without(("model", "dtype"))],
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="Folders (default: Gemma 3 270M and its cuts, of $RTCONTROL_GEMMA)."),
    ] = None,
    dtypes: Annotated[list[str] | None, typer.Option("--dtype", help="fp32, bf16, int8 (default: all here).")] = None,
    decisions: Annotated[int, typer.Option(min=2, help="Decisions by each way, in turns.")] = 100,
) -> Document:
    """One packed pass of a pretrained model by dtype, beside our bare forward of the same tokens and Hugging Face's.

    Without models it adopts the GGUF file that RTCONTROL_GEMMA names, whole and cut to 3, 4, 6 and 9 layers.

    Examples:

      rtcontrol bench pretrained my-st-base --threads 1

      rtcontrol bench pretrained --agent lander --json pretrained.json
    """
    from rtcontrol.bench import everything
    from rtcontrol.bench.pretrained import check_dtypes, dtypes_here

    chosen = check_dtypes(dtypes or dtypes_here())
    return everything.pretrained(options, models or (), decisions, chosen, shown, shown.ready)


def equal(
    shown: Shown,
    options: Annotated[BenchOptions, Without(("agent", "dtype"))],
    decisions: Annotated[int, typer.Option(min=1, help="Drawn decisions.")] = 500,
    dtypes: Annotated[list[str] | None, typer.Option("--dtype", help="Of ours: fp32, bf16, int8.")] = None,
    seed: Annotated[int, typer.Option(help="What tools and prompts are drawn by.")] = 0,
    keep: Annotated[
        Path | None, typer.Option(help="A file of what is judged: the same command goes on from there.")
    ] = None,
) -> Document:
    """Whether packed calls are those of Hugging Face's fp32 model decoded token by token, each head alone.

    Tools and prompts are drawn by a seed, some longer than a model's window. The judge lists legal values as tokens and
    knows nothing of our tries, masks and caches. A call that differs is told with the judge's smallest lead.

    Examples:

      rtcontrol bench equal --model my-st-base --threads 1 --keep equal.jsonl

      rtcontrol bench equal --model my-st-base --decisions 50 --dtype fp32 --dtype bf16
    """
    from rtcontrol.bench import everything
    from rtcontrol.bench.pretrained import check_dtypes

    chosen = check_dtypes(dtypes or ("fp32",))
    return everything.equal(options, decisions, chosen, seed, keep, shown)


BENCHES = (pretrained, equal)
