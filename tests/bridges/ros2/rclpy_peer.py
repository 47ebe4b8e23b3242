"""A node of a real ROS 2 in a process of its own, run by that ROS's Python: `python rclpy_peer.py`.

It is told what to do by JSON lines on stdin and answers each with one on stdout: `publisher` and `subscriber` (topic,
type, qos), `matched` (for each of its topics how many readers its publisher, or writers its subscriber has found),
`publish` (topic, messages as maps), `heard` (topic: the messages since the last time), `clock` (start, rate: be the
simulator's clock from now on), `nodes`, `hashes` (topic: those of the
types that it is published and subscribed as), `shutdown`. It imports nothing of rtcontrol.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from importlib import import_module
from typing import Any

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy


def message_class(name: str) -> Any:
    """The class of `package/msg/Name` or `package/Name`."""
    package, *_, short = name.split("/")
    return getattr(import_module(f"{package}.msg"), short)


def fill(message: Any, values: dict[str, Any]) -> Any:
    """The message with these values, which are maps, lists and numbers; an octet is a number."""
    for name, kind in message.get_fields_and_field_types().items():
        value = values[name]
        inner = kind.removeprefix("sequence<").split("[")[0].split(">")[0].split(",")[0]
        if isinstance(value, dict):
            fill(getattr(message, name), value)
        elif isinstance(value, list) and "/" in inner:
            setattr(message, name, [fill(message_class(inner)(), one) for one in value])
        elif isinstance(value, list) and inner == "octet":
            setattr(message, name, [bytes([one]) for one in value])
        else:
            setattr(message, name, bytes([value]) if kind == "octet" else value)
    return message


def plain(value: Any) -> Any:
    """A message as maps, lists and numbers."""
    if hasattr(value, "get_fields_and_field_types"):
        return {name: plain(getattr(value, name)) for name in value.get_fields_and_field_types()}
    if isinstance(value, bytes):
        return value[0]
    if isinstance(value, str | int | float):
        return value
    return [plain(one) for one in (value.tolist() if hasattr(value, "tolist") else value)]


def profile(qos: dict[str, Any]) -> QoSProfile:
    """Reliable, volatile, depth 10 as nodes have it, but for what is given."""
    best, kept = qos.get("reliability") == "best_effort", qos.get("durability") == "transient_local"
    return QoSProfile(
        depth=qos.get("depth", 10),
        reliability=ReliabilityPolicy.BEST_EFFORT if best else ReliabilityPolicy.RELIABLE,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if kept else DurabilityPolicy.VOLATILE,
    )


class Peer:
    """The node and what it heard."""

    def __init__(self) -> None:
        self.node = Node("peer")
        self._publishers: dict[str, Any] = {}
        self._subscribers: dict[str, Any] = {}
        self._types: dict[str, Any] = {}
        self._heard: dict[str, list[Any]] = {}
        self._clock: Any = None
        self._clock_is = (0.0, 0.0, 0.0)

    def publisher(self, topic: str, type: str, **qos: Any) -> None:
        self._types[topic] = message_class(type)
        self._publishers[topic] = self.node.create_publisher(self._types[topic], topic, profile(qos))

    def subscriber(self, topic: str, type: str, **qos: Any) -> None:
        heard = self._heard.setdefault(topic, [])
        cls, hear = message_class(type), lambda m: heard.append(plain(m))
        self._subscribers[topic] = self.node.create_subscription(cls, topic, hear, profile(qos))

    def matched(self) -> dict[str, int]:
        found = {topic: one.get_subscription_count() for topic, one in self._publishers.items()}
        return found | {topic: one.get_publisher_count() for topic, one in self._subscribers.items()}

    def publish(self, topic: str, messages: list[dict[str, Any]]) -> None:
        for values in messages:
            self._publishers[topic].publish(fill(self._types[topic](), values))

    def heard(self, topic: str) -> list[Any]:
        found, self._heard[topic][:] = list(self._heard[topic]), []
        return found

    def clock(self, start: float, rate: float) -> None:
        """/clock, fifty times a second."""
        if self._clock is None:
            self._clock = self.node.create_publisher(message_class("rosgraph_msgs/msg/Clock"), "/clock", profile({}))
            self.node.create_timer(0.02, self._tick)
        self._clock_is = (start, rate, time.monotonic())

    def _tick(self) -> None:
        start, rate, since = self._clock_is
        now_ns = int(1e9 * (start + rate * (time.monotonic() - since)))
        told = message_class("rosgraph_msgs/msg/Clock")()
        told.clock.sec, told.clock.nanosec = divmod(now_ns, 1_000_000_000)
        self._clock.publish(told)

    def nodes(self) -> dict[str, list[Any]]:
        """Name -> the topics that it publishes, subscribes to, and the services that it asks, as ROS knows them."""
        node, found = self.node, {}
        for name, space in node.get_node_names_and_namespaces():
            ends = (
                node.get_publisher_names_and_types_by_node(name, space),
                node.get_subscriber_names_and_types_by_node(name, space),
                node.get_client_names_and_types_by_node(name, space),
            )
            found[f"{space.rstrip('/')}/{name}"] = [dict(end) for end in ends]
        return found

    def hashes(self, topic: str) -> list[str]:
        node = self.node
        known = [*node.get_publishers_info_by_topic(topic), *node.get_subscriptions_info_by_topic(topic)]
        return [str(end.topic_type_hash) for end in known]


def main() -> None:
    rclpy.init()
    peer = Peer()
    executor = SingleThreadedExecutor()
    executor.add_node(peer.node)
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    print(json.dumps("ready"), flush=True)
    while True:
        executor.spin_once(timeout_sec=0.002)
        while not lines.empty():
            line = lines.get()
            asked = json.loads(line) if line else {"do": "shutdown"}
            do = asked.pop("do")
            if do == "shutdown":
                peer.node.destroy_node()
                rclpy.try_shutdown()
                return
            print(json.dumps(getattr(peer, do)(**asked)), flush=True)


if __name__ == "__main__":
    main()
