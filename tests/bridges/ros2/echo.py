"""Round trips over DDS: `python -m tests.bridges.ros2.echo pong` echoes Twists, `ping N HZ` measures N of them."""

from __future__ import annotations

import json
import os
import sys
import time

from cyclonedds.core import WaitSet
from cyclonedds.util import duration

from rtcontrol.bridges.ros2.bus import Bus
from rtcontrol.bridges.ros2.dds import Input, Output
from rtcontrol.bridges.ros2.environment import domain
from rtcontrol.bridges.ros2.msgs import geometry_msgs
from tests.bridges.ros2.robot import topic
from tests.helpers.processes import until


def ends(own: str, other: str) -> tuple[Bus, Input, Output, WaitSet]:
    bus = Bus(domain(os.environ))
    reading = bus.input(topic(f"/{other}", "geometry_msgs/Twist", reliability="reliable", depth=10))
    writing = bus.output(topic(f"/{own}", "geometry_msgs/Twist", depth=10))
    waiting = WaitSet(bus._participant)
    reading.entity.set_status_mask(1 << 8)  # data available
    waiting.attach(reading.entity)
    return bus, reading, writing, waiting


def pong() -> None:
    _bus, reading, writing, waiting = ends("pong", "ping")
    print("ready", flush=True)
    while True:
        waiting.wait(duration(seconds=1))
        for twist in reading.take():
            writing.write(twist)


def ping(count: int, hz: float) -> None:
    _bus, reading, writing, waiting = ends("ping", "pong")
    until(lambda: writing.readers() and reading.writers(), "nobody answers")
    time.sleep(0.5)  # matching is not symmetric
    times, lost, wrong = [], 0, 0
    for i in range(count):
        sent = geometry_msgs.Twist(
            linear=geometry_msgs.Vector3(x=float(i), y=-0.5), angular=geometry_msgs.Vector3(z=0.1)
        )
        began = time.perf_counter()
        writing.write(sent)
        back = []
        while not back and time.perf_counter() - began < 1:
            waiting.wait(duration(milliseconds=100))
            back = reading.take()
        times.append(time.perf_counter() - began)
        lost += not back
        wrong += bool(back) and back[-1] != sent
        time.sleep(max(0.0, 1 / hz - times[-1]))
    times.sort()
    ms = {
        n: round(1e3 * times[min(count - 1, int(s * count))], 3) for n, s in (("p50", 0.5), ("p99", 0.99), ("max", 1))
    }
    print(json.dumps({"n": count, "lost": lost, "wrong": wrong, "rtt_ms": ms}), flush=True)


if __name__ == "__main__":
    pong() if sys.argv[1] == "pong" else ping(int(sys.argv[2]), float(sys.argv[3]))
