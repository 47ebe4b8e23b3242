"""The client of a bridge, which starts a new session with the rtcontrol server when the previous session has ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from rtcontrol_client import Client, ClientError, Refused, Standing
from rtcontrol_client.client.errors import wrap_errors
from rtcontrol_client.client.values import to_plain
from rtcontrol_client.wire.messages import Instruct

NO_SESSION = Standing(None, "safe", cause="no_session")
log = logging.getLogger("rtcontrol.bridge")


class BridgeSessions:
    """The sessions of a bridge, one after the other. `number` is how many sessions `keep` has noticed; if `over` is
    True, no further session starts. Only one thread may call `keep` and `close`, any thread the other methods.
    """

    def __init__(
        self,
        endpoint: str,
        options: Callable[[str | None], dict[str, Any]],
        instruction: str | None,
        connect_timeout_s: float | None,
        once: bool = False,
    ) -> None:
        """Store the settings; `keep` connects later. `options` returns the client's options for an instruction,
        `connect_timeout_s` limits the wait for the first welcome (None: no limit), `once` allows only one session."""
        self.client: Client | None = None
        self.number, self.over = 0, False
        self._endpoint, self._options, self._once = endpoint, options, once
        self._instruction, self._connect_timeout_s = instruction, connect_timeout_s
        self._started_s = 0.0
        self._token = ""

    @property
    def live(self) -> bool:
        """Return whether the bridge has a session with the server now."""
        return self.client is not None and self.client.connected

    @property
    def served(self) -> bool:
        """Return whether there has been any session, even a short one that `keep` has not noticed."""
        return self.number > 0 or self.counts(["sessions"])["sessions"] > 0

    def keep(self) -> bool:
        """Connect if necessary; return whether a new session has started since the previous call. Call it often.

        Raises ClientError if the server refuses the client, or does not respond at the start.
        """
        if self.over:
            return False
        if self.client is None:
            options = {"persist": not self._once, **self._options(self._instruction)}
            self.client, self._started_s = Client(self._endpoint, options), time.monotonic()
        client, limit_s = self.client, self._connect_timeout_s
        if client.error is not None:
            if isinstance(client.error, Refused) or not (self._once and self.served):
                raise client.error
            log.info("%s", client.error.what)
            self.over = True
        elif client.connected and client.welcome.session != self._token:
            self._count_session(client)
            return True
        elif limit_s is not None and time.monotonic() - self._started_s > limit_s and not self.served:
            raise client.no_welcome_error(limit_s)
        return False

    def standing(self) -> Standing:
        """Return the active call."""
        return NO_SESSION if self.client is None else self.client.call()

    def instruct(self, text: str) -> None:
        """Set the instruction, also for later sessions. An instruction that no server accepts is logged and ignored."""
        try:
            with wrap_errors("instruct"):
                Instruct(session="-" * 16, instruction=to_plain(text, "instruction"))
        except ClientError as error:
            log.warning("The instruction was not accepted: %s", error)
            return
        self._instruction = text
        if self.client is not None:
            self.client.instruct(text)
        log.info("instruction: %s", text)

    def counts(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the client's statistics with these names; 0 for those that do not exist."""
        statistics = {} if self.client is None else self.client.statistics
        return {name: statistics.get(name, 0) for name in names}

    def close(self) -> None:
        """End the session with a bye message to the server."""
        self.over = True
        if self.client is not None:
            self.client.close()

    def _count_session(self, client: Client) -> None:
        self.number, self._token = self.number + 1, client.welcome.session
        log.info("in session: model %s, %g Hz", client.welcome.model, client.welcome.hz)
