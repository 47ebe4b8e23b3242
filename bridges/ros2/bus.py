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

from rtcontrol.bridges.ros2.dds import DdsPeer, Input, Output, Peers, dds_name
from rtcontrol.bridges.ros2.environment import Domain
from rtcontrol.bridges.ros2.errors import Ros2BridgeError
from rtcontrol.bridges.ros2.mapper import Topic
from rtcontrol.bridges.ros2.peers import reading, writing


class Bus:
    """Our participant in a domain. Raises Ros2BridgeError where the network or a topic's name cannot be used."""

    def __init__(self, domain: Domain) -> None:
        _resolve(domain.peers)
        try:
            self._domain = _opened(domain)
            self._participant = DomainParticipant(domain.number)
        except DDSException as error:
            raise Ros2BridgeError(
                f"DDS domain {domain.number} cannot be opened ({error.msg or error}).",
                "Look at ROS_DOMAIN_ID, ROS_AUTOMATIC_DISCOVERY_RANGE and CYCLONEDDS_URI.",
            ) from None
        self._publications = Peers(self._participant, BuiltinTopicDcpsPublication)
        self._subscriptions = Peers(self._participant, BuiltinTopicDcpsSubscription)
        self.inputs: list[Input] = []
        self.outputs: list[Output] = []

    def input(self, topic: Topic) -> Input:
        """Begin to read a topic."""
        with _named(topic):
            self.inputs.append(Input(self._participant, topic))
        return self.inputs[-1]

    def output(self, topic: Topic, promise_ms: float | None = None) -> Output:
        """Begin to write a topic; `promise_ms` as in Output."""
        with _named(topic):
            self.outputs.append(Output(self._participant, topic, promise_ms))
        return self.outputs[-1]

    def publishers(self) -> list[DdsPeer]:
        """Everybody else's publishers in the domain now."""
        return self._publications.now()

    def subscribers(self) -> list[DdsPeer]:
        """Everybody else's subscribers in the domain now."""
        return self._subscriptions.now()

    def problems(self) -> dict[str, str]:
        """Topic -> what is wrong with it now; nothing for those in order. Takes a few milliseconds."""
        publishers, subscribers = self.publishers(), self.subscribers()
        found: dict[str, str] = {}
        for entry in self.inputs:
            if problem := reading(entry, [p for p in publishers if p.topic == dds_name(entry.topic.name)]):
                found[entry.topic.name] = problem
        for out in self.outputs:
            if problem := writing(out, [p for p in subscribers if p.topic == dds_name(out.topic.name)]):
                found[out.topic.name] = problem
        return found

    def flush(self, seconds: float) -> None:
        """Wait until every matched subscriber has what was written, at most so long for each topic."""
        for output in self.outputs:
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
