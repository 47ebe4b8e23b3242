"""What can be said of the rclpy package without ROS: its files fit together and name what they need. That it runs,
test_real_ros.py shows."""

from __future__ import annotations

import ast
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")

import rtcontrol.bridges.ros2 as package
from rtcontrol.bridges.ros2.msgs import MESSAGES

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
