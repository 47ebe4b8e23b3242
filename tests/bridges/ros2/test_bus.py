"""DDS itself: what cannot be written, and what it does not take."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")

from cyclonedds.builtin import BuiltinTopicDcpsPublication, BuiltinTopicDcpsSubscription
from cyclonedds.domain import DomainParticipant
from cyclonedds.qos import Policy

from rtcontrol.bridges.ros2.bus import Bus
from rtcontrol.bridges.ros2.dds import Peers
from rtcontrol.bridges.ros2.environment import domain
from rtcontrol.bridges.ros2.errors import Ros2BridgeError, Unmappable
from rtcontrol.bridges.ros2.msgs import MESSAGES
from tests.bridges.ros2.conftest import own_domain
from tests.bridges.ros2.robot import topic
from tests.helpers.processes import until


@pytest.fixture
def bus() -> Bus:
    return Bus(domain(own_domain()))


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("ackermann_msgs/msg/AckermannDrive", "speed", 1e300),
        ("std_msgs/msg/UInt8", "data", 256),
        ("std_msgs/msg/Float64", "data", "fast"),
        ("std_msgs/msg/String", "data", "\ud800"),
    ],
)
def test_message_that_its_type_cannot_hold_is_refused(bus: Bus, kind: str, field: str, value: Any) -> None:
    output = bus.output(topic("/out", kind))
    with pytest.raises(Unmappable, match="/out: "):
        output.write(MESSAGES[kind][0](**{field: value}))
    assert output.write(MESSAGES[kind][0]()) and output.failed == 0


def test_topic_that_dds_does_not_take_is_named(bus: Bus) -> None:
    with pytest.raises(Ros2BridgeError, match="DDS does not take /sc\xe4n of the type sensor_msgs/msg/LaserScan"):
        bus.input(topic("/sc\xe4n", "sensor_msgs/LaserScan"))


def test_endpoints_announce_the_hash_of_their_type_as_ros_does(bus: Bus) -> None:
    bus.output(topic("/out", "geometry_msgs/Twist"))
    bus.input(topic("/in", "geometry_msgs/Twist"))
    announced = Policy.Userdata(f"typehash={MESSAGES['geometry_msgs/msg/Twist'][1]};".encode())
    other = DomainParticipant(bus._participant.domain_id)
    for kind, name in ((BuiltinTopicDcpsPublication, "rt/out"), (BuiltinTopicDcpsSubscription, "rt/in")):
        peers = Peers(other, kind)
        until(lambda peers=peers, name=name: name in {peer.topic for peer in peers.now()}, f"{name} is not discovered")
        (found,) = [peer for peer in peers.now() if peer.topic == name]
        assert announced in found.qos
