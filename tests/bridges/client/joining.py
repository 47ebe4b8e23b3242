"""A client that a thread of its own connects, since the test is its server."""

from __future__ import annotations

import threading
from typing import Any

from rtcontrol.bridges.client import Client, ClientError
from rtcontrol.bridges.wire.messages import Hello
from tests.bridges.client.worlds import OWN
from tests.conformance.check.stand import Stand


class Joining:
    """`client` or `error` once it has been answered."""

    def __init__(self, stand: Stand, **options: Any) -> None:
        self.client: Client | None = None
        self.error: ClientError | None = None
        self.thread = threading.Thread(target=self._join, args=(stand.endpoint, options), daemon=True)
        self.thread.start()

    def _join(self, endpoint: str, options: dict[str, Any]) -> None:
        try:
            self.client = Client.connect(endpoint, **{**OWN, **options})
        except ClientError as error:
            self.error = error

    def ready(self) -> Client:
        self.thread.join(10)
        assert self.client is not None, self.error
        return self.client

    def refused(self) -> ClientError:
        self.thread.join(10)
        assert self.error is not None
        return self.error


def joined(stand: Stand, **options: Any) -> Client:
    """Greeted and welcomed."""
    joining = Joining(stand, **options)
    stand.expect(Hello, 10.0, "hello")
    stand.welcome()
    return joining.ready()
