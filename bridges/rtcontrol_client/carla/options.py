"""The options of a drive, and their validation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from rtcontrol_client.wire.endpoint import check_client
from rtcontrol_client.wire.errors import RemedyError

# Maximum step of the simulation. CARLA's physics is wrong if a step has more than 10 substeps of 0.01 s.
LONGEST_STEP_S = 0.0625
STANDIN, STANDIN_TOWN = "CARLA stand-in, not CARLA", "Standin"
Seconds = Annotated[float, Field(ge=0)]


class CarlaBridgeError(RemedyError):
    """An error of the CARLA bridge that the user can correct."""


class ServerLost(Exception):
    """The CARLA server has exited, or does not respond."""


class DriveOptions(BaseModel):
    """The options of a drive, each of which can be set on the command line (`--set KEY=VALUE`).

    host, port: the CARLA server's address. town: the town to drive in, loaded if the server has another one. seed:
    chooses the spawn points. reload: load the world again first, so that a seed always gives the same drive. standin:
    the server is the stand-in.
    endpoint: the rtcontrol server's address. agent: the agent's name; if empty, the server's only agent. keys,
    server_key: key files, for a server with keys. connect_timeout_s: how long to wait for a server at the start (0: no
    limit). once: end with the first session. clock: `wall` steps in real time, `lockstep` waits for each call.
    reconnect_s: how long to wait for a CARLA server that hangs. trace: a file to which each step appends a line.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 2000
    town: str | None = None
    seed: int = 0
    reload: bool = False
    standin: bool = False
    endpoint: str = "tcp://127.0.0.1:5555"
    agent: str = "driver"
    keys: Path | None = None
    server_key: Path | None = None
    connect_timeout_s: Seconds = 6.0
    once: bool = False
    hz: Annotated[float, Field(ge=0.5, le=100)] = 16.0
    clock: Literal["wall", "lockstep"] = "wall"
    instruction: Annotated[str, Field(pattern=r"\S")] | None = None
    duration_s: Seconds | None = None
    reconnect_s: Seconds = 30.0
    trace: Path | None = None

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, value: str) -> str:
        check_client(value)
        return value

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> DriveOptions:
        """Validate values by option name. Raises CarlaBridgeError, EndpointError."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(map(str, first["loc"]))
            message = "it is not an option" if first["type"] == "extra_forbidden" else first["msg"]
            text = f"{key}={values.get(key)!s:.40}: {message[0].lower()}{message[1:]}."
            raise CarlaBridgeError(text, f"The options are {', '.join(cls.model_fields)}.") from None

    @property
    def server(self) -> str:
        """Return the CARLA server's address, with a note for the stand-in."""
        return f"{self.host}:{self.port}" + (f" ({STANDIN})" if self.standin else "")

    @property
    def steps(self) -> int:
        """Return the number of simulation steps per period."""
        return max(1, math.ceil(1.0 / self.hz / LONGEST_STEP_S - 1e-9))

    @property
    def step_s(self) -> float:
        """Return the length of one simulation step in seconds."""
        return 1.0 / self.hz / self.steps

    @property
    def wait_s(self) -> float:
        """Return the seconds without a step after which the server counts as lost; more in lockstep, where the world
        waits."""
        return 5.0 if self.clock == "lockstep" else 0.8
