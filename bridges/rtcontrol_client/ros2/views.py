"""What is observed of a service or an action: its state in a word, and the messages that have come."""

from __future__ import annotations

from typing import Any, ClassVar

from rtcontrol_client.ros2.errors import Unmappable


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
