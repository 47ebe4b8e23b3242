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
from rclpy.duration import Duration, Infinite
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import (
    DurabilityPolicy,
    HistoryPolicy,
    LivelinessPolicy,
    QoSCompatibility,
    QoSProfile,
    ReliabilityPolicy,
    qos_check_compatible,
)
from rclpy.signals import SignalHandlerOptions

from rtcontrol_client.ros2 import Ros2BridgeError
from rtcontrol_client.ros2.clock import Delays
from rtcontrol_client.ros2.parts import Topic

NAME = "rtcontrol_bridge"
PAUSE_S = 0.01  # after a message that cannot be converted
log = logging.getLogger("rtcontrol.ros2")


class RosInput:
    """A subscription that keeps its newest messages."""

    def __init__(self, node: Node, topic: Topic) -> None:
        self.topic, self.qos = topic, _qos(topic, ReliabilityPolicy.BEST_EFFORT)
        self._lock = threading.Lock()
        self._delays = Delays()
        self._newest: deque[tuple[Any, int]] = deque(maxlen=topic.qos.depth)
        made = node.create_subscription(topic.cls, _name(topic), self._receive, self.qos)
        self.resolved = made.topic_name

    def _receive(self, message: Any, info: dict[str, Any]) -> None:
        now_ns = time.monotonic_ns()
        made_ns = self._delays.captured_ns(info["source_timestamp"], time.time_ns(), now_ns)
        with self._lock:
            self._newest.append((message, made_ns))

    def poll(self) -> tuple[Any, int] | None:
        with self._lock:
            newest = self._newest[-1] if self._newest else None
            self._newest.clear()
        return newest

    def take(self) -> list[Any]:
        with self._lock:
            taken = [message for message, _ in self._newest]
            self._newest.clear()
        return taken


class RosOutput:
    """A publisher. `promise_ms`: it is written at least so often while the bridge lives, and subscribers are offered
    that as a deadline, and, with `lease`, twice that as the time after which they find that it does not."""

    def __init__(self, node: Node, topic: Topic, promise_ms: float | None, lease: bool) -> None:
        self.topic, self.qos = topic, _qos(topic, ReliabilityPolicy.RELIABLE)
        if promise_ms is not None:
            self.qos.deadline = Duration(nanoseconds=int(promise_ms * 1e6))
        if promise_ms is not None and lease:
            self.qos.liveliness = LivelinessPolicy.MANUAL_BY_TOPIC
            self.qos.liveliness_lease_duration = Duration(nanoseconds=int(2 * promise_ms * 1e6))
        self._publisher = node.create_publisher(topic.cls, _name(topic), self.qos)
        self.resolved = self._publisher.topic_name
        self.failed = 0

    def write(self, message: Any) -> bool:
        try:
            self._publisher.publish(message)
        except RuntimeError as error:  # rclpy's own base: the middleware did not take it
            self.failed += 1
            log.debug("%s: %s", self.resolved, error)
            return False
        return True

    def readers(self) -> int:
        return int(self._publisher.get_subscription_count())

    def flush(self, seconds: float) -> None:
        self._publisher.wait_for_all_acked(Duration(seconds=seconds))


class RosService:
    """A client that keeps the response to its newest request."""

    def __init__(self, node: Node, name: str, cls: Any) -> None:
        self._client = node.create_client(cls, name)
        self.resolved = self._client.service_name
        self._lock = threading.Lock()
        self._answers: list[Any] = []
        self._newest: Any = None

    def ready(self) -> bool:
        return bool(self._client.service_is_ready())

    def send(self, request: Any) -> bool:
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
        with self._lock:
            found, self._answers = self._answers, []
        return found


class RosNetwork:
    """The topics and services of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._inputs: list[RosInput] = []
        self._outputs: list[RosOutput] = []
        self.resolved: dict[str, str] = {}  # a name of the file -> its name in the graph

    def input(self, topic: Topic) -> RosInput:
        self._inputs.append(self.feed(topic))
        return self._inputs[-1]

    def feed(self, topic: Topic) -> RosInput:
        made = RosInput(self._node, topic)
        self.resolved[_name(topic)] = made.resolved
        return made

    def output(self, topic: Topic, promise_ms: float | None = None, lease: bool = True) -> RosOutput:
        made = RosOutput(self._node, topic, promise_ms, lease)
        self.resolved[_name(topic)] = made.resolved
        self._outputs.append(made)
        return made

    def service(self, name: str, cls: Any, relative: bool) -> RosService:
        given = name.removeprefix("/") if relative else name
        made = RosService(self._node, given, cls)
        self.resolved[given] = made.resolved
        return made

    def problems(self) -> dict[str, str]:
        """By their names in the graph: a namespace or a remapping changes them."""
        found: dict[str, str | None] = {}
        for one in self._inputs:
            peers = self._node.get_publishers_info_by_topic(one.resolved)
            found[one.topic.name] = _problem(one, peers, reads=True)
        for out in self._outputs:
            peers = self._node.get_subscriptions_info_by_topic(out.resolved)
            found[out.topic.name] = _problem(out, peers, reads=False)
        return {name: why for name, why in found.items() if why is not None}

    def flush(self, seconds: float) -> None:
        for output in self._outputs:
            output.flush(seconds)


def _problem(end: RosInput | RosOutput, peers: Sequence[Any], reads: bool) -> str | None:
    """Return what keeps a topic and the endpoints of other nodes apart."""
    name, kind = end.resolved, end.topic.type
    if not peers:
        does = "publishes" if reads else "subscribes to"
        return f"No node {does} {name}. Start the robot, or correct the topic's name, ROS_DOMAIN_ID or the network."
    fitting = [peer for peer in peers if peer.topic_type == kind]
    if not fitting:
        does = "published" if reads else "subscribed to"
        theirs = peers[0].topic_type
        return f"{name} is {does} as {theirs}, and the robot's file says {kind}. No message passes. Correct the type."
    for peer in fitting:
        offered, wanted = (peer.qos_profile, end.qos) if reads else (end.qos, peer.qos_profile)
        compatible, reason = qos_check_compatible(offered, wanted)
        if compatible == QoSCompatibility.ERROR:
            theirs = f"{peer.node_namespace.rstrip('/')}/{peer.node_name}"
            what = f"QoS of {name} is incompatible with that of {theirs} ({reason.replace('ERROR: ', '').rstrip('; ')})"
            return f"{what}. No message passes. Correct qos in the robot's file, or the node."
    return None


def _name(topic: Topic) -> str:
    """As the file has it: a node's namespace goes before a name without a /."""
    return topic.name.removeprefix("/") if topic.relative else topic.name


def _qos(topic: Topic, usual: ReliabilityPolicy) -> QoSProfile:
    given = topic.qos.reliability
    kept = topic.qos.durability == "transient_local"
    return QoSProfile(
        depth=topic.qos.depth,
        history=HistoryPolicy.KEEP_LAST,
        reliability=usual if given is None else ReliabilityPolicy[given.upper()],
        durability=DurabilityPolicy.TRANSIENT_LOCAL if kept else DurabilityPolicy.VOLATILE,
        # Written out, as the graph reports them of others: unset ones would be found incompatible with these.
        deadline=Infinite,
        liveliness=LivelinessPolicy.AUTOMATIC,
        liveliness_lease_duration=Infinite,
    )


@contextmanager
def started(ros: Sequence[str], services: bool = True) -> Iterator[Node]:
    """A node with these arguments of ROS, run by a thread of its own until the end.

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
    """Return those of the guard, whose node has another name: what is resolved by this node's name
    (`-r pilot:/cmd_vel:=/base`) is written out. The first rule for a name holds; what was given besides comes after."""
    rules = {"__node": f"{node.get_name()}_guard", "__ns": node.get_namespace(), **resolved}
    return ["--ros-args", *(word for name, to in rules.items() for word in ("-r", f"{name}:={to}")), *ros[1:]]
