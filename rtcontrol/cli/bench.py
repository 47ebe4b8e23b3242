"""`rtcontrol bench`: what is measured on this machine, next to its baselines."""

from __future__ import annotations

import importlib
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import typer

from rtcontrol.cli.command import CommandLine, command
from rtcontrol.cli.figures import Progress, for_people, group, save, show_table
from rtcontrol.settings import setting

app = group()


@command(app, figures=True)
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
        rtcontrol bench load --set bench.clients=50 --set bench.hz=2 --json load.json
    """
    arguments: dict[str, Any] = {
        "decide": lambda: (model or "lander", _agent(model or "lander"), dtype, decisions or 300),
        "serving": lambda: (dtype, decisions or 100),
        "load": lambda: (clients, hz, seconds, model or "noop"),
        "train": lambda: (samples,),
        "wire": lambda: (trips, model or "lander"),
    }
    _measure(what, arguments[what](), line)


def _agent(model: str) -> str:
    from rtcontrol.bench.situations import agent_of

    return agent_of(model)


def _measure(what: str, arguments: tuple[Any, ...], line: CommandLine) -> None:
    """Measure, show the tables, and save the document with its day and machine."""
    import torch

    from rtcontrol.bench.tables import TABLES
    from rtcontrol.telemetry.run_folder import describe

    machine = describe()  # before anything is measured: the load is that of other work
    if torch.cuda.is_available():
        machine["gpu"] = torch.cuda.get_device_name()
    module = importlib.import_module(f"rtcontrol.bench.{what}")
    with Progress("measuring: {percent} %") as progress:
        document = module.measure(*arguments, progress)
    console = for_people(line.json)
    for table in TABLES[document["bench"]](document):
        show_table(console, table)
    save(line.json, {**document, "measured": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine})
