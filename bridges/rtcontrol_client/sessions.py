"""A bridge's sessions with the rtcontrol server: one at a time, begun again by another client where one has ended."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from rtcontrol_client import Client, ClientError, Refused, Standing
from rtcontrol_client.client.errors import checked
from rtcontrol_client.wire import LIMITS
from rtcontrol_client.wire.limits import check_value
from rtcontrol_client.wire.messages import Instruct

RETRY_S = 1.0
NO_SESSION = Standing(None, "safe", cause="no_session")
log = logging.getLogger("rtcontrol.bridge")


class BridgeSessions:
    """`client` is the present one; `number` counts the sessions that it and those before were seen in; `over`: no
    further one is wanted. `keep` and `close` are one thread's, the others any thread's."""

    def __init__(
        self,
        endpoint: str,
        hello: Callable[[str | None], dict[str, Any]],
        instruction: str | None,
        connect_timeout_s: float | None,
        once: bool = False,
    ) -> None:
        """`hello`: a client's options for an instruction; `connect_timeout_s`: for the first welcome (None: for ever);
        `once`: one session alone."""
        self.client: Client | None = None
        self.number, self.over = 0, False
        self._endpoint, self._hello, self._once = endpoint, hello, once
        self._instruction, self._connect_timeout_s = instruction, connect_timeout_s
        self._began_s: float | None = None
        self._retry_s = 0.0
        self._ended: Counter[str] = Counter()  # counts of clients before this one
        self._token = ""

    @property
    def live(self) -> bool:
        """Whether it is welcomed, and connected now."""
        client = self.client
        return client is not None and client.connected

    @property
    def served(self) -> bool:
        """Whether there was a session. It may be over before it was looked at."""
        return self.number > 0 or self._ended["sessions"] > 0

    @property
    def instruction(self) -> str | None:
        """The goal in force, as far as the server told; else the one that is asked for."""
        client = self.client
        return (client.instruction if client is not None else None) or self._instruction

    def keep(self) -> bool:
        """Look after it, often; whether a session began since the last look. Raises ClientError where the server
        refuses, or is not there at first."""
        now = time.monotonic()
        self._began_s = now if self._began_s is None else self._began_s
        client = self.client
        if client is None:
            if not self.over and now >= self._retry_s:
                self.client = Client(self._endpoint, self._hello(self._instruction))
            return False
        if client.error is not None:
            self._end(client, client.error, now)
            return False
        if client.connected and client.welcome.session != self._token:
            self._greet(client)
            return True
        limit_s = self._connect_timeout_s
        if not self.served and limit_s is not None and now - self._began_s > limit_s:
            raise client.unwelcomed(limit_s)
        return False

    def standing(self) -> Standing:
        """What is in force now."""
        client = self.client
        return client.call() if client is not None else NO_SESSION

    def instruct(self, text: str) -> None:
        """The goal from now on; it survives reconnects. One that no server takes is warned of, and changes nothing."""
        try:
            with checked("instruct"):
                check_value(text, LIMITS)
                Instruct(session="-" * 16, instruction=text)
        except ClientError as error:
            log.warning("The instruction was not taken: %s", error)
            return
        self._instruction = text
        if (client := self.client) is not None:
            client.instruct(text)
        log.info("instruction: %s", text)

    def counts(self, names: Iterable[str]) -> dict[str, Any]:
        """What all clients counted."""
        client = self.client
        now = client.statistics if client is not None else {}
        return {name: self._ended[name] + now.get(name, 0) for name in names}

    def close(self) -> None:
        """Say bye."""
        self.over = True
        if self.client is not None:
            self._drop(self.client)

    def _end(self, client: Client, error: ClientError, now: float) -> None:
        self._drop(client)
        if isinstance(error, Refused) or not (self.served or self.over):
            raise error
        if self._once:
            log.info("%s", error.what)
            self.over = True
        else:
            log.warning("%s Connecting anew.", error.what)
            self._retry_s = now + RETRY_S

    def _drop(self, client: Client) -> None:
        if self._instruction is not None:  # the next client begins with what is in force, not with what was refused
            self._instruction = client.instruction or self._instruction
        self._ended += Counter({k: v for k, v in client.statistics.items() if isinstance(v, int) and v})
        client.close()
        self.client = None

    def _greet(self, client: Client) -> None:
        welcome = client.welcome
        self.number, self._token = self.number + 1, welcome.session
        trained = "" if welcome.model_trained_on_tools else " (not trained on these tools)"
        pace = "in lockstep" if welcome.pacing == "client" else f"{welcome.hz:g} Hz, ttl {welcome.ttl_ms:g} ms"
        log.info("in session: model %s%s, %s", welcome.model, trained, pace)
