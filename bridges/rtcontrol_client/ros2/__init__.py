"""The bridge to ROS 2 robots, a node by rclpy (`rtcontrol bridge ros2`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rtcontrol_client.wire.errors import RemedyError

EXAMPLE = Path(__file__).parent / "examples" / "robot.yaml"


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments before `--ros-args`, and ROS's: those from there on."""
    at = words.index("--ros-args") if "--ros-args" in words else len(words)
    return list(words[:at]), list(words[at:])


class Ros2BridgeError(RemedyError):
    """An error in the arguments or the file, or a bridge that cannot go on. `status` is the exit status."""

    status = 2


class Unserved(Ros2BridgeError):
    """The run's time was over before a server had welcomed it: only the safe call was published."""

    status = 7


class Unmappable(ValueError):
    """A message without such a value now, or a call that does not fit its mapping; says which and why."""
