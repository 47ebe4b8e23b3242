"""What a user of the bridge can be told: what is wrong where, and what to do."""

from __future__ import annotations

from rtcontrol_client.wire.endpoint import EndpointError, check_client


class Ros2BridgeError(Exception):
    """A mistake in what was given: `what` and `remedy`, in sentences. `status` is the program's exit status."""

    status = 2

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what} {remedy}")
        self.what, self.remedy = what, remedy


def check_server(endpoint: str) -> None:
    """Raises Ros2BridgeError for what is no endpoint of a server: before anything is started."""
    try:
        check_client(endpoint)
    except EndpointError as error:
        web = endpoint.partition("://")[0] in ("ws", "wss")
        also = " A bridge speaks ZeroMQ: give what `rtcontrol serve` says that it listens on." if web else ""
        raise Ros2BridgeError(error.what, f"{error.remedy}{also}") from None


class Unserved(Ros2BridgeError):
    """The run's time was over before a server had welcomed it: nothing but the safe call was published."""

    status = 7


class Unmappable(ValueError):
    """A message that has no such value now, or a call that does not fit its mapping; says which and why."""
