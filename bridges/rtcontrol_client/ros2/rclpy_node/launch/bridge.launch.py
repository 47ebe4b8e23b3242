"""ros2 launch rtcontrol_bridge bridge.launch.py config:=/path/robot.yaml"""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node


def generate_launch_description() -> LaunchDescription:
    """One node, with the file and the server as arguments."""
    return LaunchDescription(
        [
            DeclareLaunchArgument("config"),
            DeclareLaunchArgument("connect", default_value="tcp://127.0.0.1:5555"),
            Node(
                package="rtcontrol_bridge",
                executable="bridge",
                output="screen",
                arguments=["--config", LaunchConfiguration("config"), "--connect", LaunchConfiguration("connect")],
            ),
        ]
    )
