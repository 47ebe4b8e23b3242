"""The trace of a drive."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from rtcontrol.bridges.carla.neighbours import Body
from rtcontrol.bridges.carla.throttle import Control
from rtcontrol.bridges.carla.trace import Trace
from rtcontrol.bridges.client import Standing

CAR = Body(7, 1.0, 2.0, 0.0, 90.0, 3.0, 4.0, 2.4, 1.0)
NOTHING = Standing(None, "safe", cause="no_session")


def test_trace_of_another_bridge_is_gone_on_in(tmp_path: Path) -> None:
    for frame in (1, 2):
        trace = Trace(tmp_path / "trace.jsonl")
        trace.write(frame, CAR, NOTHING, Control(brake=1.0))
        trace.close()
    lines = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert [(line["frame"], line["kmh"], line["status"], line["brake"]) for line in lines] == [
        (1, 18.0, "safe", 1.0),
        (2, 18.0, "safe", 1.0),
    ]


def test_full_disk_ends_the_trace_and_not_the_drive(caplog: pytest.LogCaptureFixture) -> None:
    trace = Trace(Path("/dev/full"))
    with caplog.at_level(logging.WARNING, "rtcontrol.carla"):
        for frame in range(3):
            trace.write(frame, CAR, NOTHING, Control())
        trace.close()
    (told,) = caplog.messages
    assert "/dev/full ends here" in told and "No space left" in told
