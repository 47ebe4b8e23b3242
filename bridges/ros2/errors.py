"""What a user of the bridge can be told: what is wrong where, and what to do."""

from __future__ import annotations


class Ros2BridgeError(Exception):
    """A mistake in what was given: `what` and `remedy`, in sentences."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what} {remedy}")
        self.what, self.remedy = what, remedy


class Unmappable(ValueError):
    """A message that has no such value now, or a call that does not fit its mapping; says which and why."""
