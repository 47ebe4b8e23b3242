"""`rtcontrol models train` and `sweep`: a pretrained model becomes a controller."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from rtcontrol.cli.figures import JsonFile, for_people, save

Rows = Annotated[list[Path], typer.Option("--rows", help="JSONL rows; may stand several times.", show_default=False)]


def train(
    base: Annotated[
        str, typer.Option(help="Bundled name, folder or hub id, with ST tokens or without.", show_default=False)
    ],
    rows: Rows,
    out: Annotated[
        Path, typer.Option(help="The run's folder; one that was stopped goes on there.", show_default=False)
    ],
    preset: Annotated[str, typer.Option(help="paper (LoRA of rank 512) or domain (rank 64).")] = "paper",
    config: Annotated[Path | None, typer.Option(help="A TOML or JSON file of settings, over the preset's.")] = None,
    held_out: Annotated[
        list[Path] | None, typer.Option(help="JSONL rows to judge the result by; may stand several times.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps, in place of epochs.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Times that all rows are seen. (default: 3)")] = None,
    layout: Annotated[
        str | None, typer.Option(help="packed (trees) or separate (the paper's sequences). (default: packed)")
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Of LoRA; alpha becomes twice that. (default: the preset's)")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens beyond which a row is left out. (default: 2048)")] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or cuda:NUMBER. (default: a GPU where there is one)")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="fp32, bf16, or auto. (default: bf16)")] = None,
    seed: Annotated[int | None, typer.Option(help="Of LoRA's start, dropout and the rows' order. (default: 0)")] = None,
    drop_bad: Annotated[
        bool, typer.Option("--drop-bad", help="Leave out rows that cannot be represented, and count them.")
    ] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write its event files, too.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Fine-tune a pretrained model (Qwen2, 2.5, 3, Llama) to the ST format by the paper's recipe; docs/finetune.md.

    Gives a merged checkpoint for our engines, vLLM and SimpleTool's server, and its adapter. The same command again
    goes on where it was stopped. Needs `pip install 'rtcontrol[train]'`.

    Examples:

      rtcontrol models train --base Qwen/Qwen2.5-0.5B-Instruct --rows xlam.jsonl --out runs/st-qwen

      rtcontrol models train --base runs/st-qwen/model --rows mobile.jsonl --preset domain --out runs/st-mobile

      torchrun --nproc-per-node 4 -m rtcontrol models train --base Qwen/Qwen3-4B --rows xlam.jsonl --out runs/st-4b
    """
    from rtcontrol.models.checkpoint.checkpoint import resolve
    from rtcontrol.models.train.finetune.config import check_extras, recipe

    given = {
        "steps": steps, "epochs": epochs, "layout": layout, "rank": rank, "alpha": rank and 2 * rank, "length": length,
        "device": device, "dtype": dtype, "seed": seed, "tensorboard": tensorboard or None,
    }  # fmt: skip
    made = recipe(preset, config, **given)
    check_extras(made.tensorboard)
    resolve(base)  # what is not there is told before all else is loaded, which takes seconds

    from rtcontrol.models.train.finetune.run import Job, finetune, rows_of
    from rtcontrol.models.train.finetune.stopping import TrainingStopped

    console = for_people(json_file)

    def told(line: dict[str, Any]) -> None:
        if "resumed" in line:
            console.print(f"Goes on from step {line['resumed']} of {line['steps']}.", highlight=False)
            return
        console.print(f"step {line['step']}/{line['steps']}  loss {line['loss']:.4f}", highlight=False)

    try:
        outcome = finetune(Job(base, rows_of(rows), out, made, tuple(held_out or ()), drop_bad), told)
    except TrainingStopped as stopped:
        print(f"Stopped after step {stopped.steps}, which is kept: the same command goes on.", file=sys.stderr)
        raise
    if not outcome.written:
        return
    for reason, count in outcome.seen.dropped.items():
        console.print(f"left out: {count} rows, {reason}", soft_wrap=True, markup=False)
    if outcome.held_out is not None:
        console.print(f"held out: {outcome.held_out['rows_right']:.4f} of {outcome.held_out['rows']} rows right")
    save(json_file, outcome.to_dict())
    console.print(f"Checkpoint: {outcome.model} ({outcome.steps} steps on {outcome.groups} rows)", soft_wrap=True)


def sweep(
    config: Annotated[Path, typer.Argument(help="A TOML or JSON file: base, rows, out, axes.", show_default=False)],
    json_file: JsonFile = None,
) -> None:
    """Train one model for each value of each axis, all else equal, and compare them on the same held-out rows.

    A run that is done is not done again; one that was stopped goes on. docs/finetune.md has the file's form.

    Example: rtcontrol models sweep ablations.toml
    """
    from rtcontrol.models.train.finetune.sweep import read_sweep, run_sweep

    console = for_people(json_file)
    plan = read_sweep(config)
    found = run_sweep(plan, lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True))
    table = Table("run", "changed", "steps", "loss", "held-out loss", "rows right", title=f"{config}")
    for one in found:
        held = one["held_out"]
        table.add_row(
            one["name"], one["changed"], str(one["steps"]), f"{one['loss']:.4f}",
            f"{held['loss']:.4f}" if held else "", f"{held['rows_right']:.4f}" if held else "",
        )  # fmt: skip
    console.print(table)
    save(json_file, {"runs": found})


COMMANDS = (train, sweep)
