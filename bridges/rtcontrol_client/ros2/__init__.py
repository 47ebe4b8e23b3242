"""The bridge to ROS 2 robots, a node by rclpy (`rtcontrol bridge ros2`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rtcontrol_client.wire.errors import RemedyError

EXAMPLE = Path(__file__).parent / "examples" / "robot.yaml"


def split(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments that are not ROS's, and those between `--ros-args` and `--`, with one `--ros-args` first."""
    ours: list[str] = []
    ros: list[str] = []
    inside = False
    for word in given:
        if word == "--ros-args" or (inside and word == "--"):
            inside = word != "--"
        else:
            (ros if inside else ours).append(word)
    return ours, ["--ros-args", *ros] if ros else []


class Ros2BridgeError(RemedyError):
    """A mistake in what was given. `status` is the program's exit status."""

    status = 2


class Unserved(Ros2BridgeError):
    """The run's time was over before a server had welcomed it: nothing but the safe call was published."""

    status = 7


class Unmappable(ValueError):
    """A message that has no such value now, or a call that does not fit its mapping; says which and why."""
