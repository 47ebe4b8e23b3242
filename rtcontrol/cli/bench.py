"""`rtcontrol bench`: what is measured on this machine, next to its baselines."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from rtcontrol.cli.figures import JsonFile, Tenths, for_people, group, save, show_table

app = group(help="Measure on this machine, next to the baselines; --json keeps all figures.")
Model = Annotated[str, typer.Option(help="Bundled name, folder or hub id.")]
Dtype = Annotated[str, typer.Option(help="auto, fp32 or bf16.")]


def measured(run: Callable[[Tenths], dict[str, Any]], json_file: Path | None) -> None:
    """Measure (`run` takes what shows progress), show the tables, and save the document with its day and machine."""
    import torch

    from rtcontrol.bench.tables import TABLES
    from rtcontrol.telemetry.run_folder import describe

    machine = describe()  # before anything is measured: the load is that of other work
    if torch.cuda.is_available():
        machine["gpu"] = torch.cuda.get_device_name()
    with Tenths("measuring", "measuring: {percent} %") as progress:
        document = run(progress)
    console = for_people(json_file)
    for table in TABLES[document["bench"]](document):
        show_table(console, table)
    save(json_file, {**document, "measured": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine})


@app.command()
def decide(
    model: Model = "lander",
    decisions: Annotated[int, typer.Option(min=20, help="Decisions of each list of tools by each way.")] = 300,
    dtype: Dtype = "auto",
    json_file: JsonFile = None,
) -> None:
    """One packed pass next to its floor, token-by-token decoding and JSON calls (also with forced tokens skipped).

    Situations and tools are those of a bundled model, else the lander's; of the lander also long tools (20 functions,
    three enums). Text to typed call, in turns.

    Examples:

      rtcontrol bench decide

      rtcontrol bench decide --decisions 1000 --dtype bf16 --json decide.json
    """
    from rtcontrol.bench.decide import measure
    from rtcontrol.bench.situations import agent_of

    measured(
        lambda progress: measure(model, agent_of(model), dtype, decisions, progress),
        json_file,
    )


@app.command()
def serving(
    decisions: Annotated[int, typer.Option(min=1, help="Decisions by each way, in turns.")] = 100,
    dtype: Dtype = "auto",
    json_file: JsonFile = None,
) -> None:
    """One packed pass next to vLLM's best form on the same weights: SimpleTool's heads, and JSON under a grammar.

    The bundled lander on its own prompts. Text to typed call, in turns, each with one thread or all, whichever is
    quicker. It runs in an environment that has vLLM.

    Example: fleet/bin/rtcontrol bench serving --dtype bf16 --json serving.json
    """
    from rtcontrol.bench.serving import measure

    measured(lambda progress: measure(dtype, decisions, progress), json_file)


@app.command()
def load(
    clients: Annotated[int, typer.Option(min=1, max=500, help="Server-paced clients at once.")] = 8,
    hz: Annotated[float, typer.Option(min=0.1, max=1000, help="Rate of each client's loop.")] = 16.0,
    seconds: Annotated[float, typer.Option(min=1, help="How long to count, after 2 s of warm-up.")] = 30.0,
    model: Annotated[str, typer.Option(help="noop (the null decoder), random, or a checkpoint.")] = "noop",
    json_file: JsonFile = None,
) -> None:
    """Many clients of one server: every tick's call is counted, those that never came, and the misses by cause.

    Examples:

      rtcontrol bench load --clients 50 --hz 2

      rtcontrol bench load --clients 8 --hz 16 --model lander --json load.json
    """
    from rtcontrol.bench.load import measure

    measured(lambda progress: measure(clients, hz, seconds, model, progress), json_file)


@app.command()
def train(
    samples: Annotated[int | None, typer.Option(min=4, help="Samples of each way. (default: 4; 64 on a GPU)")] = None,
    json_file: JsonFile = None,
) -> None:
    """Packed-tree training next to one sequence a head (length-sorted, several batch sizes): samples a second.

    Random weights in the shape of Qwen2.5-0.5B under the paper's LoRA: two layers in fp32, on a GPU all in bf16. Eight
    heads, prompts of 200 to 400 tokens that have nothing in common.

    Example: rtcontrol bench train --samples 8 --json train.json
    """
    from rtcontrol.models.train.recipe import check_extras

    check_extras()
    from rtcontrol.bench.train import measure

    measured(lambda progress: measure(samples, progress), json_file)


@app.command()
def wire(
    trips: Annotated[int, typer.Option(min=100, help="Round trips to measure each way.")] = 5000,
    model: Model = "lander",
    json_file: JsonFile = None,
) -> None:
    """Observation out to call in, over each transport, next to a bare echo of the same bytes.

    Client-paced, one client at a time, loopback, a 300-byte observation; servers in processes of their own. The ways
    take turns in blocks of 20.

    Example: rtcontrol bench wire --trips 20000 --json wire.json
    """
    from rtcontrol.bench.wire import measure
    from rtcontrol.models.checkpoint.checkpoint import read_config, resolve

    read_config(resolve(model))
    measured(lambda progress: measure(trips, model, progress), json_file)
