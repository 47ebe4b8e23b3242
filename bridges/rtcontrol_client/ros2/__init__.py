"""The bridge to ROS 2 robots, a node by rclpy (`rtcontrol bridge ros2`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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


def sim_time(ros: Sequence[str]) -> bool | None:
    """Return what ROS's arguments say of use_sim_time, if they do."""
    given = [word.partition(":=")[2].lower() for word in ros if word.startswith("use_sim_time:=")]
    return None if not given else given[-1] == "true"
