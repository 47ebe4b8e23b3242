"""However a bridge ends, the safe call is the last that it publishes: without a network to the robot."""

from __future__ import annotations

import threading
import time
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")

from rtcontrol.bridges.client import Refused
from rtcontrol.bridges.ros2.bridge import Ros2Bridge, Ros2BridgeOptions
from rtcontrol.bridges.ros2.mapper import Topic
from rtcontrol.bridges.wire.messages import ErrorMessage
from tests.bridges.client.worlds import until
from tests.bridges.ros2.brain import Brain
from tests.bridges.ros2.mapping import SENSES, mapper


class Net:
    """Topics in memory. `fails`: what reading raises from now on; `stuck`: waiting for subscribers raises."""

    def __init__(self) -> None:
        self.told: dict[str, list[Any]] = {}
        self.fails: Exception | None = None
        self.stuck = False

    def input(self, topic: Topic) -> Any:
        message = SENSES.get(topic.name)

        def poll() -> tuple[Any, int] | None:
            if self.fails is not None:
                raise self.fails
            return None if message is None else (message, time.monotonic_ns())

        return SimpleNamespace(poll=poll)

    def output(self, topic: Topic, promise_ms: float | None = None) -> Any:
        told = self.told.setdefault(topic.name, [])
        return SimpleNamespace(failed=0, write=lambda message: told.append(message) or True)

    def problems(self) -> dict[str, str]:
        return {}

    def flush(self, seconds: float) -> None:
        if self.stuck:
            raise OSError("no network")

    def speeds(self) -> list[float]:
        return [message.linear.x for message in self.told["/cmd_vel"]]


class Run:
    """A bridge in a thread, at work; `error` is what it ended with."""

    def __init__(self, brain: Brain) -> None:
        self.net = Net()
        self.bridge = Ros2Bridge(mapper(), self.net, Ros2BridgeOptions(endpoint=brain.endpoint))
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        until(lambda: any(self.net.speeds()), "the robot did not move")

    def _run(self) -> None:
        try:
            self.bridge.run()
        except BaseException as error:
            self.error = error

    def ended(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()
        assert self.net.speeds()[-3:] == [0.0] * 3
        count = len(self.net.speeds())
        time.sleep(0.2)  # three ticks in which nothing may come after it
        assert len(self.net.speeds()) == count


def test_fault_of_its_own_ends_in_the_safe_call(brain: Brain) -> None:
    running = Run(brain)
    running.net.fails = RuntimeError("a fault")
    running.ended()
    assert isinstance(running.error, RuntimeError)


def test_stop_by_a_signal_that_interrupts_the_bridges_own_wait_ends_it(brain: Brain) -> None:
    asked = threading.Event()

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        """As a handler does: between any two steps of the wait, on its own thread."""
        above = None if frame.f_back is None else frame.f_back.f_back
        waits = above is not None and above.f_code is Ros2Bridge.run.__code__
        if waits and event == "call" and frame.f_code.co_name in ("wait", "<lambda>") and asked.is_set():
            running.bridge.stop()

    threading.setprofile(interrupt)
    try:
        running = Run(brain)
    finally:
        threading.setprofile(None)
    asked.set()
    running.ended()
    assert running.error is None


def test_end_that_fails_halfway_still_says_bye_and_tells_the_safe_call(brain: Brain) -> None:
    running = Run(brain)
    running.net.stuck = True
    running.bridge.stop()
    running.ended()
    assert isinstance(running.error, OSError)
    message = running.net.told["/diagnostics"][-1].status[0].message  # either way: it may not have connected yet
    assert message.removeprefix("no connection to the server: ") == "safe call in force"
    until(lambda: brain.left, "the server heard no bye")


def test_server_that_refuses_for_good_ends_in_the_safe_call(brain: Brain) -> None:
    running = Run(brain)
    brain.complaint = ErrorMessage(code="busy", message="The robot is taken.", remedy="End that one.", fatal=True)
    running.ended()
    assert isinstance(running.error, Refused)
