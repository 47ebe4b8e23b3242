"""What a robot's file is made of, compiled: topics, the fields that are read of them, and what is to be sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rtcontrol_client.ros2 import Unmappable
from rtcontrol_client.ros2.config import FieldSpec, Qos, Scalar
from rtcontrol_client.ros2.reading import Reader


@dataclass(frozen=True)
class Topic:
    """A topic and its type. `relative`: the file's name has no / before it, so that a node with a namespace puts that
    there."""

    name: str
    type: str
    cls: Any
    qos: Qos
    relative: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Source:
    """A topic that is read, and its observation fields."""

    topic: Topic
    max_age_ms: float
    required: bool
    readers: Mapping[str, tuple[Reader, FieldSpec]]

    def read(self, message: Any) -> dict[str, Scalar | None]:
        """The message's fields. Raises Unmappable naming the field that has no value and no `missing`."""
        found: dict[str, Scalar | None] = {}
        for name, (read, spec) in self.readers.items():
            try:
                found[name] = read(message)
            except Unmappable as error:
                if spec.missing is None:
                    raise Unmappable(f"{name}: {error}") from None
                found[name] = spec.missing
        return found


@dataclass(frozen=True)
class Publication:
    """What is sent to a topic, a service or an action (an Order); `repeat`: anew in each tick in which its call is in
    force."""

    topic: str
    message: Any
    repeat: bool


@dataclass(frozen=True)
class Order:
    """A goal that a call wants, or, with `goal` None, that none is pursued. `key` is the same for the same goal,
    whenever it is stamped."""

    goal: Any = None
    key: str = ""


# What is observed of a service or an action: its state in a word, and the messages that have come.


class StateView:
    """Base of all: a part that has not come has no value."""

    parts: ClassVar[dict[str, Any]]
    state: str

    @classmethod
    def get_fields_and_field_types(cls) -> dict[str, Any]:
        """As a message class of ROS has it, so that field paths are checked against it."""
        return {"state": "string", **cls.parts}

    def __getattr__(self, name: str) -> Any:
        raise Unmappable(f"there is no {name} yet")


def view_class(**parts: Any) -> type[StateView]:
    """Make a class with `state` and these parts, each a message class."""
    return type("StateView", (StateView,), {"parts": parts})


def shown(cls: type[StateView], state: str, **parts: Any) -> StateView:
    """A view; a part that is None has not come."""
    made = cls()
    made.state = state
    for name, part in parts.items():
        if part is not None:
            setattr(made, name, part)
    return made
