"""What can be said of the rclpy package without ROS: its files fit together and name what they need."""

from __future__ import annotations

import ast
import importlib.util
import os
import signal
import threading
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")

import rtcontrol.bridges.ros2 as package
from rtcontrol.bridges.ros2 import EXAMPLE, diagnostics
from rtcontrol.bridges.ros2.msgs import MESSAGES, diagnostic_msgs, std_msgs
from tests.bridges.ros2 import rclpy_standin
from tests.bridges.ros2.brain import Brain
from tests.bridges.ros2.mapping import SENSES

FOLDER = Path(package.__path__[0]) / "rclpy_node"


def test_package_xml_depends_on_every_package_of_the_message_types() -> None:
    root = ElementTree.parse(FOLDER / "package.xml").getroot()
    needed = {element.text for element in root.findall("exec_depend")}
    assert {name.split("/")[0] for name in MESSAGES} - needed <= {"builtin_interfaces"}
    assert root.findtext("name") == "rtcontrol_bridge"


def test_setup_names_files_and_an_entry_point_that_exist() -> None:
    setup = (FOLDER / "setup.py").read_text("utf-8")
    assert "bridge = rtcontrol_bridge.node:main" in setup
    tree = ast.parse((FOLDER / "rtcontrol_bridge" / "node.py").read_text("utf-8"))
    assert "main" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for file in ("resource/rtcontrol_bridge", "launch/bridge.launch.py", "setup.cfg", "rtcontrol_bridge/__init__.py"):
        assert (FOLDER / file).is_file()


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The node's module over the stand-in: every name that it takes from rtcontrol is there."""
    rclpy_standin.install(monkeypatch)
    spec = importlib.util.spec_from_file_location("rtcontrol_bridge_node", FOLDER / "rtcontrol_bridge" / "node.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_node_drives_and_ends_in_the_safe_call(
    node: Any, brain: Brain, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    given = {"config": str(EXAMPLE), "connect": brain.endpoint}
    monkeypatch.setattr(rclpy_standin.Node, "parameters", given)
    moved, over = threading.Event(), threading.Event()

    def robot() -> None:
        end = time.monotonic() + 20
        while time.monotonic() < end and not (moved.is_set() or over.is_set()):
            time.sleep(0.02)
            for one in rclpy_standin.NODES[:1]:
                for topic, message in SENSES.items():
                    if topic in one.hears:
                        one.hears[topic](message)
                if any(message.linear.x for message in one.published["/cmd_vel"]) and one.published["/diagnostics"]:
                    moved.set()
        if not over.is_set():
            os.kill(os.getpid(), number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    thread = threading.Thread(target=robot)
    thread.start()
    try:
        assert node.main() == 0
    finally:
        over.set()
        for number, handler in before.items():
            signal.signal(number, handler)
        thread.join()
    published = rclpy_standin.NODES[0].published
    assert moved.is_set() and [message.linear.x for message in published["/cmd_vel"][-3:]] == [0.0] * 3
    assert published["/diagnostics"][-1].status[0].level == bytes([diagnostics.ERROR])
    assert brain.hello is not None and brain.hello.robot == "wheelie"


def test_node_without_its_file_says_so(node: Any) -> None:
    assert node.main() == 2
    assert rclpy_standin.NODES[0].said[0].startswith("The parameter config is missing. Give it: --ros-args -p config")


def test_empty_message_and_lists_of_messages_are_copied(node: Any) -> None:
    node._copy(std_msgs.Empty(), rclpy_standin.get_message("std_msgs/msg/Empty")())
    ours = diagnostic_msgs.DiagnosticArray(status=[diagnostic_msgs.DiagnosticStatus(level=2, name="a")])
    theirs = rclpy_standin.get_message("diagnostic_msgs/msg/DiagnosticArray")()
    node._copy(ours, theirs)
    assert (theirs.status[0].level, theirs.status[0].name) == (b"\x02", "a")
