"""Message classes for tests without ROS, with the names and fields of the real classes.

Importing this module adds packages such as `geometry_msgs.msg` to `sys.modules`, made from the definitions in
`rosbags`. A field accepts the same values as in ROS with ROS_PYTHON_CHECK_FIELDS=1, so a value of a wrong type fails in
these tests too; test_real_ros.py compares the fields with those of a real ROS.
"""

from __future__ import annotations

import array
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

from rosbags.typesys import Stores, get_types_from_msg, get_typestore

# Types that the examples and tests need, but that rosbags does not have.
EXTRA = {
    "ackermann_msgs/msg/AckermannDrive": "float32 steering_angle\nfloat32 speed",
    "ackermann_msgs/msg/AckermannDriveStamped": "std_msgs/Header header\nackermann_msgs/AckermannDrive drive",
    "std_srvs/msg/SetBool_Request": "bool data",
    "std_srvs/msg/SetBool_Response": "bool success\nstring message",
    "std_srvs/msg/Trigger_Request": "",
    "std_srvs/msg/Trigger_Response": "bool success\nstring message",
    "test_msgs/msg/Fibonacci_Goal": "int32 order",
    "test_msgs/msg/Fibonacci_Result": "int32[] sequence",
    "test_msgs/msg/Fibonacci_Feedback": "int32[] sequence",
    "nav2_msgs/msg/NavigateToPose_Goal": "geometry_msgs/PoseStamped pose\nstring behavior_tree",
    "nav2_msgs/msg/NavigateToPose_Result": "uint16 error_code\nstring error_msg",
    "nav2_msgs/msg/NavigateToPose_Feedback": "int16 number_of_recoveries\nfloat32 distance_remaining",
    "control_msgs/msg/FollowJointTrajectory_Goal": "trajectory_msgs/JointTrajectory trajectory",
    "control_msgs/msg/FollowJointTrajectory_Result": "int32 error_code\nstring error_string",
    "control_msgs/msg/FollowJointTrajectory_Feedback": "std_msgs/Header header",
}
SERVICES = ("std_srvs/SetBool", "std_srvs/Trigger")
ACTIONS = ("test_msgs/Fibonacci", "nav2_msgs/NavigateToPose", "control_msgs/FollowJointTrajectory")
CODES = {"float": "f", "double": "d", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H"}
CODES |= {"int32": "i", "uint32": "I", "int64": "q", "uint64": "Q"}
IDL = {"bool": "boolean", "byte": "octet", "char": "uint8", "float32": "float", "float64": "double"}
ZERO: dict[str, Any] = {"boolean": False, "string": "", "octet": b"\0", "float": 0.0, "double": 0.0}

STORE = get_typestore(Stores.ROS2_JAZZY)
for _name, _text in EXTRA.items():
    STORE.register(get_types_from_msg(_text, _name))
MESSAGES: dict[str, type[Any]] = {}


class Message:
    """Base class of all messages. `kinds` are the fields' types as ROS writes them."""

    kinds: dict[str, str]

    def __init__(self, **values: Any) -> None:
        assert set(values) <= set(self.kinds), values
        for name, kind in self.kinds.items():
            setattr(self, name, values[name] if name in values else _default(kind))

    @classmethod
    def get_fields_and_field_types(cls) -> dict[str, str]:
        return dict(cls.kinds)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, _taken(self.kinds[name], value))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({vars(self)})"


def _default(kind: str) -> Any:
    if match := re.fullmatch(r"(.+)\[(\d+)\]", kind):
        return [_default(match[1]) for _ in range(int(match[2]))]
    if kind.startswith("sequence<"):
        return []
    return _class(kind)() if "/" in kind else ZERO.get(kind, 0)


def _taken(kind: str, value: Any) -> Any:
    """Return the value as ROS's class stores it. Raises AssertionError if ROS would refuse the value."""
    if match := re.fullmatch(r"sequence<(.+?)>|(.+)\[(\d+)\]", kind):
        inner = match[1] or match[2]
        assert isinstance(value, list | array.array) and len(value) == int(match[3] or len(value)), (kind, value)
        taken = [_taken(inner, one) for one in value]
        return array.array(CODES[inner], taken) if inner in CODES else taken
    if "/" in kind:
        assert isinstance(value, _class(kind)), (kind, value)
    elif kind in CODES:
        assert type(value) is (float if kind in ("float", "double") else int), (kind, value)
        assert kind != "float" or not 3.4028234663852886e38 < abs(value) < float("inf"), value
        array.array(CODES[kind], [value])  # OverflowError if the integer is too large
    else:
        wanted = {"boolean": bool, "octet": bytes}.get(kind, str)
        assert type(value) is wanted and (kind != "octet" or len(value) == 1), (kind, value)
    return value


def _class(kind: str) -> type[Any]:
    package, short = kind.split("/")
    return MESSAGES[f"{package}/msg/{short}"]


def _kind(kind: str, what: Any) -> str:
    if kind == "BASE":
        return IDL.get(what[0], what[0])
    if kind == "NAME":
        return str(what).replace("/msg/", "/")
    (inner_kind, inner), length = what
    made = _kind(inner_kind.name, inner)
    return f"{made}[{length}]" if kind == "ARRAY" else f"sequence<{made}>"


def _module(name: str) -> ModuleType:
    for end in (name.partition(".")[0], name):
        sys.modules.setdefault(end, ModuleType(end))
    return sys.modules[name]


def _install() -> None:
    for name in STORE.fielddefs:
        package, _, short = name.split("/")
        members = STORE.get_msgdef(name).fields
        kinds = {label: _kind(kind.name, what) for label, (kind, what) in members if not label.startswith("structure_")}
        MESSAGES[name] = type(short, (Message,), {"kinds": kinds})
        setattr(_module(f"{package}.msg"), short, MESSAGES[name])
    for name in SERVICES:
        package, short = name.split("/")
        setattr(_module(f"{package}.srv"), short, _parts(name, "Request", "Response"))
    for name in ACTIONS:
        package, short = name.split("/")
        action = _parts(name, "Goal", "Result", "Feedback")
        action.Impl = _impl(name)
        setattr(_module(f"{package}.action"), short, action)


def _parts(name: str, *ends: str) -> SimpleNamespace:
    return SimpleNamespace(**{end: _class(f"{name}_{end}") for end in ends})


def _message(name: str, **kinds: str) -> type[Any]:
    made = MESSAGES[name.replace("/", "/msg/")] = type(name.rsplit("/")[-1], (Message,), {"kinds": kinds})
    return made


def _impl(name: str) -> SimpleNamespace:
    id = "unique_identifier_msgs/UUID"
    send = _message(f"{name}_SendGoal_Request", goal_id=id, goal=f"{name}_Goal")
    ask = _message(f"{name}_GetResult_Request", goal_id=id)
    cancel = _message("action_msgs/CancelGoal_Request", goal_info="action_msgs/GoalInfo")
    feedback = _message(f"{name}_FeedbackMessage", goal_id=id, feedback=f"{name}_Feedback")
    return SimpleNamespace(
        SendGoalService=SimpleNamespace(Request=send),
        GetResultService=SimpleNamespace(Request=ask),
        CancelGoalService=SimpleNamespace(Request=cancel),
        FeedbackMessage=feedback,
        GoalStatusMessage=_class("action_msgs/GoalStatusArray"),
    )


def _package(name: str) -> SimpleNamespace:
    return SimpleNamespace(**{n.rsplit("/")[-1]: cls for n, cls in MESSAGES.items() if n.startswith(f"{name}/")})


_install()
NAMES = "builtin_interfaces geometry_msgs nav_msgs rosgraph_msgs sensor_msgs std_msgs"
builtin_interfaces, geometry_msgs, nav_msgs, rosgraph_msgs, sensor_msgs, std_msgs = map(_package, NAMES.split())
