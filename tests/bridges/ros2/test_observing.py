"""When there is an observation, and what is said while there is none."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")

from rtcontrol.bridges.ros2.errors import Unmappable
from rtcontrol.bridges.ros2.mapper import Observer
from rtcontrol.bridges.ros2.msgs import std_msgs
from tests.bridges.ros2.mapping import mapper, put


class Heard:
    """A topic whose newest message is given."""

    def __init__(self) -> None:
        self.next: Any = None
        self.age_ms = 0

    def poll(self) -> tuple[Any, int] | None:
        if isinstance(self.next, Exception):
            raise self.next
        message, self.next = self.next, None
        return None if message is None else (message, time.monotonic_ns() - self.age_ms * 1_000_000)


def observer(**required: bool) -> tuple[Observer, dict[str, Heard]]:
    kind = {"type": "std_msgs/msg/Float64", "max_age_ms": 60_000}
    topics = {f"/{n}": {**kind, "required": r, "fields": {n: "data"}} for n, r in required.items()}
    inputs = {f"/{name}": Heard() for name in required}
    return Observer(mapper(put("observe", value={"topics": topics})), inputs), inputs


def test_optional_topic_may_be_silent_and_a_required_one_may_not() -> None:
    looking, heard = observer(a=True, b=False)
    assert looking.look() is None and looking.waiting == {"/a": "no message yet"}
    heard["/a"].next = std_msgs.Float64(data=1.5)
    look = looking.look()
    assert look is not None and look.data == {"a": 1.5, "b": None} and looking.waiting == {}


def test_where_all_topics_are_optional_silence_of_all_is_told() -> None:
    looking, heard = observer(a=False, b=False)
    assert looking.look() is None
    assert looking.waiting == {"/a": "no message yet", "/b": "no message yet"}
    heard["/b"].next = std_msgs.Float64(data=2.0)
    look = looking.look()
    assert look is not None and look.data == {"a": None, "b": 2.0} and looking.waiting == {}


def test_message_that_cannot_be_read_holds_the_observation_back_until_the_next_one() -> None:
    looking, heard = observer(a=True)
    heard["/a"].next = Unmappable("it cannot be read (out of resources)")
    assert looking.look() is None and looking.waiting == {"/a": "it cannot be read (out of resources)"}
    heard["/a"].next = std_msgs.Float64(data=1.0)
    assert looking.look() is not None


def test_message_beyond_its_age_holds_the_observation_back() -> None:
    looking, heard = observer(a=True)
    heard["/a"].next, heard["/a"].age_ms = std_msgs.Float64(data=1.0), 60_001
    assert looking.look() is None
    assert looking.waiting == {"/a": "the last message is older than 60000 ms (60 s)"}
    heard["/a"].next, heard["/a"].age_ms = std_msgs.Float64(data=1.0), 59_000
    look = looking.look()
    assert look is not None and look.t_ns < time.monotonic_ns() - 58_000_000_000
