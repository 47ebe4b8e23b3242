"""As much of rclpy as the node package touches, which is not rclpy: it shows that the node fits our own bridge.

A node's publishers and subscriptions are lists; the messages are the bridge's own classes with rosidl's table of
fields.
"""

from __future__ import annotations

import sys
import types
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any
from unittest.mock import MagicMock

import pytest

from rtcontrol.bridges.ros2.msgs import MESSAGES
from rtcontrol.bridges.ros2.paths import fields


@cache
def get_message(name: str) -> Any:
    """Our class with rosidl's table of fields: a byte is an octet there, and ROS's Empty is empty."""
    cls = MESSAGES[name][0]
    byte = {"level"} if name.endswith("DiagnosticStatus") else set()
    kinds = {
        field: "octet" if field in byte else _kind(hint)
        for field, hint in fields(cls).items()
        if not name.endswith("Empty")
    }

    def begin(self: Any) -> None:
        cls.__init__(self)
        for field, hint in fields(cls).items():
            if fields(hint):
                setattr(self, field, get_message(_name(hint))())

    return type(cls.__name__, (cls,), {"__init__": begin, "get_fields_and_field_types": lambda self: kinds})


def _name(cls: Any) -> str:
    return next(name for name, (known, _) in MESSAGES.items() if known is cls)


def _kind(hint: Any) -> str:
    for extra in getattr(hint, "__metadata__", ()):
        if hasattr(extra, "subtype"):
            return f"sequence<{_kind(extra.subtype)}>"
    return _name(hint).replace("/msg", "") if fields(hint) else "float"


class Node:
    """`parameters` and what it does with topics."""

    parameters: Mapping[str, str] = MappingProxyType({})

    def __init__(self, name: str) -> None:
        self.published: dict[str, list[Any]] = defaultdict(list)
        self.hears: dict[str, Callable[[Any], None]] = {}
        self.said: list[str] = []
        NODES.append(self)

    def declare_parameter(self, name: str, default: str) -> Any:
        return types.SimpleNamespace(value=self.parameters.get(name, default))

    def get_logger(self) -> Any:
        return types.SimpleNamespace(warning=self.said.append, fatal=self.said.append)

    def create_subscription(self, cls: Any, topic: str, hear: Callable[[Any], None], qos: Any) -> None:
        self.hears[topic] = hear

    def create_publisher(self, cls: Any, topic: str, qos: Any) -> Any:
        return types.SimpleNamespace(publish=self.published[topic].append, wait_for_all_acked=lambda timeout: True)

    def count_publishers(self, topic: str) -> int:
        return topic in self.hears

    def count_subscribers(self, topic: str) -> int:
        return 1

    def destroy_node(self) -> None:
        pass


NODES: list[Node] = []


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put it in rclpy's place."""
    NODES.clear()
    for name in ("rclpy", "rclpy.duration", "rclpy.executors", "rclpy.qos", "rclpy.signals"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    monkeypatch.setitem(sys.modules, "rclpy.node", types.SimpleNamespace(Node=Node))
    monkeypatch.setitem(sys.modules, "rosidl_runtime_py", MagicMock())
    monkeypatch.setitem(sys.modules, "rosidl_runtime_py.utilities", types.SimpleNamespace(get_message=get_message))
