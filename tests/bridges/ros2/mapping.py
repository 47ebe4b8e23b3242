"""Mappings for tests: the example with changes, or one with a single field that is read or published."""

from __future__ import annotations

import copy
from typing import Any

import yaml

from rtcontrol_client.ros2 import EXAMPLE as ROBOT
from rtcontrol_client.ros2 import config
from rtcontrol_client.ros2.mapper import Mapper
from tests.bridges.ros2.messages import nav_msgs, sensor_msgs

EXAMPLE = yaml.safe_load(ROBOT.read_text("utf-8"))


def mapper(change: Any = None) -> Mapper:
    value = copy.deepcopy(EXAMPLE)
    if change is not None:
        change(value)
    return Mapper(config.parse(yaml.safe_dump(value, sort_keys=False), "robot.yaml"), "robot.yaml")


def reads(kind: str, message: Any, **spec: Any) -> Any:
    """Return the value that a field spec reads from a message of a type."""
    topics = {"/t": {"type": kind, "fields": {"f": spec}}}
    return mapper(put("observe", value={"topics": topics})).sources[0].read(message)["f"]


def publishes(kind: str, fields: dict[str, Any], arguments: dict[str, Any], parameters: dict[str, Any]) -> Any:
    """Return the message that a call publishes, for a tool with one publication."""
    publish = {"/t": {"type": kind, "set": fields}}
    act = {"description": "", "parameters": parameters, "publish": publish}
    return mapper(put("tools", "act", value=act)).publications("act", arguments, 1_500_000_000)[0].message


# The observation of a robot at rest with nothing near.
SENSES: dict[str, Any] = {
    "/scan": sensor_msgs.LaserScan(angle_min=-3.1, angle_increment=0.1, range_max=9.0, ranges=[5.0] * 62),
    "/odom": nav_msgs.Odometry(),
}
SENSES["/odom"].pose.pose.orientation.w = 1.0
NUMBER = {"v": {"type": "number"}}


def put(*keys: str, value: Any) -> Any:
    """Return a change for `mapper` that sets one key of the example."""

    def change(root: dict[str, Any]) -> None:
        for key in keys[:-1]:
            root = root[key]
        root[keys[-1]] = value

    return change


# A mapping with a service and an action of server.py.
LINKED: dict[str, Any] = {
    "hz": 16,
    "instruction": "wait",
    "observe": {
        "text": "beat {beat} count {count} at {at} got {got}",
        "topics": {"/beat": {"type": "std_msgs/Float64", "fields": {"beat": "data"}}},
        "actions": {
            "/count": {
                "fields": {
                    "count": "state",
                    "at": {"path": "feedback.sequence[1]", "digits": 0},
                    "got": {"path": "result.sequence[2]", "digits": 0},
                }
            }
        },
    },
    "tools": {
        "count": {
            "description": "Count.",
            "parameters": {"to": {"type": "integer"}},
            "goal": {"/count": {"type": "test_msgs/Fibonacci", "set": {"order": {"from": "to", "min": 0, "max": 900}}}},
        },
        "lamp": {
            "description": "Switch the lamp.",
            "parameters": {"on": {"type": "boolean"}},
            "request": {"/lamp": {"type": "std_srvs/SetBool", "set": {"data": {"from": "on"}}}},
        },
        "knock": {"description": "Knock.", "request": {"/knock": {"type": "std_srvs/srv/Trigger"}}},
        "wait": {"description": "Do nothing else."},
        "stop": {"description": "Count no more.", "request": {"/lamp": {"type": "std_srvs/SetBool"}}},
    },
    "safe": "stop",
}


def linked_file(change: Any = None) -> str:
    """Return the text of the file with a service and an action, after a change."""
    value = copy.deepcopy(LINKED)
    if change is not None:
        change(value)
    return yaml.safe_dump(value, sort_keys=False)


def linked(change: Any = None) -> Mapper:
    return Mapper(config.parse(linked_file(change), "robot.yaml"), "robot.yaml")
