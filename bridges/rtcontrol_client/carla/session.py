"""The bridge's side of the wire: the sessions of one car."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from rtcontrol_client import ClientError, Standing
from rtcontrol_client.carla.options import CarlaBridgeOptions
from rtcontrol_client.sessions import BridgeSessions

DECIDE_S = 30.0
log = logging.getLogger("rtcontrol.carla")


class CarlaSession(BridgeSessions):
    """What the driver sees goes out, and what became of calls."""

    def __init__(self, options: CarlaBridgeOptions, robot: str) -> None:
        """`robot` names the car: a server has one session with it at a time."""
        super().__init__(
            options.endpoint, self._options_for, options.instruction, options.connect_timeout_s, options.once
        )
        self._options, self._robot = options, robot

    def _options_for(self, instruction: str | None) -> dict[str, Any]:
        options = self._options
        lockstep = options.clock == "lockstep"
        return {
            "agent": options.agent,
            "instruction": instruction,
            "hz": options.hz,
            "pacing": "client" if lockstep else "server",
            "robot": self._robot,
            "name": "rtcontrol_client.carla",
            "acknowledge": True,
            # The world waits: however long a decision takes, the call is for what is.
            **({"ttl_ms": 0.0} if lockstep else {}),
            **options.client,
        }

    def too_soon_s(self, send_ms: float) -> float:
        """How much sooner than `send_ms` before a tick of the server's it is now; below zero: later, 0: not known, or
        it has another rate."""
        client = self.client
        if client is None or not client.connected or not client.timed:
            return 0.0
        period_s = client.welcome.period_ms / 1e3
        if abs(period_s * self._options.hz - 1.0) > 0.01:
            return 0.0
        left_s = client.next_observation_ns(send_ms) / 1e9 - time.monotonic()
        return left_s if left_s < period_s / 2 else left_s - period_s

    def observe(self, data: Mapping[str, Any], t_ns: int) -> bool:
        """Say what is seen; False where there is no session to say it in."""
        if self.client is None or not self.number or self.client.error is not None:
            return False
        self.client.observe(data=data, t_ns=t_ns)
        return True

    def decide(self, data: Mapping[str, Any], t_ns: int) -> Standing | None:
        """Say what is seen, and wait for the answer; None where the session ended instead. What is in force then is no
        answer: when it is seen to have ended depends on the moment, and a lockstep drive must not."""
        if (client := self.client) is None:
            return None
        try:
            standing = client.decide(data, t_ns=t_ns, timeout=DECIDE_S)
        except ClientError as error:
            log.warning("%s", error)
            standing = client.call()
        return standing if client.error is None else None

    def interrupt(self) -> None:
        """End a wait in `decide`; from any thread but the one that waits."""
        if (client := self.client) is not None:
            client.close()

    def executed(self, standing: Standing, refused: str | None) -> None:
        """Tell the server that a call was done, or why it was refused."""
        if self.client is not None and self.client.error is None:
            self.client.executed(standing, "executed" if refused is None else "refused", error=refused)
