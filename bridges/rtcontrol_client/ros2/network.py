"""What the bridge needs of a middleware. The ROS 2 node (node.py) has it; tests have it in memory."""

from __future__ import annotations

from typing import Any, Protocol

from rtcontrol_client.ros2.parts import Topic


class Input(Protocol):
    """A topic that is read."""

    def poll(self) -> tuple[Any, int] | None:
        """Return the newest message since the last call, and its instant on the monotonic clock in ns.

        Raises Unmappable where it cannot be read.
        """
        ...


class Feed(Protocol):
    """A topic that is read message by message."""

    def take(self) -> list[Any]:
        """Return the messages since the last call, oldest first."""
        ...


class Output(Protocol):
    """A topic that is written. `failed` counts the messages that could not be."""

    failed: int

    def write(self, message: Any) -> bool:
        """Publish; False where that was not possible now. Raises Unmappable for a message that never can be."""
        ...

    def readers(self) -> int:
        """Count the subscribers."""
        ...


class Service(Protocol):
    """A service, or one of those that an action consists of."""

    def ready(self) -> bool:
        """Return whether a server is there."""
        ...

    def send(self, request: Any) -> bool:
        """Send a request; False where that was not possible now. Responses to earlier ones are dropped."""
        ...

    def answers(self) -> list[Any]:
        """Return the response to the newest request, once."""
        ...


class Network(Protocol):
    """The robot's topics, services and actions."""

    def input(self, topic: Topic) -> Input:
        """Start to read a topic."""
        ...

    def output(self, topic: Topic, promise_ms: float | None = None, lease: bool = True) -> Output:
        """Start to write a topic.

        `promise_ms` is offered to subscribers as the deadline, and twice that as the lease, where there is one.
        """
        ...

    def feed(self, topic: Topic) -> Feed:
        """Start to read a topic of an action; `problems` does not report it."""
        ...

    def service(self, name: str, cls: Any, relative: bool) -> Service:
        """Start to be a client of a service."""
        ...

    def problems(self) -> dict[str, str]:
        """Return topic -> what is wrong with it now, in words."""
        ...

    def flush(self, seconds: float) -> None:
        """Wait until what was written has arrived, at most so long for each topic."""
        ...
