"""The files that one tick crosses, in all processes and threads of a run on Ray, and the page that names them."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from pathlib import Path

import pytest

from rtcontrol.telemetry.record_reader import read_record
from tests.helpers.processes import PATH, ROOT, Program, until

PAGE = ROOT / "docs" / "lifecycle.md"
# The world of this run, its agent, and the view on the terminal are not the tick's: another run has others.
NOT_THE_TICKS = ("envs/lander", "agents/lander", "rtcontrol/run/")
TICK = "Ticks._release"


def named(page: str) -> set[str]:
    """`folder/file.py`, or a `folder/` with the files after it."""
    files, folder = set(), ""
    for name in re.findall(r"`([a-z_/0-9]+(?:\.py|/))`", page):
        if name.endswith("/"):
            folder = name
        else:
            files.add(name if "/" in name else folder + name)
    return files


def newest_tick(record: Path) -> int:
    """Of a record that is being written."""
    return max((line.get("k", -1) for line in read_record(record)), default=-1) if record.exists() else -1


def crossed(folder: Path) -> dict[str, set[str]]:
    """By file the names of the threads that go through it in at least half of the ticks."""
    rows = [row for path in folder.glob("*.json") for row in json.loads(path.read_text())]
    ticks = next(count for _, _, function, count in rows if function == TICK)
    assert ticks > 20
    files: dict[str, set[str]] = defaultdict(set)
    for thread, path, _, count in rows:
        file = os.path.relpath(Path(path).resolve(), ROOT)  # the floors are links in the package
        if count >= ticks / 2 and not file.startswith(NOT_THE_TICKS) and not thread.startswith("env-"):
            files[file].add(thread)
    return files


@pytest.mark.serial
def test_the_page_of_one_tick_names_the_files_that_a_tick_crosses_and_no_other(tmp_path: Path) -> None:
    flight = ["-m", "rtcontrol", "run", "--env", "lander", "--agent", "lander", "--hz", "20", "--host", "ray"]
    code = str(Path(__file__).parent / "one_tick")
    env = {"PYTHONPATH": f"{code}:{PATH}", "RTCONTROL_TEST_ONE_TICK": str(tmp_path), "RTCONTROL_TEST_ROOT": f"{ROOT}/"}
    run = Program([*flight, "--duration", "600", "--out", str(tmp_path / "out")], tmp_path / "log", env=env)
    try:
        record = tmp_path / "out" / "record.mcap"
        until(lambda: newest_tick(record) > 40, every=0.2)
        (tmp_path / "begin").touch()
        began = newest_tick(record)
        until(lambda: newest_tick(record) > began + 60, every=0.2)
        (tmp_path / "end").touch()
        until(lambda: len([*tmp_path.glob("*.json")]) == 2, run.log())
    finally:
        run.end()
    files = crossed(tmp_path)
    assert {thread for threads in files.values() for thread in threads} >= {
        "MainThread",
        "actuator",
        "recorder",
        "lane0",
    }
    every, _, missed = PAGE.read_text("utf-8").partition("## After a miss")
    # On a busy machine more than half of the ticks may be told that their processes paused.
    assert named(every) <= set(files) <= named(every) | named(missed)
