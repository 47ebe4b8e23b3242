"""The bridge to ROS 2 robots (`rtcontrol bridge ros2`), which runs as an rclpy node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rtcontrol_client.wire.errors import RemedyError

EXAMPLE = Path(__file__).parent / "examples" / "robot.yaml"


def split_ros_arguments(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line into the bridge's arguments and the arguments for ROS, which start at `--ros-args`."""
    at = words.index("--ros-args") if "--ros-args" in words else len(words)
    return list(words[:at]), list(words[at:])


class Ros2BridgeError(RemedyError):
    """An error in the arguments or in robot.yaml, or an error that ends the bridge. `status` is the exit status."""

    status = 2


class NoServerError(Ros2BridgeError):
    """No server accepted the bridge during the run, so only the safe call was published."""

    status = 7


class Unmappable(ValueError):
    """A field has no value in the current message, or a call does not fit its mapping; the text has the reason."""
