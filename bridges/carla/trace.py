"""A line a step of what the vehicle was told and did."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rtcontrol.bridges.carla.throttle import Control
from rtcontrol.bridges.client import Standing

if TYPE_CHECKING:
    from rtcontrol.bridges.carla.neighbours import Body

log = logging.getLogger("rtcontrol.carla")


class Trace:
    """A file of JSON lines; one that is there already is gone on in: another bridge may have begun it. Where it cannot
    be written any more it ends, with a warning; the drive goes on."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def write(self, frame: int, own: Body, standing: Standing, control: Control) -> None:
        """`t_s` is on the machine's monotonic clock; `status` to `age_ms` are of the call in force in this step."""
        line = {
            "t_s": round(time.monotonic(), 4),
            "frame": frame,
            "x": round(own.x, 4),
            "y": round(own.y, 4),
            "yaw": round(own.yaw_deg, 3),
            "kmh": round(3.6 * own.speed, 2),
            "status": standing.status,
            "cause": standing.cause,
            "call": None if standing.call is None else {"name": standing.name, **standing.arguments},
            "age_ms": None if standing.age_ms is None else round(standing.age_ms, 1),
            "throttle": round(control.throttle, 4),
            "brake": round(control.brake, 4),
            "steer": round(control.steer, 5),
        }
        if not self._file.closed:
            try:
                self._file.write(json.dumps(line) + "\n")
            except OSError as error:
                log.warning("%s ends here: it cannot be written any more (%s)", self._file.name, error)
                self.close()

    def close(self) -> None:
        """What cannot be written any more is dropped."""
        with contextlib.suppress(OSError):
            self._file.close()
