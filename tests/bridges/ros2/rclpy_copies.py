"""Whether our node copies each message into ROS's right, and reads an octet of ROS's, run by a real ROS's Python:
`... NODE.py`. Prints how many."""

from __future__ import annotations

import importlib.util
import sys

from rtcontrol_client.ros2.msgs import MESSAGES
from rtcontrol_client.ros2.paths import compile_path
from tests.bridges.ros2.filling import TYPES, messages_of, values
from tests.bridges.ros2.rclpy_peer import message_class, plain

spec = importlib.util.spec_from_file_location("node", sys.argv[1])
assert spec is not None and spec.loader is not None
node = importlib.util.module_from_spec(spec)
spec.loader.exec_module(node)
for name in TYPES:
    (ours,), theirs = messages_of(name, 1), message_class(name)()
    node._copy(ours, theirs)
    assert plain(theirs) == values(ours), name
status = "diagnostic_msgs/msg/DiagnosticStatus"
assert compile_path(MESSAGES[status][0], "level").get(message_class(status)(level=b"\xff")) == 255
print(len(TYPES))
