"""`rtcontrol plan`: how many doors, decoders and machines a deployment needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rtcontrol.cli.figures import JsonFile, for_people, save, say, show_table
from rtcontrol.models.errors import UserError


def plan(
    sessions: Annotated[int | None, typer.Option(help="Robots or games, each with a connection of its own.")] = None,
    characters: Annotated[int | None, typer.Option(help="Characters of crowds (docs/crowds.md).")] = None,
    nodes: Annotated[int | None, typer.Option(help="The other way round: how many sessions these carry.")] = None,
    crowds: Annotated[bool, typer.Option("--crowds", help="--nodes: how many characters of crowds.")] = False,
    hz: Annotated[float, typer.Option(help="Decisions a second of each.")] = 5.0,
    model: Annotated[str, typer.Option(help="What decides: one that was measured.")] = "lander",
    cores_per_node: Annotated[int, typer.Option(help="Processor cores of a machine.")] = 16,
    busy_max: Annotated[float, typer.Option(help="No process is planned to need more than this of its core.")] = 0.8,
    price_per_node_hour: Annotated[
        float | None, typer.Option(help="What a machine costs you an hour, in whatever currency.")
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(help="Costs of your machine, by `rtcontrol bench capacity --json FILE`. (default: the bundled)"),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """How many doors, decoders and machines so many sessions or characters need, what breaks first, and the commands
    that start it (docs/scaling.md).

    By costs that were measured on one machine: `rtcontrol bench capacity` measures yours in four minutes. A door is an
    `rtcontrol serve`; its decoders have one thread each.

    Examples:

      rtcontrol plan --sessions 5000 --hz 5 --model lander

      rtcontrol plan --characters 1000000 --hz 1 --cores-per-node 64 --price-per-node-hour 1.5

      rtcontrol plan --nodes 4 --hz 10 --json plan.json      (--crowds: how many characters)

      rtcontrol plan --sessions 200 --hz 10 --model runs/mine --measured capacity.json
    """
    from rtcontrol.bench.capacity import read
    from rtcontrol.bench.capacity_tables import sizing_table
    from rtcontrol.bench.plan import Sizing, carried

    given = [count for count in (sessions, characters, nodes) if count is not None]
    if len(given) != 1:
        raise UserError("It is not clear for how many.", "Give one of --sessions, --characters and --nodes.")
    if crowds and nodes is None:
        raise UserError("--crowds is for --nodes, which is not given.", "Give --characters, or --nodes.")
    if price_per_node_hour is not None and not 0 <= price_per_node_hour < float("inf"):
        raise UserError(f"--price-per-node-hour {price_per_node_hour:g} is no price.", "Give 0 or more.")
    costs = read(measured)
    if nodes is not None:
        sizing = carried(nodes, costs.of(model), hz, crowds, cores_per_node, busy_max)
    else:
        sizing = Sizing(costs.of(model), given[0], hz, characters is not None, cores_per_node, busy_max)
    console = for_people(json_file)
    show_table(console, sizing_table(sizing, price_per_node_hour), show_header=False)
    if sizing.nodes > 1:
        say(console, "On the cluster (docs/scaling.md), with RAY_ADDRESS=HEAD:6379 in the environment:")
    for times, line in sizing.commands():
        say(console, f"{times:,} x  {line}")
    say(console, f"Costs: {costs.where}.")
    save(json_file, {**sizing.document(price_per_node_hour), "measured": costs.where})
