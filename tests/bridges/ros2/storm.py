"""`python -m tests.bridges.ros2.storm HZ SECONDS`: /odom and /scan of a standing robot, each so often."""

from __future__ import annotations

import os
import sys
import time

from rtcontrol_client.ros2.bus import Bus
from rtcontrol_client.ros2.environment import domain
from tests.bridges.ros2.robot import Robot, frozen, topic


def main(hz: float, seconds: float) -> None:
    bus, robot = Bus(domain(os.environ)), Robot()
    odom = bus.output(topic("/odom", "nav_msgs/Odometry"))
    scan = bus.output(topic("/scan", "sensor_msgs/LaserScan", reliability="best_effort", depth=5))
    # Serialized once: Python could not do that often enough.
    standing, around = (frozen(m, m.serialize()) for m in (robot.odometry(), robot.scan()))
    time.sleep(1)
    print("ready", flush=True)
    began, sent = time.monotonic(), 0
    while (now := time.monotonic()) < began + seconds:
        # In bursts of what is due: sleep is no finer than a millisecond.
        while sent < (now - began) * hz:
            odom.write(standing)
            scan.write(around)
            sent += 1
        time.sleep(0.001)
    print(f"{sent / seconds:.0f} of each a second")


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]))
