"""`rtcontrol bridge`: programs that join other worlds to a server."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import typer

from rtcontrol.bridges.carla import cli as carla_cli
from rtcontrol.bridges.ros2 import cli as ros2_cli
from rtcontrol.run.flags import load

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def bridge() -> None:
    """Join a robot or a simulator to a server.

    Unity and Godot games bring their own client: docs/bridges.md, bridges/unity, bridges/godot.

    \b
    Examples:
      rtcontrol bridge ros2 --example > robot.yaml
      rtcontrol bridge ros2 --config robot.yaml
      rtcontrol bridge carla --instruct "follow the car ahead at 20 metres"
      rtcontrol bridge carla --config run.toml      (its options as lines; flags win)
    """


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    help="A ROS 2 robot over DDS, with no ROS installation. See `rtcontrol bridge ros2 --help`.",
    add_help_option=False,
)
def ros2(context: typer.Context) -> None:
    # Its options are those of `python -m rtcontrol.bridges.ros2`, which runs without the rest of rtcontrol.
    sys.stdout.flush()
    raise typer.Exit(ros2_cli.main(context.args, "rtcontrol bridge ros2"))


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    help="A car in the CARLA simulator, for a server elsewhere. See `rtcontrol bridge carla --help`.",
    add_help_option=False,
)
def carla(context: typer.Context) -> None:
    sys.stdout.flush()
    prog = "rtcontrol bridge carla"
    raise typer.Exit(carla_cli.main(_with_file(context.args, vars(carla_cli.arguments([], prog))), prog))


def _with_file(given: Sequence[str], known: Collection[str]) -> list[str]:
    """What `--config FILE` says, before the rest, so that flags win."""
    rest: list[str] = []
    told: dict[str, Any] = {}
    words = iter(given)
    for word in words:
        name, equals, value = word.partition("=")
        if name == "--config":
            told |= load(Path(value if equals else next(words, "")), "bridge", known)
        else:
            rest.append(word)
    flags = (f"--{k.replace('_', '-')}" + ("" if v is True else f"={v}") for k, v in told.items() if v is not False)
    return [*flags, *rest]
