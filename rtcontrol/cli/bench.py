"""The command `rtcontrol bench`, which measures speed on this machine and compares methods with baselines."""

from __future__ import annotations

import importlib
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import typer

from rtcontrol.cli.command import CommandLine, command
from rtcontrol.cli.figures import console_for_tables, group, save, show_table
from rtcontrol.settings import setting
from rtcontrol.telemetry.progress import Progress

app = group()


@command(app, figures=True)
def bench(
    line: CommandLine,
    what: Annotated[
        Literal["decide", "serving", "load", "train", "wire"], typer.Argument(help="See below.", show_default=False)
    ],
    model: str | None = setting("bench", None, "Bundled name, folder or hub id. (default: lander; load: noop)"),
    dtype: str = setting("bench", "auto", "decide, serving: auto, fp32 or bf16."),
    decisions: int | None = setting("bench", None, "Decisions per method. (default: 300; serving: 100)", ge=1),
    clients: int = setting("bench", 8, "load: number of concurrent clients, paced by the server.", ge=1, le=500),
    hz: float = setting("bench", 16.0, "load: ticks per second of each client's loop.", ge=0.1, le=1000),
    seconds: float = setting("bench", 30.0, "load: duration of the measurement, after 2 s of warm-up.", ge=1),
    samples: int | None = setting("bench", None, "train: samples per method. (default: 4; 64 on a GPU)", ge=4),
    trips: int = setting("bench", 5000, "wire: round trips per transport.", ge=100),
) -> None:
    """Measure speed on this machine. The measured method and its baselines take turns.

    `decide` compares one packed pass with its lower bound, with token-by-token decoding, and with JSON calls (also
    without a pass for tokens that the grammar determines). It uses the tools of a bundled model, or of the lander.

    `serving` compares one packed pass with vLLM on the same weights, by SimpleTool's heads and by JSON under a grammar.
    It needs an installed vLLM.

    `load` connects many clients to a server, and reports calls per tick, missing calls, and misses by cause.

    `train` compares training on packed trees with training on a sequence per head, in samples per second.

    `wire` measures the time from sending an observation to receiving its call, and that of an echo, per transport.

    Examples:

        rtcontrol bench decide
        rtcontrol bench load --set bench.clients=50 --set bench.hz=2 --json load.json
    """
    arguments: dict[str, Any] = {
        "decide": lambda: (model or "lander", _agent_of_model(model or "lander"), dtype, decisions or 300),
        "serving": lambda: (dtype, decisions or 100),
        "load": lambda: (clients, hz, seconds, model or "noop"),
        "train": lambda: (samples,),
        "wire": lambda: (trips, model or "lander"),
    }
    _measure_and_show(what, arguments[what](), line)


def _agent_of_model(model: str) -> str:
    from rtcontrol.bench.situations import agent_for_model

    return agent_for_model(model)


def _measure_and_show(what: str, arguments: tuple[Any, ...], line: CommandLine) -> None:
    """Run a benchmark, print its tables, and save its results with the date and the machine."""
    import torch

    from rtcontrol.bench.tables import TABLES
    from rtcontrol.telemetry.run_folder import describe_machine

    machine = describe_machine()  # called before measuring, so that its load is that of other programs
    if torch.cuda.is_available():
        machine["gpu"] = torch.cuda.get_device_name()
    module = importlib.import_module(f"rtcontrol.bench.{what}")
    with Progress("measuring: {percent} %") as progress:
        document = module.measure(*arguments, progress)
    console = console_for_tables(line.json)
    for table in TABLES[document["bench"]](document):
        show_table(console, table)
    save(line.json, {**document, "measured": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine})
