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
# How long a step may take until the server is lost. Where the world waits nothing is missed meanwhile.
WAIT_S: dict[str, float] = {"wall": 0.8, "lockstep": 5.0}


class CarlaBridgeError(RemedyError):
    """What whoever started the bridge must mend."""


class ServerLost(Exception):
    """The CARLA server is gone, or does not go on."""


@dataclass(frozen=True, kw_only=True)
class WorldOptions:
    """`town`: loaded where it is not the server's (None: whatever is loaded); `step_s`: of the simulation; `wait_s`: so
    long a tick may take until the server is lost; `standin`: it is the stand-in."""

    host: str = "127.0.0.1"
    port: int = 2000
    town: str | None = None
    seed: int = 0
    step_s: float = LONGEST_STEP_S
    wait_s: float = WAIT_S["wall"]
    reload: bool = False
    standin: bool = False

    @property
    def server(self) -> str:
        """Its address, said with what it is."""
        return f"{self.host}:{self.port}" + (f" ({STANDIN})" if self.standin else "")


@dataclass(frozen=True, kw_only=True)
class CarlaBridgeOptions:
    """`endpoint` of the rtcontrol server; `agent` (None: the server's only one); `clock`: `wall` keeps to the wall's
    grid whatever happens, `lockstep` waits for each call; `duration_s`: end after so long; `connect_timeout_s`: for the
    first welcome (None: for ever); `reconnect_s`: how long a CARLA server that hangs is waited for; `once`: one
    session, and its end is the bridge's; `trace`: a file that gets a line a step; `client`: further options of the
    client."""

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
    def steps(self) -> int:
        """Steps of the simulation in a period."""
        return max(1, math.ceil(1.0 / self.hz / LONGEST_STEP_S - 1e-9))

    @property
    def step_s(self) -> float:
        """Seconds of one step."""
        return 1.0 / self.hz / self.steps
