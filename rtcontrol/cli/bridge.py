"""`rtcontrol bridge`: programs that join other worlds to a server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

import typer

from rtcontrol.cli.figures import group
from rtcontrol_client.carla import cli as carla_cli
from rtcontrol_client.ros2 import cli as ros2_cli

app = group()


@app.callback()
def bridge() -> None:
    """Join a robot or a simulator to a server.

    Unity and Godot games bring their own client: docs/bridges.md, bridges/unity, bridges/godot.

    Examples:

      rtcontrol bridge ros2 --example > robot.yaml

      rtcontrol bridge ros2 --config robot.yaml

      rtcontrol bridge carla --instruct "drive at 50"
    """


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    help="A ROS 2 robot, as a node: needs rclpy. See `rtcontrol bridge ros2 --help`.",
    add_help_option=False,
)
def ros2(context: typer.Context) -> None:
    # Its options are those of `python -m rtcontrol_client.ros2`, which runs without the rest of rtcontrol.
    _ends(ros2_cli.main, context.args, "rtcontrol bridge ros2")


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    help="A car in the CARLA simulator, for a server elsewhere. See `rtcontrol bridge carla --help`.",
    add_help_option=False,
)
def carla(context: typer.Context) -> None:
    _ends(carla_cli.main, context.args, "rtcontrol bridge carla")


def _ends(main: Callable[..., int], *given: Any) -> NoReturn:
    sys.stdout.flush()
    try:
        status = main(*given)
    except SystemExit as ended:
        # argparse's, which has shown its help or a mistake
        status = int(ended.code or 0)
    raise typer.Exit(status)
