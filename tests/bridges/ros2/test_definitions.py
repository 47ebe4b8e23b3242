"""Types that a robot's file defines: read as ROS reads them, hashed as ROS hashes them, and what mistakes are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")

from rtcontrol_client.ros2 import config
from rtcontrol_client.ros2.bus import Bus
from rtcontrol_client.ros2.config import Qos
from rtcontrol_client.ros2.definitions import Definitions, read_types
from rtcontrol_client.ros2.environment import domain as dds_domain
from rtcontrol_client.ros2.errors import Ros2BridgeError
from rtcontrol_client.ros2.mapper import Mapper
from rtcontrol_client.ros2.parts import Topic
from rtcontrol_client.ros2.typehash import type_hash
from tests.bridges.ros2.conftest import Peer, folder_of, with_packages
from tests.bridges.ros2.filling import values
from tests.bridges.ros2.mapping import EXAMPLE, mapper, put
from tests.helpers.processes import until

NO_WIDE = {"test_msgs/msg/WStrings"}


def test_every_type_of_a_real_ros_is_read_and_has_the_hash_that_ros_gave_it(ros: str) -> None:
    share = folder_of(ros)
    texts = read_types([p.name for p in sorted(share.iterdir()) if p.is_dir() and _defines(p)], share, "robot.yaml")
    types = Definitions({name: text for name, text in texts.items() if name not in NO_WIDE}, "robot.yaml")
    asked = {"msg": types.message, "srv": types.service, "action": types.action}
    for name in texts.keys() - NO_WIDE:
        asked[name.split("/")[1]](name)
    checked = 0
    for file in share.rglob("*.json"):
        for given in json.loads(file.read_text("utf-8")).get("type_hashes", []):
            if (name := given["type_name"]) in types._fields:
                assert type_hash(name, types._fields) == given["hash_string"], name
                checked += 1
    print(f"\n{checked} types of {len(texts)} files")
    assert checked > 200


def _defines(package: Path) -> bool:
    return any((package / form).is_dir() for form in ("msg", "srv", "action"))


@pytest.mark.parametrize("short", ["Nested", "BoundedSequences", "Defaults", "MultiNested", "Constants", "Builtins"])
def test_types_that_the_bridge_does_not_ship_pass_both_ways(
    ros: str, short: str, domain: dict[str, str], tmp_path: Path
) -> None:
    name = f"test_msgs/msg/{short}"
    types = Definitions(read_types(["test_msgs/msg"], folder_of(with_packages(ros, "test_msgs")), "robot.yaml"), "")
    topics = [Topic(f"/{end}", *types.message(name), Qos(reliability="reliable", depth=10)) for end in ("a", "b")]
    peer, bus = Peer(ros, domain, tmp_path / "peer.log"), Bus(dds_domain(domain))
    try:
        peer.ask("publisher", topic="/a", type=name)
        peer.ask("subscriber", topic="/b", type=name)
        reader, writer = bus.input(topics[0]), bus.output(topics[1])
        until(lambda: writer.readers() and reader.writers(), "they are not matched")
        until(lambda: peer.ask("matched") == {"/a": 2, "/b": 1}, "they have not found us")
        assert set(peer.ask("hashes", topic="/a") + peer.ask("hashes", topic="/b")) == {topics[0].type_hash}
        message = topics[0].cls()  # with the defaults that the file gives
        peer.ask("publish", topic="/a", messages=[values(message)])
        read: list[Any] = []
        until(lambda: read.extend(reader.take()) or read, "theirs is lost")
        assert writer.write(message)
        heard: list[Any] = []
        until(lambda: heard.extend(peer.ask("heard", topic="/b")) or heard, "ours is not heard")
        assert values(read[0]) == values(message) and heard == [values(message)]
    finally:
        peer.kill()


# A definition of another release is a usual mistake with px4_msgs (ARK-Electronics/tracktor-beam#8).
def test_a_definition_that_is_not_the_robots_is_told_by_its_hash(
    ros: str, domain: dict[str, str], tmp_path: Path
) -> None:
    types = Definitions({"test_msgs/msg/Builtins": "builtin_interfaces/Time duration_value"}, "robot.yaml")
    topics = [Topic(f"/{end}", *types.message("test_msgs/msg/Builtins"), Qos()) for end in ("a", "b")]
    peer, bus = Peer(with_packages(ros, "test_msgs"), domain, tmp_path / "peer.log"), Bus(dds_domain(domain))
    try:
        peer.ask("publisher", topic="/a", type="test_msgs/msg/Builtins")
        peer.ask("subscriber", topic="/b", type="test_msgs/msg/Builtins")
        bus.input(topics[0]), bus.output(topics[1])
        for name, typed in (("/a", "is published as"), ("/b", "is subscribed to as")):
            says = (
                f"{name} {typed} another test_msgs/msg/Builtins than ours: its node's definition has the hash RIHS01_"
            )
            until(lambda name=name, says=says: says in bus.problems().get(name, ""), "nobody tells it")
    finally:
        peer.kill()


PX4 = """
# Setpoint of a vehicle (a comment with an "apostrophe's")
uint32 MESSAGE_VERSION = 0
uint64 timestamp # us
float32[3] position      # m
bool rising true
float32 scale 2
string name "o # p" # why
geometry_msgs/Point[] path
Part part
"""
PART = "int8[<=4] few\nstring<=8 word"


def test_a_definition_of_the_file_is_published_with_its_defaults_byte_for_byte_as_another_reads_it() -> None:
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    tool = {
        "description": "",
        "publish": {"/in": {"type": "px/Set", "set": {"timestamp": 7, "position[1]": 1.5, "path[0].x": 2.5}}},
    }
    made = mapper(
        lambda c: (put("types", value={"px/msg/Set": PX4, "px/msg/Part": PART})(c), put("tools", "t", value=tool)(c))
    )
    (published,) = made.publications("t", {}, 0)
    store = get_typestore(Stores.ROS2_JAZZY)
    store.register(get_types_from_msg("int8[] few\nstring word", "px/msg/Part"))
    theirs = "\n".join(
        line.split("#")[0]
        .replace(" true", "")
        .replace("scale 2", "scale")
        .replace('name "o', "name")
        .replace("geometry_msgs/Point", "geometry_msgs/msg/Point")
        for line in PX4.splitlines()
    )
    store.register(get_types_from_msg(theirs, "px/msg/Set"))
    read = store.deserialize_cdr(published.message.serialize(), "px/msg/Set")
    assert (read.timestamp, list(read.position), read.rising, read.scale) == (7, [0, 1.5, 0], True, 2.0)
    assert (read.name, read.path[0].x, list(read.part.few)) == ("o # p", 2.5, [])


@pytest.mark.parametrize(
    ("types", "asked", "says"),
    [
        ({"px/Set": "int8 a"}, None, "types.px/Set: it is no name of a type. Write package/msg/Name"),
        ({"px/msg/Set": "int8"}, "px/Set", "types.px/msg/Set: line 1: 'int8' is no field."),
        ({"px/msg/Set": "wstring a"}, "px/Set", "types.px/msg/Set: a wstring cannot be read or written here."),
        ({"px/msg/Set": "int8 a\nint8 a"}, "px/Set", "types.px/msg/Set: line 2: a is there twice."),
        ({"px/msg/Set": "int8 from"}, "px/Set", "types.px/msg/Set: line 1: from is a word of Python."),
        ({"px/msg/Set": "Other a"}, "px/Set", "types.px/msg/Set: it holds px/msg/Other, which nobody defines."),
        ({"px/msg/Set": "Set a"}, "px/Set", "types.px/msg/Set: it holds px/msg/Set, and that one it."),
        ({"px/msg/A": "B b", "px/msg/B": "A[] a"}, "px/A", "types.px/msg/B: it holds px/msg/A, and that one it."),
        ({"px/msg/Set": "int8 a five"}, "px/Set", "types.px/msg/Set: 'five' is no default of int8 a."),
        ({"px/msg/Set": "int8 a\n---"}, "px/Set", "types.px/msg/Set: it has 2 parts, and a .msg has 1"),
        ({"std_msgs/msg/Bool": "int8 data"}, None, "types.std_msgs/msg/Bool: it is another than the bridge's own."),
        ({}, "px/Set", "unknown message type 'px/Set'; known are "),
    ],
)
def test_a_mistake_in_a_definition_names_it_and_the_remedy(types: Any, asked: str | None, says: str) -> None:
    def change(c: Any) -> None:
        put("types", value=types)(c)
        if asked:
            put("tools", "t", value={"description": "", "publish": {"/in": {"type": asked}}})(c)

    with pytest.raises(Ros2BridgeError) as raised:
        mapper(change)
    assert says in str(raised.value) and raised.value.remedy


def test_files_are_found_beside_the_robots_and_a_folder_may_hold_what_nobody_can_read(tmp_path: Path) -> None:
    import yaml

    folder = tmp_path / "px" / "msg"
    folder.mkdir(parents=True)
    (folder / "Set.msg").write_text("int8 a 3\n")
    (folder / "Strange.msg").write_text("elsewhere_msgs/Thing thing\nwstring w\n")
    (tmp_path / "px" / "notes.msg").write_text("no definition")
    text = {**EXAMPLE, "type_files": ["px"]}
    text["tools"] = {**text["tools"], "t": {"description": "", "publish": {"/in": {"type": "px/msg/Set"}}}}
    (tmp_path / "robot.yaml").write_text(yaml.safe_dump(text))
    made = Mapper(config.load(tmp_path / "robot.yaml"), "robot.yaml")
    assert made.publications("t", {}, 0)[0].message.a == 3
    again = config.RobotConfig.model_validate_json(made.config.model_dump_json(by_alias=True, exclude_unset=True))
    assert Mapper(again, "the guard's").publications("t", {}, 0)[0].message.a == 3


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere/msg/Set.msg", "nowhere/msg/Set.msg cannot be read (No such file or directory)."),
        ("Set.msg", "Set.msg tells no package. Keep it in PACKAGE/msg/NAME.msg"),
        ("empty", "empty holds no definitions. Name a file, or their folder."),
        ("px/msg/Bad.msg", "Bad.msg cannot be read (it is no UTF-8 text)."),
    ],
)
def test_a_file_that_is_no_definition_is_told(name: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "px" / "msg").mkdir(parents=True)
    (tmp_path / "px" / "msg" / "Bad.msg").write_bytes(b"\xff\xfe")
    with pytest.raises(Ros2BridgeError) as raised:
        read_types([name], tmp_path, "robot.yaml")
    assert str(raised.value).startswith("robot.yaml: type_files: ") and says in str(raised.value)
