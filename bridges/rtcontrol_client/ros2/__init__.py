"""The bridge to ROS 2 robots over DDS, with no ROS installation (`rtcontrol bridge ros2`)."""

from pathlib import Path

EXAMPLE = Path(__file__).parent / "examples" / "robot.yaml"
