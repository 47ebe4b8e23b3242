"""A real ROS 2 node that serves `/lamp` (SetBool), `/knock` (Trigger) and the action `/count` (Fibonacci, with feedback
in each step), and publishes `/beat` (Float64). Run it with ROS's Python: `python server.py`.

JSON lines on stdin, each answered with one on stdout: `behave` (attributes of Server to change), `requested` (requests
received since the last time), `pursue` (send a goal as another client), `shutdown`. This program imports nothing from
rtcontrol.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import rclpy
from rclpy.action import ActionClient, ActionServer, CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.executors import MultiThreadedExecutor
from rclpy.node import Node
from std_msgs.msg import Float64
from std_srvs.srv import SetBool, Trigger
from test_msgs.action import Fibonacci


class Server:
    """The node's behaviour: the duration `step_s` of a goal's step, and whether goals are accepted."""

    def __init__(self) -> None:
        self.step_s, self.accepts = 0.05, True
        self.seen: list[Any] = []
        node = self.node = Node("server")
        group = ReentrantCallbackGroup()
        node.create_service(SetBool, "/lamp", self._lamp, callback_group=group)
        node.create_service(Trigger, "/knock", self._knock, callback_group=group)
        ActionServer(
            node,
            Fibonacci,
            "/count",
            self._count,
            callback_group=group,
            goal_callback=self._goal,
            cancel_callback=self._cancel,
        )
        beat = node.create_publisher(Float64, "/beat", 10)
        node.create_timer(0.05, lambda: beat.publish(Float64(data=1.0)), callback_group=group)
        self._count_client: Any = None

    def _lamp(self, request: Any, response: Any) -> Any:
        self.seen.append(["lamp", request.data])
        response.success = request.data
        return response

    def _knock(self, _: Any, response: Any) -> Any:
        self.seen.append(["knock"])
        response.success = True
        return response

    def _goal(self, request: Any) -> Any:
        self.seen.append(["goal", request.order])
        return GoalResponse.ACCEPT if self.accepts else GoalResponse.REJECT

    def _cancel(self, handle: Any) -> Any:
        self.seen.append(["cancel", handle.request.order])
        return CancelResponse.ACCEPT

    def _count(self, handle: Any) -> Any:
        result, feedback = Fibonacci.Result(), Fibonacci.Feedback()
        for step in range(handle.request.order):
            feedback.sequence = list(range(step + 1))
            handle.publish_feedback(feedback)
            time.sleep(self.step_s)
            result.sequence = feedback.sequence
            if handle.is_cancel_requested:
                handle.canceled()
                self.seen.append(["canceled", handle.request.order])
                return result
        handle.succeed()
        self.seen.append(["succeed", handle.request.order])
        return result

    def behave(self, **changes: Any) -> None:
        for name, value in changes.items():
            setattr(self, name, value)

    def requested(self) -> list[Any]:
        found, self.seen = self.seen, []
        return found

    def pursue(self, order: int) -> None:
        if self._count_client is None:
            self._count_client = ActionClient(self.node, Fibonacci, "/count")
        self._count_client.wait_for_server()
        self._count_client.send_goal_async(Fibonacci.Goal(order=order))


def main() -> None:
    rclpy.init()
    server = Server()
    executor = MultiThreadedExecutor(6)
    executor.add_node(server.node)
    threading.Thread(target=executor.spin, daemon=True).start()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        requested = json.loads(line)
        do = requested.pop("do")
        if do == "shutdown":
            break
        print(json.dumps(getattr(server, do)(**requested)), flush=True)
    executor.shutdown()
    rclpy.try_shutdown()


if __name__ == "__main__":
    main()
