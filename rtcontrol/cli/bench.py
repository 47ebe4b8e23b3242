"""`rtcontrol bench`: what is measured on this machine, next to its baselines."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal

import typer

from rtcontrol.cli.command import CommandLine, command
from rtcontrol.cli.figures import Tenths, for_people, group, save, show_table
from rtcontrol.settings import setting

Progress = Callable[[int, int], None]
app = group()


@command(app, ("model",), figures=True)
def bench(
    line: CommandLine,
    what: Annotated[
        Literal["decide", "serving", "load", "train", "wire"], typer.Argument(help="See below.", show_default=False)
    ],
    model: str | None = setting("bench", None, "Bundled name, folder or hub id. (default: lander; load: noop)"),
    dtype: str = setting("bench", "auto", "decide, serving: auto, fp32 or bf16."),
    decisions: int | None = setting("bench", None, "decide, serving: by each way. (default: 300; serving: 100)", ge=1),
    clients: int = setting("bench", 8, "load: server-paced clients at once.", ge=1, le=500),
    hz: float = setting("bench", 16.0, "load: rate of each client's loop.", ge=0.1, le=1000),
    seconds: float = setting("bench", 30.0, "load: how long to count, after 2 s of warm-up.", ge=1),
    samples: int | None = setting("bench", None, "train: samples of each way. (default: 4; 64 on a GPU)", ge=4),
    trips: int = setting("bench", 5000, "wire: round trips of each way.", ge=100),
) -> None:
    """Measure on this machine, each way next to its baselines, in turns.

    `decide`: one packed pass next to its floor, token-by-token decoding and JSON calls (also with forced tokens
    skipped). Situations and tools are those of a bundled model, else the lander's; of the lander also long tools.

    `serving`: one packed pass next to vLLM's best form on the same weights: SimpleTool's heads, and JSON under a
    grammar. It runs in an environment that has vLLM.

    `load`: many clients of one server: every tick's call, those that never came, and the misses by cause.

    `train`: packed-tree training next to one sequence a head, in the shape of Qwen2.5-0.5B: samples a second.

    `wire`: observation out to call in, over each transport, next to a bare echo of the same bytes.

    Examples:

      rtcontrol bench decide

      rtcontrol bench decide --set bench.decisions=1000 --set bench.dtype=bf16 --json decide.json

      rtcontrol bench load --set bench.clients=50 --set bench.hz=2
    """
    runs = {
        "decide": lambda: _decide(model or "lander", dtype, decisions or 300),
        "serving": lambda: _serving(dtype, decisions or 100),
        "load": lambda: _load(clients, hz, seconds, model or "noop"),
        "train": lambda: _train(samples),
        "wire": lambda: _wire(trips, model or "lander"),
    }
    _measure(runs[what](), line)


def _measure(run: Callable[[Progress], dict[str, Any]], line: CommandLine) -> None:
    """Measure, show the tables, and save the document with its day and machine."""
    import torch

    from rtcontrol.bench.tables import TABLES
    from rtcontrol.telemetry.run_folder import describe

    machine = describe()  # before anything is measured: the load is that of other work
    if torch.cuda.is_available():
        machine["gpu"] = torch.cuda.get_device_name()
    with Tenths("measuring", "measuring: {percent} %") as progress:
        document = run(progress)
    console = for_people(line.json)
    for table in TABLES[document["bench"]](document):
        show_table(console, table)
    save(line.json, {**document, "measured": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine})


def _decide(model: str, dtype: str, decisions: int) -> Callable[[Progress], dict[str, Any]]:
    from rtcontrol.bench.decide import measure
    from rtcontrol.bench.situations import agent_of

    return partial(measure, model, agent_of(model), dtype, decisions)


def _serving(dtype: str, decisions: int) -> Callable[[Progress], dict[str, Any]]:
    from rtcontrol.bench.serving import measure

    return partial(measure, dtype, decisions)


def _load(clients: int, hz: float, seconds: float, model: str) -> Callable[[Progress], dict[str, Any]]:
    from rtcontrol.bench.load import measure

    return partial(measure, clients, hz, seconds, model)


def _train(samples: int | None) -> Callable[[Progress], dict[str, Any]]:
    from rtcontrol.models.train.recipe import check_extras

    check_extras()
    from rtcontrol.bench.train import measure

    return partial(measure, samples)


def _wire(trips: int, model: str) -> Callable[[Progress], dict[str, Any]]:
    from rtcontrol.bench.wire import measure
    from rtcontrol.models.checkpoint.checkpoint import read_config, resolve

    read_config(resolve(model))
    return partial(measure, trips, model)
