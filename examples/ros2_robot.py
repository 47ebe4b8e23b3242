"""A simulated ROS 2 robot in a room of 6 m by 6 m. The bridge drives it like a real robot, and stops it at the end.

rtcontrol serve --model random                                         # random calls; use a trained model for skill
rtcontrol bridge ros2 --example > robot.yaml
python3 -m rtcontrol_client.ros2 --config robot.yaml                   # by ROS 2's own Python
python3 examples/ros2_robot.py 20                                      # the same Python; 20 seconds of driving
"""

import math
import sys

import rclpy
from geometry_msgs.msg import Twist
from nav_msgs.msg import Odometry
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import LaserScan

STEP_S, WALL_M, BEAMS, PATIENCE_S = 0.05, 3.0, 180, 60.0


class Robot(Node):
    """A robot without a watchdog: the bridge that drives the robot must stop it."""

    def __init__(self, seconds: float) -> None:
        super().__init__("robot")
        self.x = self.y = self.heading = self.driven = 0.0
        self.twist, self.commands, self.moving = Twist(), 0, False
        self.left, self.waits = round(seconds / STEP_S), round(PATIENCE_S / STEP_S)
        self.odom = self.create_publisher(Odometry, "/odom", 10)
        self.scan = self.create_publisher(LaserScan, "/scan", qos_profile_sensor_data)
        self.create_subscription(Twist, "/cmd_vel", self.obey, 10)
        self.create_timer(STEP_S, self.step)

    def obey(self, twist: Twist) -> None:
        if not self.moving and (twist.linear.x or twist.angular.z):
            self.moving = True
            print("is driven", flush=True)
        self.twist, self.commands = twist, self.commands + 1

    def step(self) -> None:
        self.heading += self.twist.angular.z * STEP_S
        ahead = min(self.twist.linear.x * STEP_S, self.echo(self.heading) - 0.2)  # the robot stops at a wall
        self.x, self.y = self.x + ahead * math.cos(self.heading), self.y + ahead * math.sin(self.heading)
        self.driven += abs(ahead)
        self.left, self.waits = self.left - self.moving, self.waits - (not self.moving)
        odometry = Odometry(child_frame_id="base_link")
        odometry.pose.pose.position.x, odometry.pose.pose.position.y = self.x, self.y
        odometry.pose.pose.orientation.z = math.sin(self.heading / 2)
        odometry.pose.pose.orientation.w = math.cos(self.heading / 2)
        odometry.twist.twist = self.twist
        self.odom.publish(odometry)
        turn = 2 * math.pi / BEAMS
        ranges = [self.echo(self.heading - math.pi + turn * i) for i in range(BEAMS)]
        limits = {"angle_min": -math.pi, "angle_max": math.pi - turn, "range_min": 0.05, "range_max": 10.0}
        self.scan.publish(LaserScan(angle_increment=turn, ranges=ranges, **limits))
        if min(self.left, self.waits) <= 0:
            raise ExternalShutdownException

    def echo(self, angle: float) -> float:
        """Return the distance to the wall in this direction."""
        ways = ((self.x, math.cos(angle)), (self.y, math.sin(angle)))
        return min((WALL_M - at * math.copysign(1, along)) / max(abs(along), 1e-9) for at, along in ways)


if __name__ == "__main__":
    rclpy.init()
    robot = Robot(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0)
    try:
        rclpy.spin(robot)
    except (KeyboardInterrupt, ExternalShutdownException):  # Ctrl-C, SIGTERM, or the time is over
        pass
    except RuntimeError:  # SIGTERM within a callback: rclpy has already closed the publishing context
        if rclpy.ok():
            raise
    hint = "No command: is the bridge running with the same ROS_DOMAIN_ID?" if not robot.commands else ""
    print(f"{robot.driven:.2f} m by {robot.commands} commands. {hint}")
    rclpy.try_shutdown()
