"""The drill's disk: a pipe that a record is written into, which can be slow or refuse."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from rtcontrol.drill.disk import Disk
from rtcontrol.telemetry.record_reader import read_record
from rtcontrol.telemetry.recorder import Recorder
from tests.helpers.processes import until

LINES = 400


def lines(recorder: Recorder, count: int) -> None:
    for i in range(count):
        recorder.write({"log": f"{i} {hash(str(i))} " + "-" * 40, "t_s": 0.0})


@pytest.mark.parametrize("state", ["slow", "full"])
def test_a_record_is_complete_after_a_disk_was(state: str, tmp_path: Path) -> None:
    disk = Disk(tmp_path / "record.mcap.part", tmp_path / "flown.mcap")
    told: list[str] = []
    recorder = Recorder(tmp_path / "record.mcap", {"hz": 16}, provisional=True, tell=told.append)
    recorder.keep()
    disk.state = state  # type: ignore[assignment]
    time.sleep(0.1)
    lines(recorder, LINES)  # who writes does not wait for the disk, which takes nothing
    time.sleep(0.6)
    held = (tmp_path / "flown.mcap").stat().st_size
    time.sleep(0.3)
    assert (tmp_path / "flown.mcap").stat().st_size == held, "it takes nothing meanwhile"
    assert bool(told) == (state == "full") == bool(recorder.lost)
    disk.state = "sound"
    until(lambda: not recorder.lost, "what waits is not written", 5.0)
    closing = threading.Thread(target=recorder.close)
    closing.start()
    until(lambda: not closing.is_alive(), "the record is not closed", 10.0)
    disk.close()
    assert recorder.lost == 0
    assert sum("log" in event for event in read_record(tmp_path / "flown.mcap")) == LINES
