"""A raw peer of a server: what is sent is what a check says, and nothing else but pongs."""

from __future__ import annotations

import time
from typing import Any

from rtcontrol.bridges.client.options import Options
from rtcontrol.bridges.wire.messages import Bye, ErrorMessage, Hello, Welcome
from tests.conformance.check.finding import Failure
from tests.rtcontrol.serve.wire_peer import M, WirePeer

ANSWER_S = 5.0


class Asker(WirePeer):
    """Greets as `options` say."""

    def __init__(self, endpoint: str, options: Options, wait_s: float) -> None:
        super().__init__(endpoint, keys=options.key_pairs())
        self.endpoint, self.options, self.wait_s = endpoint, options, wait_s

    def close(self) -> None:
        if self.token:
            self.send(Bye(session=self.token, reason="checked"))
        self.socket.close(linger=200)

    def expect(self, kind: type[M], timeout_s: float | None = None, **fields: Any) -> M:
        if timeout_s is None:
            timeout_s = self.wait_s if kind is Welcome else min(ANSWER_S, self.wait_s)
        return super().expect(kind, timeout_s, **fields)

    def error(self, after: str, *codes: str) -> ErrorMessage:
        """The error of one of these codes, which must come after this."""
        told = self.expect(ErrorMessage)
        if told.code not in codes:
            raise Failure(f"error {told.code} after {after}, not {' or '.join(codes)}: {told.message}")
        if not told.message or not told.remedy:
            raise Failure("an error without message or remedy")
        return told

    def hello(self, **changes: Any) -> Hello:
        hello = self.options.hello(time.monotonic_ns()).model_copy(update=changes)
        self.send(hello)
        return hello
