"""`python -m tests.bridges.ros2.kills [--times 20] [--stop | --first] [--node kilted|jazzy]`: the bridge, or our rclpy
node of that ROS, is killed in flight so many times, or stopped (SIGSTOP), or killed when the robot first moves; how
soon the robot is told to stand by the guard."""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import tempfile
import time
from pathlib import Path

from tests.bridges.ros2.brain import Brain
from tests.bridges.ros2.conftest import flown
from tests.helpers.processes import until

SETTLE_S, NODE_SETTLE_S = 3.0, 8.0  # until a guard that starts with the bridge, or the node, is found by the robot


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument(
        "--first", action="store_true", help="as soon as the robot moves, in place of some seconds later"
    )
    parser.add_argument("--stop", action="store_true", help="SIGSTOP in place of SIGKILL")
    parser.add_argument(
        "--node", choices=("kilted", "jazzy"), help="our rclpy node and a robot, by the Python of RTCONTROL_ROS_KILTED"
    )
    asked = parser.parse_args()
    ros = os.environ[f"RTCONTROL_ROS_{asked.node.upper()}"] if asked.node else None
    brain, found = Brain(), []
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(brain):
        flights = flown(Path(folder), brain.endpoint, ros=ros, node=ros is not None)
        flight = next(flights)
        for number in range(asked.times):
            fresh = flight.running.popen.poll() is not None or not number
            flight.go()
            flown_s = 0.0 if asked.first else NODE_SETTLE_S if ros and fresh else SETTLE_S if fresh else 1.0
            time.sleep(flown_s + random.Random(number).random() / 16)  # at any phase of a tick
            moving = flight.robot.report()["moving"]
            begin = time.monotonic()
            flight.running.popen.send_signal(signal.SIGSTOP if asked.stop else signal.SIGKILL)

            def told(begin: float = begin) -> list[float]:
                return [t for t, v, w in flight.robot.since(begin)["commands"] if t >= begin and not (v or w)]

            until(told, "nobody told it to stand")  # it may stand already, on a busy machine
            found.append(1e3 * (told()[0] - begin))
            print(f"{number + 1}: driven at {moving}, told to stand after {found[-1]:.1f} ms", flush=True)
            if asked.stop:
                flight.running.popen.send_signal(signal.SIGCONT)
            else:
                flight.running.kill()
                until(lambda: "was killed" in flight.running.log(), f"the guard says nothing: {flight.running.log()}")
                time.sleep(1.2)  # this guard has ended
        flights.close()
    print(f"{sum(ms <= brain.ttl_ms for ms in found)} of {asked.times} within the ttl of {brain.ttl_ms:g} ms; ", end="")
    ordered = sorted(found)
    print(f"median {ordered[len(ordered) // 2]:.1f}, largest {ordered[-1]:.1f} ms")


if __name__ == "__main__":
    main()
