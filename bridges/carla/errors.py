"""What may be wrong with a drive: mistakes of whoever started it, and a server that is gone."""

from __future__ import annotations


class CarlaBridgeError(Exception):
    """What whoever started the bridge must mend: `what` and `remedy`, in sentences."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what} {remedy}".rstrip())
        self.what, self.remedy = what, remedy


class ServerLost(Exception):
    """The CARLA server is gone, or does not go on."""
