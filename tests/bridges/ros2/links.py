"""The example's mapping with a service and an action of rclpy_server.py, and the action's definition."""

from __future__ import annotations

import copy
from typing import Any

import yaml

from rtcontrol_client.ros2 import config
from rtcontrol_client.ros2.mapper import Mapper
from tests.bridges.ros2.mapping import put

FIBONACCI = "int32 order\n---\nint32[] sequence\n---\nint32[] sequence"
ROBOT: dict[str, Any] = {
    "hz": 16,
    "instruction": "wait",
    "answer_ms": 1000,
    "types": {"test_msgs/action/Fibonacci": FIBONACCI},
    "observe": {
        "text": "beat {beat} count {count} at {at} got {got} lamp {lamp} on {on} knock {knock}",
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
        "services": {
            "/lamp": {"fields": {"lamp": "state", "on": "response.message"}},
            "/knock": {"fields": {"knock": {"path": "state"}}},
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


def robot(change: Any = None) -> str:
    """The file's text."""
    value = copy.deepcopy(ROBOT)
    if change is not None:
        change(value)
    return yaml.safe_dump(value, sort_keys=False)


def linked(change: Any = None) -> Mapper:
    return Mapper(config.parse(robot(change), "robot.yaml"), "robot.yaml")


def without_lamp(value: dict[str, Any]) -> None:
    """The safe call asks no service."""
    put("tools", "stop", value={"description": "Count no more."})(value)
