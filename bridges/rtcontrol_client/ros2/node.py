"""The bridge as a ROS 2 node: topics and services by rclpy, so that remapping, namespaces, parameters and any
middleware work as for every node. Nothing here decides what the robot does."""

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

from rtcontrol_client.ros2 import Ros2BridgeError
from rtcontrol_client.ros2.mapper import Topic
from rtcontrol_client.ros2.observer import Delays

NAME = "rtcontrol_bridge"
PAUSE_S = 0.01  # after a message that cannot be converted
SELDOM_S = 10.0  # how often it is logged that a topic is not written
log = logging.getLogger("rtcontrol.ros2")


class RosInput:
    """A subscription that keeps its newest messages, each with the instant when it was made."""

    def __init__(self, node: Node, topic: Topic) -> None:
        self.topic = topic
        self._lock = threading.Lock()
        self._delays = Delays()
        self._newest: deque[tuple[Any, int]] = deque(maxlen=topic.qos.depth)
        subscription = node.create_subscription(topic.cls, topic.name, self._receive, _qos(topic, "best_effort"))
        self.resolved = subscription.topic_name

    def _receive(self, message: Any, info: dict[str, Any]) -> None:
        captured_ns = self._delays.captured_ns(info["source_timestamp"], time.time_ns(), time.monotonic_ns())
        with self._lock:
            self._newest.append((message, captured_ns))

    def _all(self) -> list[tuple[Any, int]]:
        with self._lock:
            newest = list(self._newest)
            self._newest.clear()
        return newest

    def poll(self) -> tuple[Any, int] | None:
        """Return the newest message that was not polled yet."""
        return next(reversed(self._all()), None)

    def take(self) -> list[Any]:
        """Return all messages since the last call."""
        return [message for message, _ in self._all()]


class RosOutput:
    """A publisher. `promise_ms`: it is written at least so often while the bridge lives, which subscribers are offered
    as a deadline, and, with `lease`, twice that as the time after which they count it as dead."""

    def __init__(self, node: Node, topic: Topic, promise_ms: float | None, lease: bool) -> None:
        self.topic, qos = topic, _qos(topic, "reliable")
        if promise_ms is not None:
            qos.deadline = Duration(nanoseconds=int(promise_ms * 1e6))
        if promise_ms is not None and lease:
            qos.liveliness = LivelinessPolicy.MANUAL_BY_TOPIC
            qos.liveliness_lease_duration = Duration(nanoseconds=int(2 * promise_ms * 1e6))
        self._publisher = node.create_publisher(topic.cls, topic.name, qos)
        self._log = node.get_logger()
        self.resolved = self._publisher.topic_name

    def write(self, message: Any) -> bool:
        """Return whether the middleware took it."""
        try:
            self._publisher.publish(message)
        except RuntimeError as error:  # rclpy's own base
            self._log.warning(f"{self.resolved}: not written ({error})", throttle_duration_sec=SELDOM_S)
            return False
        return True

    def readers(self) -> int:
        """Return how many subscribers there are."""
        return int(self._publisher.get_subscription_count())

    def flush(self, seconds: float) -> None:
        """Wait until what was written has arrived."""
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
        """Return whether a server is there."""
        return bool(self._client.service_is_ready())

    def readers(self) -> int:
        """Return whether a server is there."""
        return int(self.ready())

    def write(self, request: Any) -> bool:
        """Send a request; False where no server is there yet."""
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
        """Return the response, once."""
        with self._lock:
            answers, self._answers = self._answers, []
        return answers


class RosNetwork:
    """The topics and services of a node. Of what is `watched` it is a problem that no other node has it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._inputs: list[RosInput] = []
        self._outputs: list[RosOutput] = []
        self._services: list[RosService] = []
        self.resolved: dict[str, str] = {}  # a name of the file -> its name in the graph
        self.jumped = False  # a simulator's time was set back; the reader clears it
        back = JumpThreshold(min_forward=None, min_backward=Duration(nanoseconds=-1), on_clock_change=False)
        self._jumps = node.get_clock().create_jump_callback(back, post_callback=self._note_jump)

    def _note_jump(self, _: Any) -> None:
        self.jumped = True

    def stamp_ns(self) -> int:
        """Return the node's time: by /clock where its parameter use_sim_time is set."""
        return int(self._node.get_clock().now().nanoseconds)

    def input(self, topic: Topic, watched: bool) -> RosInput:
        """Return a subscription."""
        end = RosInput(self._node, topic)
        self.resolved[topic.name] = end.resolved
        self._inputs += [end] if watched else []
        return end

    def output(self, topic: Topic, promise_ms: float | None, lease: bool = True) -> RosOutput:
        """Return a publisher."""
        end = RosOutput(self._node, topic, promise_ms, lease)
        self.resolved[topic.name] = end.resolved
        self._outputs.append(end)
        return end

    def service(self, name: str, cls: Any, watched: bool = True) -> RosService:
        """Return a service's client."""
        end = RosService(self._node, name, cls)
        self.resolved[name] = end.resolved
        self._services += [end] if watched else []
        return end

    def problems(self) -> dict[str, str]:
        """Return what has no other node, by its name in the file. rclpy logs types and QoS that differ."""
        silent: list[tuple[str, str, Any]] = [
            (i.topic.name, "publishes", i) for i in self._inputs if not self._node.count_publishers(i.resolved)
        ]
        silent += [(o.topic.name, "subscribes to", o) for o in self._outputs if not o.readers()]
        silent += [(service.name, "serves", service) for service in self._services if not service.ready()]
        hint = "Start the robot, or correct the name, type, QoS, ROS_DOMAIN_ID or the network."
        return {name: f"No node {does} {end.resolved}. {hint}" for name, does, end in silent}

    def flush(self, seconds: float) -> None:
        """Wait until what was written has arrived."""
        for output in self._outputs:
            output.flush(seconds)


def _qos(topic: Topic, usual: str) -> QoSProfile:
    return QoSProfile(
        depth=topic.qos.depth,
        reliability=ReliabilityPolicy[(topic.qos.reliability or usual).upper()],
        durability=DurabilityPolicy[topic.qos.durability.upper()],
    )


@contextmanager
def started(ros: Sequence[str], services: bool = True) -> Iterator[Node]:
    """Run a node with these arguments of ROS on its own thread until the end.

    `services`: those of its parameters. Raises Ros2BridgeError for arguments that ROS does not take.
    """
    try:
        # rclpy's own handlers would close the publishers before the safe call.
        rclpy.init(args=[*ros], signal_handler_options=SignalHandlerOptions.NO)
        node = Node(NAME, start_parameter_services=services)
    except (RuntimeError, ValueError) as error:
        rclpy.try_shutdown()
        what = f"ROS 2 takes no node with {' '.join(ros) or 'these variables'} ({error})."
        raise Ros2BridgeError(what, "Correct what follows --ros-args, ROS_DOMAIN_ID or RMW_IMPLEMENTATION.") from None
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    thread = threading.Thread(target=_spin, args=(executor,), daemon=True)
    thread.start()
    try:
        yield node
    finally:
        # A thread in rclpy's C++ when the interpreter ends aborts the process: it is waited for.
        executor.shutdown()
        thread.join()
        node.destroy_node()
        rclpy.try_shutdown()


def _spin(executor: SingleThreadedExecutor) -> None:
    reported = ""
    while True:
        try:
            executor.spin()
        except ExternalShutdownException:
            return
        except Exception as error:  # a message that rclpy cannot convert must not end all others
            if str(error) != reported:
                log.warning("ROS 2 could not hand over a message (%s).", error)
            reported = str(error)
            time.sleep(PAUSE_S)
        else:
            return


def guard_arguments(node: Node, resolved: dict[str, str], ros: Sequence[str]) -> list[str]:
    """Return the guard's arguments. Its node has another name, so what this node's name resolves
    (`-r pilot:/cmd_vel:=/base`) is written out; the first rule for a name holds."""
    rules = {"__node": f"{node.get_name()}_guard", "__ns": node.get_namespace(), **resolved}
    return ["--ros-args", *(word for name, to in rules.items() for word in ("-r", f"{name}:={to}")), *ros[1:]]
