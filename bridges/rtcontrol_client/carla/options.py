"""What a drive is started with, and what may be wrong with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rtcontrol_client.wire.errors import RemedyError

# CARLA's physics is only right up to its substeps: 10 of 0.01 s. One step of the simulation is at most this long.
LONGEST_STEP_S = 0.0625
STANDIN, STANDIN_TOWN = "CARLA stand-in, not CARLA", "Standin"
Clock = Literal["wall", "lockstep"]


class CarlaBridgeError(RemedyError):
    """What whoever started the bridge must mend."""


class ServerLost(Exception):
    """The CARLA server is gone, or does not go on."""


@dataclass(frozen=True, kw_only=True)
class DriveOptions:
    """Of a drive. Each of them is an option of the command line, too.

    host, port: of the CARLA server. town: loaded where it is not the server's. standin: it is the stand-in.
    endpoint: of the rtcontrol server. agent: None is the server's only one.
    clock: `wall` keeps to the wall's grid whatever happens, `lockstep` waits for each call.
    connect_timeout_s: for the first welcome; None: for ever. reconnect_s: for a CARLA server that hangs.
    once: one session, and its end is the bridge's. trace: a file that gets a line a step.
    client: further options of the client.
    """

    host: str = "127.0.0.1"
    port: int = 2000
    town: str | None = None
    seed: int = 0
    reload: bool = False
    standin: bool = False
    endpoint: str = "tcp://127.0.0.1:5555"
    agent: str | None = "driver"
    hz: float = 16.0
    clock: Clock = "wall"
    instruction: str | None = None
    duration_s: float | None = None
    connect_timeout_s: float | None = 6.0
    reconnect_s: float = 30.0
    once: bool = False
    trace: Path | None = None
    client: Mapping[str, Any] = field(default_factory=dict)

    @property
    def server(self) -> str:
        """The CARLA server's address, said with what it is."""
        return f"{self.host}:{self.port}" + (f" ({STANDIN})" if self.standin else "")

    @property
    def steps(self) -> int:
        """Steps of the simulation in a period."""
        return max(1, math.ceil(1.0 / self.hz / LONGEST_STEP_S - 1e-9))

    @property
    def step_s(self) -> float:
        """Seconds of one step."""
        return 1.0 / self.hz / self.steps

    @property
    def wait_s(self) -> float:
        """How long a step may take until the server is lost. Where the world waits nothing is missed meanwhile."""
        return 5.0 if self.clock == "lockstep" else 0.8
