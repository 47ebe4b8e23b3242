"""The bridge's ROS 2 node: topics and services through rclpy.

Remapping, namespaces, parameters and middleware work as for every node. This module has no control logic."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import rclpy
from rclpy.clock import JumpThreshold
from rclpy.duration import Duration
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, LivelinessPolicy, QoSProfile, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions

from rtcontrol_client import clock
from rtcontrol_client.ros2 import Ros2BridgeError
from rtcontrol_client.ros2.mapper import Topic
from rtcontrol_client.ros2.observer import DelayEstimator
from rtcontrol_client.ros2.rivals import UNKNOWN, OtherPublishers

NAME = "rtcontrol_bridge"
PAUSE_S = 0.01  # seconds to pause after a message that rclpy cannot convert
SELDOM_S = 10.0  # seconds between two log lines about a topic that cannot be written
log = logging.getLogger("rtcontrol.ros2")


class RosInput:
    """A subscription that keeps its newest messages, each with its time of sending or, if earlier, its time of
    measurement (`header.stamp`), because a sensor that hangs may send its last measurement repeatedly."""

    def __init__(self, node: Node, topic: Topic) -> None:
        self.topic = topic
        self._lock = threading.Lock()
        self._delays, self._measured, self._clock = DelayEstimator(), DelayEstimator(), node.get_clock()
        self._newest: deque[tuple[Any, int]] = deque(maxlen=topic.qos.depth)
        subscription = node.create_subscription(topic.cls, topic.name, self._receive, _qos(topic, "best_effort"))
        self.resolved = subscription.topic_name

    def _receive(self, message: Any, info: dict[str, Any]) -> None:
        now_ns, wall_ns = clock.now_ns(), time.time_ns()
        captured_ns = self._delays.captured_ns(info["source_timestamp"], wall_ns, now_ns)
        if self.topic.stamped and (header := getattr(message, "header", None)) is not None:
            stamp_ns = header.stamp.sec * 10**9 + header.stamp.nanosec
            if self._clock.ros_time_is_active:  # measure the age in simulated time
                simulated_ns = int(self._clock.now().nanoseconds)
                age_ns = simulated_ns - self._measured.captured_ns(stamp_ns, simulated_ns, simulated_ns)
            else:
                age_ns = now_ns - self._measured.captured_ns(stamp_ns, wall_ns, now_ns)
            captured_ns = min(captured_ns, now_ns - age_ns)
        with self._lock:
            self._newest.append((message, captured_ns))

    def _take_messages(self) -> list[tuple[Any, int]]:
        with self._lock:
            newest = list(self._newest)
            self._newest.clear()
        return newest

    def poll(self) -> tuple[Any, int] | None:
        """Return the newest message since the previous call, or None."""
        return next(reversed(self._take_messages()), None)

    def take(self) -> list[Any]:
        """Return all messages since the previous call."""
        return [message for message, _ in self._take_messages()]


class RosOutput:
    """A publisher. `max_interval_ms` is the longest interval between messages while the bridge runs. Subscribers get
    this time as their deadline and, with `lease`, twice this time as the liveliness lease."""

    def __init__(self, node: Node, topic: Topic, max_interval_ms: float | None, lease: bool) -> None:
        self.topic, qos = topic, _qos(topic, "reliable")
        if max_interval_ms is not None:
            qos.deadline = Duration(nanoseconds=int(max_interval_ms * 1e6))
        if max_interval_ms is not None and lease:
            qos.liveliness = LivelinessPolicy.MANUAL_BY_TOPIC
            qos.liveliness_lease_duration = Duration(nanoseconds=int(2 * max_interval_ms * 1e6))
        self._publisher = node.create_publisher(topic.cls, topic.name, qos)
        self._log = node.get_logger()
        self.resolved = self._publisher.topic_name

    def write(self, message: Any) -> bool:
        """Publish a message. Return False if the middleware raised an error."""
        try:
            self._publisher.publish(message)
        except RuntimeError as error:  # the base class of rclpy's errors
            self._log.warning(f"{self.resolved}: not written ({error})", throttle_duration_sec=SELDOM_S)
            return False
        return True

    def readers(self) -> int:
        """Return the number of subscribers."""
        return int(self._publisher.get_subscription_count())

    def flush(self, seconds: float) -> None:
        """Wait until subscribers have acknowledged all messages, at most `seconds`."""
        self._publisher.wait_for_all_acked(Duration(seconds=seconds))


class RosService:
    """A client that keeps the response to its newest request."""

    def __init__(self, node: Node, name: str, cls: Any) -> None:
        self.name = name
        self._client = node.create_client(cls, name)
        self.resolved = self._client.service_name
        self._lock = threading.Lock()
        self._answers: list[Any] = []
        self._newest: Any = None

    def ready(self) -> bool:
        """Return whether the service has a server."""
        return bool(self._client.service_is_ready())

    def readers(self) -> int:
        """Return 1 if the service has a server, otherwise 0."""
        return int(self.ready())

    def write(self, request: Any) -> bool:
        """Send a request; return False if the service has no server yet."""
        if not self.ready():
            return False
        future = self._client.call_async(request)
        with self._lock:
            self._newest, self._answers = future, []
        future.add_done_callback(self._receive)
        return True

    def _receive(self, future: Any) -> None:
        with self._lock:
            if future is self._newest and future.result() is not None:
                self._answers.append(future.result())

    def answers(self) -> list[Any]:
        """Return the response to the newest request in a list, which is empty if none has arrived since."""
        with self._lock:
            answers, self._answers = self._answers, []
        return answers


class RosNetwork:
    """The topics and services of a node. `problems` reports `watched` topics and services that no other node uses, and
    other nodes that publish the bridge's commands, or the same sensor twice."""

    def __init__(self, node: Node) -> None:
        self._node, self._rivals = node, OtherPublishers(node.get_fully_qualified_name())
        self._inputs: list[RosInput] = []
        self._sensors: list[RosInput] = []
        self._outputs: list[RosOutput] = []
        self._services: list[RosService] = []
        self.resolved: dict[str, str] = {}  # name in the file -> name in the ROS graph
        self.jumped = False  # True after a simulator's time jumped back; the bridge clears the flag
        back = JumpThreshold(min_forward=None, min_backward=Duration(nanoseconds=-1), on_clock_change=False)
        self._jump_handler = node.get_clock().create_jump_callback(back, post_callback=self._note_jump)

    def _note_jump(self, _: Any) -> None:
        self.jumped = True

    def stamp_ns(self) -> int:
        """Return the node's time in nanoseconds (simulated time if the parameter use_sim_time is set)."""
        return int(self._node.get_clock().now().nanoseconds)

    def input(self, topic: Topic, watched: bool, sensor: bool = True) -> RosInput:
        """Create a subscription to a topic. A `sensor` should have a single publisher, which `problems` checks."""
        subscription = RosInput(self._node, topic)
        self.resolved[topic.name] = subscription.resolved
        self._inputs += [subscription] if watched else []
        self._sensors += [subscription] if sensor else []
        return subscription

    def output(self, topic: Topic, max_interval_ms: float | None, lease: bool = True) -> RosOutput:
        """Create a publisher for a topic."""
        publisher = RosOutput(self._node, topic, max_interval_ms, lease)
        self.resolved[topic.name] = publisher.resolved
        self._outputs.append(publisher)
        return publisher

    def service(self, name: str, cls: Any, watched: bool = True) -> RosService:
        client = RosService(self._node, name, cls)
        self.resolved[name] = client.resolved
        self._services += [client] if watched else []
        return client

    def problems(self) -> dict[str, str]:
        """Return problems by name of the topic or service: no other node, or several publishers. rclpy itself logs
        wrong types and QoS."""
        silent: list[tuple[str, str, Any]] = [
            (i.topic.name, "publishes", i) for i in self._inputs if not self._node.count_publishers(i.resolved)
        ]
        silent += [(o.topic.name, "subscribes to", o) for o in self._outputs if not o.readers()]
        silent += [(service.name, "serves", service) for service in self._services if not service.ready()]
        hint = "Start the robot, or correct the name, type, QoS, ROS_DOMAIN_ID or the network."
        return {name: f"No node {does} {end.resolved}. {hint}" for name, does, end in silent} | self._rival_problems()

    def _rival_problems(self) -> dict[str, str]:
        checks = [(end.resolved, self._rivals.command_problem) for end in self._outputs]
        checks += [(end.resolved, self._rivals.sensor_problem) for end in self._sensors]
        problems = [(topic, check(topic, self._publishers(topic), clock.now_s())) for topic, check in checks]
        return {f"the publisher of {topic}": problem for topic, problem in problems if problem is not None}

    def _publishers(self, topic: str) -> list[str]:
        """Return the full name of the node of each publisher."""
        ends = self._node.get_publishers_info_by_topic(topic)
        return [end.node_name if end.node_name == UNKNOWN else _full_name(end) for end in ends]

    def flush(self, seconds: float) -> None:
        """Wait until all messages of all publishers are acknowledged; for each publisher at most `seconds`."""
        for output in self._outputs:
            output.flush(seconds)


def _full_name(end: Any) -> str:
    return f"{end.node_namespace.rstrip('/')}/{end.node_name}"


def _qos(topic: Topic, usual: str) -> QoSProfile:
    return QoSProfile(
        depth=topic.qos.depth,
        reliability=ReliabilityPolicy[(topic.qos.reliability or usual).upper()],
        durability=DurabilityPolicy[topic.qos.durability.upper()],
    )


@contextmanager
def running_node(ros: Sequence[str], services: bool = True) -> Iterator[Node]:
    """Run a node with the ROS arguments `ros` on a new thread until the `with` block ends.

    With `services`, the node serves its parameters. Raises Ros2BridgeError if ROS rejects the arguments.
    """
    try:
        # rclpy's signal handlers would close the publishers before the safe call is published.
        rclpy.init(args=[*ros], signal_handler_options=SignalHandlerOptions.NO)
        node = Node(NAME, start_parameter_services=services)
    except (RuntimeError, ValueError) as error:
        rclpy.try_shutdown()
        what = f"ROS 2 cannot start a node with {' '.join(ros) or 'these environment variables'} ({error})."
        hint = "Correct what follows --ros-args, ROS_DOMAIN_ID or RMW_IMPLEMENTATION"
        hint = f"{hint}; or end other nodes, since DDS allows about 120 participants of a domain on a machine."
        raise Ros2BridgeError(what, hint) from None
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    thread = threading.Thread(target=_spin_executor, args=(executor,), daemon=True)
    thread.start()
    try:
        yield node
    finally:
        # Wait for the thread: if it were in rclpy's C++ code when the interpreter exits, the process would abort.
        executor.shutdown()
        thread.join()
        node.destroy_node()
        rclpy.try_shutdown()


def _spin_executor(executor: SingleThreadedExecutor) -> None:
    reported = ""
    while True:
        try:
            executor.spin()
        except ExternalShutdownException:
            return
        except Exception as error:  # after a message that rclpy cannot convert, continue with the others
            if str(error) != reported:
                log.warning("ROS 2 could not deliver a message (%s).", error)
            reported = str(error)
            time.sleep(PAUSE_S)
        else:
            return


def guard_arguments(node: Node, resolved: dict[str, str], ros: Sequence[str]) -> list[str]:
    """Return the ROS arguments for the guard's node (the process that publishes the safe call if the bridge fails). The
    names that the bridge has resolved (`-r pilot:/cmd_vel:=/base`) precede `ros`, since ROS applies the first rule."""
    rules = {"__node": f"{node.get_name()}_guard", "__ns": node.get_namespace(), **resolved}
    return ["--ros-args", *(word for name, to in rules.items() for word in ("-r", f"{name}:={to}")), *ros[1:]]
