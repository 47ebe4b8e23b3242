"""Messages against the independent `rosbags` package: the same bytes, both ways, and the same type hashes."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")
pytest.importorskip("rosbags", reason="rosbags (a development dependency) is not installed")

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rtcontrol.bridges.ros2 import msgs
from rtcontrol.bridges.ros2.msgs import MESSAGES
from tests.bridges.ros2 import definitions

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
