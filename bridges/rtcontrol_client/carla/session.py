"""The bridge's side of the wire: one session at a time with the rtcontrol server, begun anew when it was lost."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rtcontrol_client import Client, ClientError, Refused, Standing
from rtcontrol_client.carla.options import CarlaBridgeOptions

RETRY_S = 1.0
DECIDE_S = 30.0
NOBODY = Standing(None, "safe", cause="no_session")
log = logging.getLogger("rtcontrol.carla")


class CarlaSession:
    """`number` counts the sessions; 0: none was welcomed so far. `over`: nothing more will come of it."""

    def __init__(self, options: CarlaBridgeOptions, town: str, robot: str) -> None:
        """`robot` names the car: a server has one session with it at a time."""
        self.number = 0
        self.over = False
        self._options, self._town, self._robot = options, town, robot
        self._began_s = time.monotonic()
        self._client: Client | None = None
        self._ended: Counter[str] = Counter()
        self._retry_s = 0.0
        self._token = ""
        self._instruction = options.instruction

    @property
    def live(self) -> bool:
        """Whether it is welcomed, and connected now."""
        return self._client is not None and self._client.connected

    @property
    def instruction(self) -> str | None:
        """What is in force, as far as the server told."""
        return self._client.instruction if self._client is not None and self.number else None

    def keep(self) -> bool:
        """Look after it, often; whether a session began since the last look. Raises ClientError where the server
        refuses, or is not there at first."""
        now = time.monotonic()
        client = self._client
        if client is not None and (error := client.error) is not None:
            self._drop(client)
            if isinstance(error, Refused) or not (self._served or self.over):
                raise error
            if self._options.once:
                log.info("%s", error.what)
                self.over = True
            else:
                log.warning("%s Connecting anew.", error.what)
                self._retry_s = now + RETRY_S
            return False
        if client is None:
            if not self.over and now >= self._retry_s:
                self._client = Client(self._options.endpoint, self._hello())
            return False
        if client.connected and client.welcome.session != self._token:
            self._greet(client)
            return True
        limit_s = self._options.connect_timeout_s
        if not self._served and limit_s is not None and now - self._began_s > limit_s:
            raise client.unwelcomed(limit_s)
        return False

    @property
    def _served(self) -> bool:
        # A session may be over before it was looked at.
        return self.number > 0 or self._ended["sessions"] > 0

    def standing(self) -> Standing:
        """What is in force now."""
        return self._client.call() if self._client is not None else NOBODY

    def too_soon_s(self, send_ms: float) -> float:
        """How much sooner than `send_ms` before a tick of the server's it is now; below zero: later, 0: not known, or
        it has another rate."""
        client = self._client
        if client is None or not client.connected or not client.timed:
            return 0.0
        period_s = client.welcome.period_ms / 1e3
        if abs(period_s * self._options.hz - 1.0) > 0.01:
            return 0.0
        left_s = client.next_observation_ns(send_ms) / 1e9 - time.monotonic()
        return left_s if left_s < period_s / 2 else left_s - period_s

    def observe(self, data: Mapping[str, Any], t_ns: int) -> bool:
        """Say what is seen; False where there is no session to say it in."""
        if self._client is None or not self.number or self._client.error is not None:
            return False
        self._client.observe(data=data, t_ns=t_ns)
        return True

    def decide(self, data: Mapping[str, Any], t_ns: int) -> Standing | None:
        """Say what is seen, and wait for the answer; None where the session ended instead. What is in force then is no
        answer: when it is seen to have ended depends on the moment, and a lockstep drive must not."""
        if (client := self._client) is None:
            return None
        try:
            standing = client.decide(data, t_ns=t_ns, timeout=DECIDE_S)
        except ClientError as error:
            log.warning("%s", error)
            standing = client.call()
        return standing if client.error is None else None

    def interrupt(self) -> None:
        """End a wait in `decide`; from any thread but the one that waits."""
        if (client := self._client) is not None:
            client.close()

    def executed(self, standing: Standing, refused: str | None) -> None:
        """Tell the server that a call was done, or why it was refused."""
        if self._client is not None and self._client.error is None:
            self._client.executed(standing, "executed" if refused is None else "refused", error=refused)

    def instruct(self, text: str) -> None:
        """The goal from now on; one that no server takes is warned of, and changes nothing."""
        try:
            if self._client is not None:
                self._client.instruct(text)
        except ClientError as error:
            log.warning("The instruction was not taken: %s", error)
            return
        self._instruction = text

    def counts(self) -> dict[str, Any]:
        """What the clients counted."""
        now = self._client.statistics if self._client is not None else {}
        names = ("observed", "fresh", "held", "safe", "expired", "errors", "reconnects")
        return {name: self._ended[name] + now.get(name, 0) for name in names}

    def close(self) -> None:
        """Say bye."""
        self.over = True
        if self._client is not None:
            self._drop(self._client)

    def _drop(self, client: Client) -> None:
        self._ended += Counter({k: v for k, v in client.statistics.items() if isinstance(v, int) and v})
        client.close()
        self._client = None

    def _hello(self) -> dict[str, Any]:
        options = self._options
        lockstep = options.clock == "lockstep"
        return {
            "agent": options.agent,
            "instruction": self._instruction,
            "hz": options.hz,
            "pacing": "client" if lockstep else "server",
            "robot": self._robot,
            "name": "rtcontrol_client.carla",
            "acknowledge": True,
            # The world waits: however long a decision takes, the call is for what is.
            **({"ttl_ms": 0.0} if lockstep else {}),
            **options.client,
        }

    def _greet(self, client: Client) -> None:
        welcome = client.welcome
        self.number += 1
        self._token = welcome.session
        trained = "" if welcome.model_trained_on_tools else " (not trained on these tools)"
        pace = "in lockstep" if welcome.pacing == "client" else f"{welcome.hz:g} Hz, ttl {welcome.ttl_ms:g} ms"
        log.info("in session: model %s%s, %s, in %s", welcome.model, trained, pace, self._town)
