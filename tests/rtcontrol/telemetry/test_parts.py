"""Tests of records of bounded size, which are written in parts and read as one."""

from __future__ import annotations

import json
import random
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from cart import report_of
from mcap.reader import make_reader
from synthetic import kept, synthetic, two_humps

from rtcontrol.models.errors import UserError
from rtcontrol.telemetry import recorder as recorders
from rtcontrol.telemetry import report
from rtcontrol.telemetry.account import Account
from rtcontrol.telemetry.record_reader import read_record, record_path
from rtcontrol.telemetry.recorder import Recorder, RecordFile
from rtcontrol.telemetry.run_folder import RunFolder, older_part, older_parts
from tests.helpers.disks import files_of
from tests.helpers.processes import until

MOST = 200_000
HEADER = {"hz": 16.0, "started_at": "now"}


def events(ticks: int) -> list[dict[str, Any]]:
    """Yield the events of a run, with observations that cannot be compressed."""
    seen = random.Random(0)
    return list(islice(synthetic(16, ticks / 16, two_humps(3), saw=lambda k: seen.randbytes(200).hex()), 1, None))


def counts(account: Account) -> dict[str, Any]:
    return {name: value for name, value in report.build_report(account, "").items() if name != "record"}


def recorded(path: Path, most: int = MOST) -> tuple[Recorder, Account]:
    recorder = Recorder(kept(path, most), HEADER)
    return recorder, recorder.live_state.account


def flush(recorder: Recorder) -> None:
    recorder._wake.set()
    until(lambda: not recorder._queue and not recorder.file.unwritten)


def write(recorder: Recorder, written: list[dict[str, Any]], every: int = 100) -> None:
    for i, event in enumerate(written):
        recorder.write(event)
        if i % every == 0:
            flush(recorder)


def on_disk(path: Path) -> int:
    """Return the bytes on the disk, although parts are made and removed meanwhile."""
    looks: list[dict[str, int]] = [{"": 0}]
    while len(looks) < 2 or looks[-1] != looks[-2]:
        looks.append({})
        for part in [*older_parts(path), path]:
            with suppress(FileNotFoundError):
                looks[-1][part.name] = part.stat().st_size
    return sum(looks[-1].values())


def test_oldest_parts_are_removed_and_the_rest_is_reported(tmp_path: Path) -> None:
    path, written = tmp_path / "record.mcap", events(1200)
    recorder, live = recorded(path)
    recorder.write({"start": {"host_info": {"engine": "torch"}}})
    for i in range(0, len(written), 200):
        write(recorder, written[i : i + 200])
        assert on_disk(path) <= MOST
    recorder.close()
    live.assert_consistent()
    assert recorder.lost_events == 0 and not older_part(path, 1).exists() and live.ticks == 1200
    assert MOST // 2 < sum(p.stat().st_size for p in tmp_path.iterdir()) <= MOST
    left = [event for event in read_record(path) if "kind" in event]
    assert left == [event for event in written if "kind" in event][-len(left) :]
    assert 0 < recorder.file.first_k <= left[0]["k"] <= recorder.file.first_k + 1
    offline = report_of(path)
    assert offline["record"]["ticks_from"] == left[0]["k"]
    assert offline["ticks"] == len(left) and offline["engine"] == "torch"


@pytest.mark.parametrize("chunks", [None, 10])
def test_each_part_is_a_whole_file_with_its_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks: int | None
) -> None:
    path, written = tmp_path / "record.mcap", events(1200 if chunks is None else 100)
    if chunks is not None:  # a part has so many at most, however large a record may be
        monkeypatch.setattr(recorders, "CHUNKS", chunks)
    recorder, _ = recorded(path, 10**6 if chunks is None else 10**12)
    started_ns = time.monotonic_ns()
    for i, event in enumerate(written):
        recorder._queue.append((started_ns + i, event))  # as if written while the part before was ended
        if i % (100 if chunks is None else 10) == 0:
            flush(recorder)
    recorder.close()
    parts = [*older_parts(path), path]
    assert len(parts) > 2
    for part in parts:
        with part.open("rb") as file:
            reader = make_reader(file, validate_crcs=True)
            first = json.loads(next(iter(reader.iter_messages()))[2].data)
            summary = reader.get_summary()
        assert first["header"]["hz"] == 16.0
        assert summary is not None and summary.statistics is not None
        assert summary.statistics.chunk_count <= (chunks or 10**6)
    # Nothing was removed: they hold each event once.
    assert [event for event in read_record(path) if "header" not in event] == written
    assert report_of(path)["record"]["ticks_from"] == 0


@pytest.mark.parametrize("room", [26_000, 31_000])
def test_disk_full_between_two_parts_loses_and_doubles_nothing(tmp_path: Path, room: int) -> None:
    path, written = tmp_path / "record.mcap", events(150)
    recorder, live = recorded(path)
    for event in written[:100]:
        recorder.write(event)
    flush(recorder)
    with files_of(room):
        for event in written[100:]:
            recorder.write(event)
            recorder._wake.set()
            time.sleep(0.0005)
        until(lambda: recorder.file._encoder.finished and recorder.lost_events)
    recorder.close()
    assert recorder.lost_events == 0
    offline = Account()
    for event in read_record(path):
        offline.add(event)
    assert counts(offline) == counts(live)


def test_new_run_removes_parts_of_the_previous_run(tmp_path: Path) -> None:
    path = tmp_path / "record.mcap"
    for number in (1, 2, 10):
        older_part(path, number).touch()
    other = tmp_path / "record-2.0001.mcap"
    other.touch()
    assert [p.name for p in older_parts(path)] == ["record.0001.mcap", "record.0002.mcap", "record.0010.mcap"]
    recorder = Recorder(RecordFile(path), HEADER)
    assert older_parts(path), "it may never start"
    recorder.file.start_writing()
    recorder.close()
    assert not older_parts(path) and other.exists()


def test_run_killed_between_two_parts_is_read_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "record.mcap"
    recorder, live = recorded(path, 10**6)
    write(recorder, events(600))
    recorder.close()
    path.unlink()
    for start in (None, b"", b"\x89MCAP0"):  # as if it had not got its name yet, or nothing of it was written
        if start is not None:
            path.write_bytes(start)
        assert 0 < report_of(record_path(tmp_path))["releases"] < live.releases
        with pytest.raises(UserError, match="already has the record"), RunFolder(tmp_path, Path()):
            pass
