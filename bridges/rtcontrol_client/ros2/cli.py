"""`rtcontrol bridge ros2`, and the same without the rest of rtcontrol: `python -m rtcontrol_client.ros2`."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import math
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rtcontrol_client import Options
from rtcontrol_client.console import StandardStreams, printable
from rtcontrol_client.ros2 import EXAMPLE, Ros2BridgeError, split
from rtcontrol_client.shutdown import STATUS, Interrupted, Shutdown, outlive_terminal
from rtcontrol_client.wire.endpoint import check_client
from rtcontrol_client.wire.errors import RemedyError

EXAMPLES = """Drive a ROS 2 robot by an rtcontrol server: topics become the observation, calls are published.

A call may also pursue the goal of an action and ask a service.

It is a ROS 2 node, and runs in a Python that has rclpy and the robot's message packages: source the robot's ROS set-up,
or pip install 'ros-rclpy[fastrtps]'. ROS's variables act as for every node, and so does what follows --ros-args.
A line typed while it runs is the new instruction; Ctrl-C ends it with the safe call.

examples:
  rtcontrol bridge ros2 --example > robot.yaml      (or --example NAME, see below)
  rtcontrol bridge ros2 --config robot.yaml --check
  rtcontrol bridge ros2 --config robot.yaml --instruct "follow the left wall"
  rtcontrol bridge ros2 --config robot.yaml --ros-args -r __ns:=/robot1 -p use_sim_time:=true

Exit status: 0; 2 mistake in what was given, or no server within --connect-timeout; 7 none within --duration; 129
SIGHUP, 130 Ctrl-C, 143 SIGTERM.
"""


def arguments(given: Sequence[str], prog: str) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=EXAMPLES.replace("rtcontrol bridge ros2", prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, help="the robot's file (robot.yaml)")
    parser.add_argument(
        "--connect",
        default="tcp://127.0.0.1:5555",
        help="the server, or http://HOST:PORT/connect (default: %(default)s)",
    )
    parser.add_argument("--hz", type=float, help="observations and decisions a second (default: the file's)")
    parser.add_argument("--instruct", help="the instruction (default: the file's)")
    parser.add_argument("--keys", type=Path, help="this client's .key_secret, for a server with keys")
    parser.add_argument("--server-key", type=Path, help="the server's .key (default: server.key beside it)")
    parser.add_argument(
        "--connect-timeout",
        type=float,
        default=6.0,
        help="seconds until the first welcome; 0: wait for ever (default: 6)",
    )
    parser.add_argument("--duration", type=float, help="end after so many seconds")
    parser.add_argument(
        "--no-guard", action="store_true", help="no process beside it that stops the robot where the bridge is killed"
    )
    parser.add_argument("--check", action="store_true", help="only check the file, and say what it maps")
    examples = sorted(path.stem for path in EXAMPLE.parent.glob("*.yaml"))
    parser.add_argument(
        "--example", nargs="?", const=EXAMPLE.stem, choices=examples, help="print an example file (default: %(const)s)"
    )
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None, prog: str = "python -m rtcontrol_client.ros2") -> int:
    """Run; what ends it is one paragraph on stderr and status 2, or the error's own."""
    outlive_terminal()
    ours, ros = split(sys.argv[1:] if given is None else given)
    options = arguments(ours, prog)
    try:
        return run(options, ros, prog)
    except KeyboardInterrupt as left:
        return left.status if isinstance(left, Interrupted) else STATUS["SIGINT"]
    except RemedyError as error:
        print(printable(f"{error.what} {error.remedy}"), file=sys.stderr)
        return getattr(error, "status", 2)


def run(options: argparse.Namespace, ros: Sequence[str], prog: str) -> int:
    """Do what the options say; the exit status. Raises Ros2BridgeError, ClientError."""
    if options.example:
        print(EXAMPLE.with_stem(options.example).read_text("utf-8"), end="")
        return 0
    _check(options)
    if importlib.util.find_spec("yaml") is None:
        raise Ros2BridgeError("The ROS 2 bridge needs pyyaml.", "Install it: pip install 'rtcontrol-client[ros2]'.")
    from rtcontrol_client.ros2 import config
    from rtcontrol_client.ros2.mapper import Mapper

    if options.config is None:
        raise Ros2BridgeError("No --config is given.", f"Begin with: {prog} --example > robot.yaml")
    robot = config.load(options.config)
    if not options.check:
        _need_ros()
    mapper = Mapper(robot, str(options.config))
    hz = robot.hz if options.hz is None else options.hz
    Options(**mapper.hello(options.instruct, hz)).hello(0)  # finds what a server would refuse
    for warning in mapper.warnings():
        print(printable(f"warning: {warning}"), file=sys.stderr)
    if options.check:
        print("\n".join(map(printable, _listed(mapper))))
        return 0
    return _bridge(options, ros, mapper, hz)


def _need_ros() -> None:
    try:
        import rclpy  # noqa: F401
    except ImportError as error:
        hint = "Source the robot's ROS set-up (. /opt/ros/jazzy/setup.sh), or: pip install 'ros-rclpy[fastrtps]'."
        what = f"The ROS 2 bridge needs rclpy, and {sys.executable} has none that it can import ({error})."
        raise Ros2BridgeError(what, hint) from None


def _check(options: argparse.Namespace) -> None:
    """Find mistakes before the file is read. Raises Ros2BridgeError."""
    limits = {"hz": (0.1, 200), "connect_timeout": (0, math.inf), "duration": (0, math.inf)}
    for name, (least, most) in limits.items():
        value = getattr(options, name)
        # Written so that nan is out of range, too.
        if value is not None and not least <= value <= most:
            raise Ros2BridgeError(f"--{name.replace('_', '-')} {value:g} is out of range.", f"Give {least} to {most}.")
    check_client(options.connect)
    if options.server_key is not None and options.keys is None:
        raise Ros2BridgeError("--server-key is given without --keys.", "Give this client's .key_secret file too.")


def _bridge(options: argparse.Namespace, ros: Sequence[str], mapper: Any, hz: float) -> int:
    from rtcontrol_client.ros2.bridge import Ros2Bridge, Ros2BridgeOptions
    from rtcontrol_client.ros2.guard import Guard
    from rtcontrol_client.ros2.node import RosNetwork, guard_arguments, started

    logging.getLogger().setLevel(logging.INFO)
    keys = {"keys": options.keys, "server_key": options.server_key} if options.keys else {}
    bridge_options = Ros2BridgeOptions(
        endpoint=options.connect,
        hz=hz,
        instruction=options.instruct,
        connect_timeout_s=options.connect_timeout or None,
        duration_s=options.duration,
        client=keys,
    )
    with started(ros) as node:
        network = RosNetwork(node)
        bridge = Ros2Bridge(mapper, network, bridge_options)
        form = "%(asctime)s %(levelname)s %(message)s"
        with Shutdown(lambda name: bridge.stop(), bridge.suspend) as ending, StandardStreams(log=form):
            if sys.stdin is not None and sys.stdin.isatty():
                threading.Thread(target=_read_instructions, args=(bridge,), daemon=True).start()
            if not options.no_guard:
                given = guard_arguments(node, network.resolved, ros)
                bridge.protect(Guard(mapper.config, hz, bridge.promise_ms, given))
            try:
                bridge.run(ending.retake)
            finally:
                print(_summary(bridge.figures()), file=sys.stderr)
    return ending.status


def _read_instructions(bridge: Any) -> None:
    for line in sys.stdin:
        if text := line.strip():
            bridge.instruct(text)


def _listed(mapper: Any) -> list[str]:
    lines = [f"reads     {one.topic.name}  {one.topic.type}  -> {', '.join(one.readers)}" for one in mapper.sources]
    if (topic := mapper.instructions) is not None:
        lines.append(f"reads     {topic.name}  {topic.type}  -> the instruction")
    lines += [f"publishes {one.name}  {one.type}" for one in mapper.topics.values()]
    for name, tool in mapper.config.tools.items():
        ends = [f"no goal of {one}" for one in mapper.cancels(name)]
        does = ", ".join([*tool.publish, *tool.goal, *tool.request, *ends]) or "nothing"
        lines.append(f"tool      {name}({', '.join(tool.parameters)})  -> {does}")
    return [*lines, f"safe call {mapper.config.safe.name}"]


def _summary(figures: dict[str, Any]) -> str:
    share = figures["on_time_share"]
    on_time = "no tick" if share is None else f"{share:.2%} on time"
    names = ("fresh", "held", "safe", "expired", "refused", "reconnects")
    return f"{on_time} ({', '.join(f'{name} {figures[name]}' for name in names)})"
