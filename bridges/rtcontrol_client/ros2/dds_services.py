"""A client of a ROS 2 service over DDS alone, as a server on Fast DDS (rmw_fastrtps) understands it.

A request is the plain message on `rq/NAMERequest`: who sent it the server reads from the protocol below DDS. The answer
comes on `rr/NAMEReply` to all clients, and which request it is for is said below DDS, too, where cyclonedds lets nobody
look. So with another client there an answer may be that one's. rmw_cyclonedds_cpp writes both into the message instead
(rmw_cyclonedds issue 184).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rtcontrol_client.ros2.config import Qos
from rtcontrol_client.ros2.dds import DdsPeer, Input, Output, dds_name, other_definition
from rtcontrol_client.ros2.definitions import ServiceType
from rtcontrol_client.ros2.errors import Unmappable
from rtcontrol_client.ros2.parts import Topic

QOS = Qos(reliability="reliable", depth=10)
FAST_DDS = "010f"  # the vendor, with which each identity begins
# The server may find our request's writer before our answers' reader, and its answer is lost then (rmw_connextdds 132).
SETTLE_S = 0.3


class DdsService:
    """Not thread-safe. Without `listens` no answer is heard."""

    def __init__(
        self,
        name: str,
        kind: ServiceType,
        begin: tuple[Callable[[Topic], Output], Callable[[Topic], Input]],
        peers: Callable[[], list[DdsPeer]],
        listens: bool,
    ) -> None:
        """`begin`: to write and to read a topic; `peers`: everybody else's subscribers."""
        self.name, self._peers = name, peers
        parts = [
            Topic(f"{name}{end}", f"{kind.form}_{what}", cls, type_hash, QOS, prefix=prefix)
            for end, what, cls, type_hash, prefix in (
                ("Request", "Request", kind.request, kind.hashes[0], "rq"),
                ("Reply", "Response", kind.response, kind.hashes[1], "rr"),
            )
        ]
        self._asked, self._told = parts
        self._output = begin[0](parts[0])
        self._input = begin[1](parts[1]) if listens else None
        self._since: float | None = None  # both ends are matched
        self._checked: tuple[int, str | None] = (-1, None)

    def ready(self) -> bool:
        now = time.monotonic()
        if not self._output.readers() or (self._input is not None and not self._input.writers()):
            self._since = None
            return False
        self._since = now if self._since is None else self._since
        return now >= self._since + SETTLE_S and self._stranger() is None

    def exact(self) -> bool:
        return not any(peer.topic == dds_name(self._told) for peer in self._peers())

    def send(self, request: Any) -> bool:
        return self._output.write(request)

    def answers(self) -> list[Any]:
        if self._input is None:
            return []
        try:
            return self._input.take()
        except Unmappable:
            return []  # as one that never came

    def trouble(self) -> str | None:
        asked = [peer for peer in self._peers() if peer.topic == dds_name(self._asked)]
        if other := next((peer for peer in asked if peer.differs(self._asked)), None):
            return other_definition(f"{self.name} is served as", other, self._asked)
        if self.ready() or (self._since is not None and self._stranger() is None):
            return None
        if (vendor := self._stranger()) is not None:
            what = f"The server of {self.name} is on another middleware than Fast DDS (vendor {vendor})"
            return f"{what}, and services and actions pass only between equals. Use the rclpy node."
        name = self.name.partition("/_action/")[0]
        return f"Nobody serves {name}. Start its node, or correct the name, the type or ROS_DOMAIN_ID."

    def _stranger(self) -> str | None:
        """The vendor of a server that is on another middleware."""
        if (count := self._output.readers()) != self._checked[0]:
            others = [p.vendor for p in self._peers() if p.topic == dds_name(self._asked) and p.vendor != FAST_DDS]
            self._checked = count, others[0] if others else None
        return self._checked[1]
