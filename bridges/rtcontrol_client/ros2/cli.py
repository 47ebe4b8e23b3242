"""The command `rtcontrol bridge ros2`, also run without the rest of rtcontrol: `python -m rtcontrol_client.ros2`."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rtcontrol_client import Options
from rtcontrol_client.console import StandardStreams, printable
from rtcontrol_client.ros2 import EXAMPLE, Ros2BridgeError, split_ros_arguments
from rtcontrol_client.shutdown import STATUS, Interrupted, Shutdown, ignore_closed_terminal
from rtcontrol_client.wire.errors import RemedyError

EXAMPLES = """Let an rtcontrol server drive a ROS 2 robot: topics become observations, and calls are published.

A call may also send an action goal or a service request.

The bridge is a ROS 2 node. Its Python needs rclpy and the robot's message packages: source the robot's ROS set-up,
or pip install 'ros-rclpy[fastrtps]'. ROS environment variables and arguments after --ros-args apply as for any node.
Ctrl-C ends the bridge with the safe call.

examples:
  rtcontrol bridge ros2 --example > robot.yaml      (or --example NAME, see below)
  rtcontrol bridge ros2 --config robot.yaml --check
  rtcontrol bridge ros2 --config robot.yaml --instruct "follow the left wall" --set hz=10 --set session.ttl_ms=400
  rtcontrol bridge ros2 --config robot.yaml --ros-args -r __ns:=/robot1 -p use_sim_time:=true

Exit status: 0; 2 an error in the arguments or the file, no server within connect_timeout_s, or the guard has ended;
7 no server within duration_s; 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM.
"""


def parse_arguments(given: Sequence[str], prog: str) -> argparse.Namespace:
    """Parse the command line; `connect` and `instruction` replace the keys with these names in robot.yaml."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=EXAMPLES.replace("rtcontrol bridge ros2", prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, help="the robot's file (robot.yaml)")
    parser.add_argument("--connect", help="the server, or http://HOST:PORT/connect (default: the file's)")
    parser.add_argument("--instruct", dest="instruction", help="the instruction (default: the file's)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the file, as YAML")
    parser.add_argument("--check", action="store_true", help="only check the file and print its mapping")
    examples = sorted(path.stem for path in EXAMPLE.parent.glob("*.yaml"))
    parser.add_argument(
        "--example", nargs="?", const=EXAMPLE.stem, choices=examples, help="print an example file (default: %(const)s)"
    )
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None, prog: str = "python -m rtcontrol_client.ros2") -> int:
    """Run the command and return its exit status; print errors on stderr."""
    ignore_closed_terminal()
    ours, ros = split_ros_arguments(sys.argv[1:] if given is None else given)
    options = parse_arguments(ours, prog)
    try:
        return run(options, ros, prog)
    except KeyboardInterrupt as left:
        return left.status if isinstance(left, Interrupted) else STATUS["SIGINT"]
    except RemedyError as error:
        print(printable(f"{error.what} {error.remedy}"), file=sys.stderr)
        return getattr(error, "status", 2)


def run(options: argparse.Namespace, ros: Sequence[str], prog: str) -> int:
    """Print an example, check the file, or run the bridge. Raises Ros2BridgeError, ClientError."""
    if options.example:
        print(EXAMPLE.with_stem(options.example).read_text("utf-8"), end="")
        return 0
    if importlib.util.find_spec("yaml") is None:
        raise Ros2BridgeError("The ROS 2 bridge needs pyyaml.", "Install it: pip install 'rtcontrol-client[ros2]'.")
    from rtcontrol_client.ros2 import config
    from rtcontrol_client.ros2.mapper import Mapper

    if options.config is None:
        raise Ros2BridgeError("The option --config is missing.", f"Start with: {prog} --example > robot.yaml")
    changes = {key: getattr(options, key) for key in ("connect", "instruction") if getattr(options, key) is not None}
    robot = config.load(options.config, changes, options.set)
    if not options.check:
        _require_rclpy()
    mapper = Mapper(robot, str(options.config))
    Options.from_values(mapper.client_options(None)).hello(0)  # raises an error for options that a server would refuse
    for warning in mapper.warnings():
        print(printable(f"warning: {warning}"), file=sys.stderr)
    if options.check:
        print("\n".join(map(printable, mapper.describe_mapping())))
        return 0
    return _run_bridge(ros, mapper)


def _require_rclpy() -> None:
    try:
        import rclpy  # noqa: F401
    except ImportError as error:
        hint = "Source the robot's ROS set-up (. /opt/ros/jazzy/setup.sh), or: pip install 'ros-rclpy[fastrtps]'."
        what = f"The ROS 2 bridge needs rclpy, but {sys.executable} cannot import it ({error})."
        raise Ros2BridgeError(what, hint) from None


def _run_bridge(ros: Sequence[str], mapper: Any) -> int:
    from rtcontrol_client.ros2.bridge import Ros2Bridge
    from rtcontrol_client.ros2.guard import Guard
    from rtcontrol_client.ros2.node import RosNetwork, guard_arguments, running_node

    logging.getLogger().setLevel(logging.INFO)
    with running_node(ros) as node:
        network = RosNetwork(node)
        bridge = Ros2Bridge(mapper, network)
        form = "%(asctime)s %(levelname)s %(message)s"
        with Shutdown(lambda name: bridge.stop(), bridge.suspend) as ending, StandardStreams(log=form):
            if mapper.config.guard:
                bridge.use_guard(Guard(mapper.config, guard_arguments(node, network.resolved, ros)))
            try:
                bridge.run(ending.retake)
            finally:
                print(", ".join(f"{name} {count}" for name, count in bridge.statistics().items()), file=sys.stderr)
    return ending.status
