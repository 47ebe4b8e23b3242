"""The DDS participant: what the bridge hears and tells the robot through."""

from __future__ import annotations

import contextlib
import re
import socket as sockets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cyclonedds.builtin import BuiltinTopicDcpsPublication, BuiltinTopicDcpsSubscription
from cyclonedds.core import DDSException
from cyclonedds.domain import Domain as DdsDomain
from cyclonedds.domain import DomainParticipant
from cyclonedds.qos import Policy

from rtcontrol_client.ros2.dds import DdsPeer, Input, Output, Peers, dds_name, dds_type, other_definition
from rtcontrol_client.ros2.dds_services import DdsService
from rtcontrol_client.ros2.definitions import ServiceType
from rtcontrol_client.ros2.environment import Domain
from rtcontrol_client.ros2.errors import Ros2BridgeError
from rtcontrol_client.ros2.graph import PARTICIPANT, NodeName
from rtcontrol_client.ros2.parts import Topic

NODE = "rtcontrol_bridge"  # as that of the rclpy node
_RANK = {"best_effort": 0, "reliable": 1, "volatile": 0, "transient_local": 1}


def reading(entry: Input, peers: Sequence[DdsPeer]) -> str | None:
    """What keeps a topic from being heard; `peers` are its publishers."""
    words = ("publishes", "is published as", "its publisher", "offers", "asks for")
    return _problem(entry, entry.writers(), peers, "best_effort", words)


def writing(out: Output, peers: Sequence[DdsPeer]) -> str | None:
    """What keeps a topic from being told; `peers` are its subscribers."""
    words = ("subscribes to", "is subscribed to as", "a subscriber", "asks for", "offers")
    return _problem(out, out.readers(), peers, "reliable", words)


def _problem(
    end: Input | Output, matched: int, peers: Sequence[DdsPeer], usual: str, words: tuple[str, str, str, str, str]
) -> str | None:
    does, typed, who, they, we = words
    name, qos = end.topic.name, end.topic.qos
    if not peers:
        return f"Nobody {does} {name}. Start the robot, or correct the topic's name, ROS_DOMAIN_ID or the network."
    if other := next((peer for peer in peers if peer.differs(end.topic)), None):
        return other_definition(f"{name} {typed}", other, end.topic)
    if matched >= len(peers):
        return None  # also under another name: DDS compares what a type is made of
    fitting = [peer for peer in peers if peer.type == dds_type(end.topic)]
    if not fitting:
        return _type(name, typed, peers[0], end.topic.type)
    own = (qos.reliability or usual, qos.durability)
    for peer in fitting:
        for key, theirs, ours in zip(("reliability", "durability"), _of(peer), own, strict=True):
            offered, asked = (theirs, ours) if they == "offers" else (ours, theirs)
            if _RANK[offered] < _RANK[asked]:
                return _qos(name, f"{who} {they} {theirs}", f"qos.{key} {we} {ours}")
    count, policy = end.incompatible()
    if count and not matched:
        return _qos(name, f"{who}'s {policy} does not suit us", "no key changes that here")
    return None


def _of(peer: DdsPeer) -> tuple[str, str]:
    best_effort = Policy.Reliability.BestEffort
    reliable = Policy.Reliability in peer.qos and peer.qos[Policy.Reliability] != best_effort
    kept = Policy.Durability in peer.qos and peer.qos[Policy.Durability] != Policy.Durability.Volatile
    return "reliable" if reliable else "best_effort", "transient_local" if kept else "volatile"


def _qos(name: str, theirs: str, ours: str) -> str:
    what = f"QoS of {name} is incompatible: {theirs}, and in our file {ours}."
    return f"{what} No message passes. Correct the key, or the node."


def _type(name: str, verb: str, peer: DdsPeer, ours: str) -> str:
    theirs = peer.type.replace("::dds_::", "::").removesuffix("_").replace("::", "/")
    return f"{name} {verb} {theirs}, and our file says {ours}. No message passes. Correct the type."


class Bus:
    """Our participant in a domain. Raises Ros2BridgeError where the network or a topic's name cannot be used."""

    def __init__(self, domain: Domain) -> None:
        _resolve(domain.peers)
        try:
            self._domain = _opened(domain)
            self._participant = DomainParticipant(domain.number, PARTICIPANT)
        except DDSException as error:
            raise Ros2BridgeError(
                f"DDS domain {domain.number} cannot be opened ({error.msg or error}).",
                "Look at ROS_DOMAIN_ID, ROS_AUTOMATIC_DISCOVERY_RANGE and CYCLONEDDS_URI.",
            ) from None
        self._publications = Peers(self._participant, BuiltinTopicDcpsPublication)
        self._subscriptions = Peers(self._participant, BuiltinTopicDcpsSubscription)
        self.inputs: list[Input] = []
        self.outputs: list[Output] = []
        self._senders: list[Output] = []  # of requests
        self._hidden: list[Input] = []
        self._name = NodeName(self._participant, NODE)

    def input(self, topic: Topic) -> Input:
        """Begin to read a topic."""
        with _named(topic):
            self.inputs.append(Input(self._participant, topic))
        return self.inputs[-1]

    def output(self, topic: Topic, promise_ms: float | None = None, lease: bool = True) -> Output:
        """Begin to write a topic; `promise_ms` and `lease` as in Output."""
        with _named(topic):
            self.outputs.append(Output(self._participant, topic, promise_ms, lease))
        return self.outputs[-1]

    def listen(self, topic: Topic) -> Input:
        """Begin to read a topic of which `problems` says nothing."""
        with _named(topic):
            self._hidden.append(Input(self._participant, topic))
        return self._hidden[-1]

    def service(self, name: str, kind: ServiceType, relative: bool, listens: bool = True) -> DdsService:
        """Begin to be a client of a service."""
        return DdsService(name, kind, (self._sender, self.listen), self.subscribers, listens)

    def _sender(self, topic: Topic) -> Output:
        with _named(topic):
            self._senders.append(Output(self._participant, topic))
        return self._senders[-1]

    def publishers(self) -> list[DdsPeer]:
        """Everybody else's publishers in the domain now."""
        return self._publications.now()

    def subscribers(self) -> list[DdsPeer]:
        """Everybody else's subscribers in the domain now."""
        return self._subscriptions.now()

    def problems(self) -> dict[str, str]:
        """Topic -> what is wrong with it now; nothing for those in order. Takes a few milliseconds. Our name is told to
        nodes that have come since the last time."""
        publishers, subscribers = self.publishers(), self.subscribers()
        self._name.tell(subscribers, [*self.inputs, *self._hidden], [*self.outputs, *self._senders])
        found: dict[str, str] = {}
        for entry in self.inputs:
            if problem := reading(entry, [p for p in publishers if p.topic == dds_name(entry.topic)]):
                found[entry.topic.name] = problem
        for out in self.outputs:
            if problem := writing(out, [p for p in subscribers if p.topic == dds_name(out.topic)]):
                found[out.topic.name] = problem
        return found

    def flush(self, seconds: float) -> None:
        """Wait until every matched subscriber has what was written, at most so long for each topic."""
        for output in [*self.outputs, *self._senders]:
            # cyclonedds 11.0.1 stumbles over its own time-out: it looks for the code in the wrong class.
            with contextlib.suppress(DDSException, AttributeError):
                output.entity.wait_for_acks(int(seconds * 1e9))


def _opened(domain: Domain) -> DdsDomain:
    for xml in domain.near[len(sockets.if_nameindex()) == 1 :]:
        with contextlib.suppress(DDSException):  # the other interfaces are down, so it chose loopback
            return DdsDomain(domain.number, xml)
    return DdsDomain(domain.number, domain.xml)


@contextmanager
def _named(topic: Topic) -> Iterator[None]:
    try:
        yield
    except DDSException as error:
        what = f"DDS does not take {topic.name} of the type {topic.type} ({error.msg or error})."
        raise Ros2BridgeError(what, "Correct its name, type or QoS in the robot's file.") from None


def _resolve(peers: Sequence[str]) -> None:
    # cyclonedds 11.0.1 ends the process (SIGABRT) at a peer whose name nobody knows.
    for peer in peers:
        try:
            sockets.getaddrinfo(re.sub(r"^([^:]+):\d+$", r"\1", peer), None)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no name of a host"
            raise Ros2BridgeError(
                f"The host {peer!r} of ROS_STATIC_PEERS is unknown ({reason}).", "Correct it, or give its address."
            ) from None
