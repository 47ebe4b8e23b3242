"""The command `rtcontrol bench`, which measures speed on this machine and compares it with baselines."""

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
    """Measure speed on this machine, alternating between the measured method and its baselines.

    `decide` compares one packed pass with its lower bound, token-by-token decoding and JSON calls (also with forced
    tokens skipped). Situations and tools are those of a bundled model, or else of the lander, also with long tools.

    `serving` compares one packed pass with vLLM on the same weights: SimpleTool's heads, and JSON under a grammar. It
    needs an environment with vLLM.

    `load` connects many clients to one server, and counts calls per tick, missing calls, and misses by cause.

    `train` compares packed-tree training with one sequence per head, in samples per second on Qwen2.5-0.5B's shape.

    `wire` measures the time from sending an observation to receiving the call, and of an echo, over each transport.

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
    from rtcontrol.telemetry.run_folder import describe_machine

    machine = describe_machine()  # before the measurement, so that the reported load is that of other programs
    if torch.cuda.is_available():
        machine["gpu"] = torch.cuda.get_device_name()
    module = importlib.import_module(f"rtcontrol.bench.{what}")
    with Progress("measuring: {percent} %") as progress:
        document = module.measure(*arguments, progress)
    console = for_people(line.json)
    for table in TABLES[document["bench"]](document):
        show_table(console, table)
    save(line.json, {**document, "measured": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine})
