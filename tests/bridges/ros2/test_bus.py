"""DDS itself: bytes and hashes as ROS has them, the variables of its environment, and clocks that differ."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")
pytest.importorskip("rosbags", reason="rosbags (a development dependency) is not installed")

import numpy as np
from cyclonedds.builtin import BuiltinTopicDcpsPublication, BuiltinTopicDcpsSubscription
from cyclonedds.domain import DomainParticipant
from cyclonedds.qos import Policy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rtcontrol_client.ros2 import msgs
from rtcontrol_client.ros2.bus import Bus
from rtcontrol_client.ros2.dds import Delays, Peers
from rtcontrol_client.ros2.environment import COMPATIBILITY, domain
from rtcontrol_client.ros2.errors import Ros2BridgeError, Unmappable
from rtcontrol_client.ros2.msgs import MESSAGES
from tests.bridges.ros2 import definitions
from tests.bridges.ros2.robot import topic
from tests.helpers.processes import python, until
from tests.helpers.ros_domain import own_domain


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


# Messages against the independent `rosbags` package: the same bytes, both ways, and the same type hashes.


STORE = definitions.store()


def integers(bits: int, signed: bool) -> st.SearchStrategy[int]:
    low = -(1 << (bits - 1)) if signed else 0
    return st.integers(low, low + (1 << bits) - 1)


BASE: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    # A null byte ends a string on the wire.
    "string": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=9),
    "byte": st.integers(0, 255),
    "char": integers(8, False),
    "float32": st.floats(width=32, allow_nan=False),
    "float64": st.floats(allow_nan=False),
    **{f"int{n}": integers(n, True) for n in (8, 16, 32, 64)},
    **{f"uint{n}": integers(n, False) for n in (8, 16, 32, 64)},
}


def values(name: str) -> st.SearchStrategy[Any]:
    """Random messages of our class."""
    fields = {field: _values(kind.name, what) for field, (kind, what) in STORE.get_msgdef(name).fields}
    return st.builds(MESSAGES[name][0], **fields)


def _values(kind: str, what: Any) -> st.SearchStrategy[Any]:
    if kind == "BASE":
        return BASE[what[0]]
    if kind == "NAME":
        return values(what)
    (inner_kind, inner), length = what
    element = _values(inner_kind.name, inner)
    return st.lists(element, min_size=length, max_size=length) if kind == "ARRAY" else st.lists(element, max_size=4)


def theirs(name: str, message: Any) -> Any:
    """The same message as rosbags' class."""
    fields = {}
    for field, (kind, what) in STORE.get_msgdef(name).fields:
        fields[field] = _theirs(kind.name, what, getattr(message, field))
    return STORE.types[name](**fields)


def _theirs(kind: str, what: Any, value: Any) -> Any:
    if kind == "BASE":
        # rosbags packs an octet as signed.
        return value - 256 if what[0] == "byte" and value > 127 else value
    if kind == "NAME":
        return theirs(what, value)
    inner_kind, inner = what[0]
    if inner_kind.name == "NAME":
        return [theirs(inner, item) for item in value]
    if inner[0] == "string":
        return list(value)
    return np.array(value, dtype={"bool": "bool", "byte": "uint8", "char": "uint8"}.get(inner[0], inner[0]))


@pytest.mark.parametrize("name", MESSAGES)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_cdr_is_byte_equal_to_rosbags_and_decodes_equal_both_ways(name: str, data: st.DataObject) -> None:
    message = data.draw(values(name))
    ours = message.serialize()
    assert ours[:4] == b"\0\1\0\0"  # little endian XCDR1
    reference = bytes(STORE.serialize_cdr(theirs(name, message), name))
    assert ours == reference
    assert type(message).deserialize(reference) == message


@pytest.mark.parametrize("name", MESSAGES)
def test_defaults_are_those_of_the_definition_but_for_named_ones(name: str) -> None:
    message = MESSAGES[name][0]()
    assert type(message).deserialize(bytes(STORE.serialize_cdr(theirs(name, message), name))) == message


def test_nan_travels() -> None:
    temperature = MESSAGES["sensor_msgs/msg/Temperature"][0](temperature=math.nan)
    assert struct.pack("<d", math.nan) in temperature.serialize()


def test_shipped_definitions_and_type_hashes_are_those_of_rosbags() -> None:
    shipped = Path(msgs.__file__).with_name("definitions.msg").read_text("utf-8")
    assert shipped == definitions.text(STORE)


def test_type_hashes_are_those_that_ros_publishes() -> None:
    # As announced by real ROS 2 endpoints (`ros2 topic info -v /cmd_vel` of Jazzy).
    assert MESSAGES["geometry_msgs/msg/Twist"][1] == (
        "RIHS01_9c45bf16fe0983d80e3cfe750d6835843d265a9a6c46bd2e609fcddde6fb8d2a"
    )


@pytest.mark.parametrize("name", MESSAGES)
def test_type_names_are_those_of_the_ros_middleware(name: str) -> None:
    package, _, short = name.split("/")
    assert MESSAGES[name][0].__idl__.idl_transformed_typename == f"{package}::msg::dds_::{short}_"
    assert MESSAGES[name][0].__idl__.keyless


# ROS 2's environment variables, and clocks that differ.


def test_without_variables_it_is_domain_0_of_the_subnet_with_cyclones_defaults() -> None:
    found = domain({})
    assert (found.number, found.reach) == (0, "SUBNET")
    assert found.xml == f"<CycloneDDS><Domain>{COMPATIBILITY}</Domain></CycloneDDS>"


@pytest.mark.parametrize(
    "environ", [{"ROS_LOCALHOST_ONLY": "1"}, {"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}], ids=["older", "newer"]
)
def test_localhost_keeps_to_the_loopback_interface(environ: dict[str, str]) -> None:
    xml = domain(environ).xml
    assert 'NetworkInterface address="127.0.0.1"' in xml and '<Peer address="localhost"/>' in xml
    assert "<AllowMulticast>false</AllowMulticast>" in xml


def test_nodes_that_keep_to_this_machine_are_sought_by_default_and_where_nothing_else_is_asked_for() -> None:
    both, loopback_alone = domain({"ROS_STATIC_PEERS": "10.0.0.7"}).near
    assert 'autodetermine="true"' in both and 'address="127.0.0.1"' in both and "<Interfaces>" not in loopback_alone
    for xml in (both, loopback_alone):
        assert '<Peer address="localhost"/><Peer address="10.0.0.7"/>' in xml and COMPATIBILITY in xml
    for asked in (
        {"ROS_AUTOMATIC_DISCOVERY_RANGE": "OFF"},
        {"ROS_LOCALHOST_ONLY": "1"},
        {"CYCLONEDDS_URI": "file:///x"},
    ):
        assert domain(asked).near == ()


def test_off_finds_nobody_and_system_default_changes_nothing() -> None:
    off = domain({"ROS_AUTOMATIC_DISCOVERY_RANGE": "OFF", "ROS_STATIC_PEERS": "10.0.0.1"}).xml
    assert "<Tag>" in off and "Peer " not in off
    given = {"ROS_AUTOMATIC_DISCOVERY_RANGE": "SYSTEM_DEFAULT", "ROS_STATIC_PEERS": "10.0.0.1"}
    assert domain(given).xml == domain({}).xml


def test_static_peers_are_asked_beside_the_subnet() -> None:
    xml = domain({"ROS_STATIC_PEERS": 'robot.local;10.0.0.7;"'}).xml
    assert '<Peer address="robot.local"/><Peer address="10.0.0.7"/>' in xml
    assert "<Peer address='\"'/>" in xml
    assert "AllowMulticast" not in xml


def test_a_cyclonedds_uri_is_read_last() -> None:
    found = domain({"ROS_LOCALHOST_ONLY": "1", "CYCLONEDDS_URI": "file:///etc/cyclonedds.xml"})
    assert found.xml.endswith(",file:///etc/cyclonedds.xml")


@pytest.mark.parametrize(
    ("theirs", "ignored"),
    [("", "1.15,1.16"), ("<Compatibility><IgnoreTypeInformation>1.1</IgnoreTypeInformation></Compatibility>", "1.1")],
    ids=["says nothing of it", "says so"],
)
def test_types_that_others_announce_are_ignored_also_beside_a_users_configuration(
    tmp_path: Path, theirs: str, ignored: str
) -> None:
    told = "<Tracing><Verbosity>config</Verbosity><OutputFile>stdout</OutputFile></Tracing>"
    config = tmp_path / "cyclonedds.xml"
    config.write_text(f'<CycloneDDS><Domain Id="any">{told}{theirs}</Domain></CycloneDDS>')
    code = "import os; from rtcontrol_client.ros2 import bus, environment; bus.Bus(environment.domain(os.environ))"
    done = python("-c", code, env={**own_domain(), "CYCLONEDDS_URI": f"file://{config}"})
    assert f"Compatibility/IgnoreTypeInformation/#text: {ignored} " in done.stdout, done


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("RMW_IMPLEMENTATION", "rmw_zenoh_cpp"),
        ("ROS_DISCOVERY_SERVER", "10.0.0.7:11811"),
        ("ROS_SECURITY_ENABLE", "true"),
    ],
)
def test_environment_whose_nodes_cannot_be_met_is_refused_and_named(variable: str, value: str) -> None:
    with pytest.raises(Ros2BridgeError, match=f"{variable}={value} .*do not meet.* unset it here"):
        domain({variable: value})


@pytest.mark.parametrize(
    "rmw", ["rmw_fastrtps_cpp", "rmw_fastrtps_dynamic_cpp", "rmw_cyclonedds_cpp", "rmw_connextdds"]
)
def test_environment_of_a_middleware_that_is_dds_is_taken(rmw: str) -> None:
    sourced = {"RMW_IMPLEMENTATION": rmw, "ROS_SECURITY_ENABLE": "false", "ROS_DISCOVERY_SERVER": ""}
    assert domain(sourced) == domain({})


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"ROS_DOMAIN_ID": "233"}, "ROS_DOMAIN_ID=233 is no domain. Set a number from 0 to 232."),
        ({"ROS_DOMAIN_ID": "one"}, "ROS_DOMAIN_ID=one is no domain."),
        ({"ROS_AUTOMATIC_DISCOVERY_RANGE": "HOST"}, "ROS_AUTOMATIC_DISCOVERY_RANGE=HOST is unknown."),
    ],
)
def test_a_mistake_names_its_variable(environ: dict[str, str], says: str) -> None:
    with pytest.raises(Ros2BridgeError, match=says.replace(".", r"\.")):
        domain(environ)


MS = 1_000_000
WALL = 1_790_000_000_000 * MS


@given(st.integers(-(10**9), 10**9).map(lambda ms: ms * MS), st.lists(st.integers(0, 200), min_size=2, max_size=50))
def test_delays_are_measured_against_the_smallest_whatever_the_clocks_differ(skew: int, delays_ms: list[int]) -> None:
    delays = Delays()
    least = 10**9
    for i, delay_ms in enumerate(delays_ms):
        now = i * 50 * MS
        captured = delays.captured_ns(WALL + now - delay_ms * MS + skew, WALL + now, now)
        least = min(least, delay_ms)
        assert now - captured == (delay_ms - least) * MS


def ages_ms(sources: Iterable[int]) -> list[int]:
    """The ages of messages that come each 50 ms."""
    delays = Delays()
    return [(i * 50 * MS - delays.captured_ns(s, WALL + i * 50 * MS, i * 50 * MS)) // MS for i, s in enumerate(sources)]


def test_a_clock_of_the_sender_that_is_set_back_a_little_is_forgiven_within_a_minute() -> None:
    ages = ages_ms(WALL + i * 50 * MS - (150 * MS if i >= 20 else 0) for i in range(1300))
    assert ages[:20] == [0] * 20 and ages[20] == 150 and ages[-1] == 0


def test_a_clock_of_the_sender_that_is_set_back_far_makes_no_message_old() -> None:
    assert ages_ms(WALL + i * 50 * MS - (3_600_000 * MS if i >= 20 else 0) for i in range(100)) == [0] * 100


def test_one_stamp_of_the_far_future_makes_no_later_message_old() -> None:
    ages = ages_ms((1 << 63) - 1 if i == 20 else WALL + i * 50 * MS - (70 * MS if i > 30 else 0) for i in range(40))
    assert ages == [0] * 31 + [70] * 9


@pytest.mark.parametrize("source_ns", [0, -1, -(1 << 63)])
def test_a_sender_that_gives_no_stamp_speaks_now(source_ns: int) -> None:
    assert ages_ms([source_ns] * 100) == [0] * 100


def test_our_own_wall_clock_that_is_set_changes_no_age() -> None:
    delays = Delays()
    for i in range(100):
        now = i * 50 * MS
        wall = WALL + now + (3_600_000 * MS if i >= 50 else 0)
        source = wall - 2 * MS
        assert delays.captured_ns(source, wall, now) == now
    for i in range(100, 200):
        now = i * 50 * MS
        assert delays.captured_ns(WALL + now - 2 * MS, WALL + now, now) == now
