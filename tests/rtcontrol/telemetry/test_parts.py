"""A record of bounded size is written in parts; what is left of it is read as one."""

from __future__ import annotations

import json
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mcap.reader import make_reader

from rtcontrol.models.errors import UserError
from rtcontrol.telemetry import recorder as recorders
from rtcontrol.telemetry import report
from rtcontrol.telemetry.account import Account
from rtcontrol.telemetry.record_reader import read_record, record_in
from rtcontrol.telemetry.recorder import Recorder
from rtcontrol.telemetry.run_folder import Folder, older_part, older_parts
from tests.helpers.disks import files_of
from tests.helpers.processes import until

MOST = 200_000
HEADER = {"hz": 16.0, "started_at": "now"}


def events(ticks: int, seed: int = 0) -> list[dict[str, Any]]:
    """Of a run with all that may befall one, and observations that cannot be compressed."""
    chance, made, k = random.Random(seed), [], 0
    for _ in range(ticks):
        fate = chance.randrange(8)
        k += fate == 1
        seen = {"k": k, "t_s": k / 16, "seq": k, "epoch": 1, "instruction": "go", "history": [], "data": None}
        made.append({**seen, "observation": chance.randbytes(200).hex()})
        tick = {"k": k, "t_s": k / 16, "kind": "call", "call": "f()", "superseded": 1, "latency_ms": chance.random()}
        tick |= {"passes": 1, "tokens": chance.randrange(9), "wake_ms": chance.random()}
        if fate == 0:
            tick |= {"kind": "miss", "cause": "decide", "subcause": "queued", "error": "ValueError: no", "where": "a:1"}
        elif fate == 1:
            tick |= {"skipped": 1, "skip_cause": "wake", "kind": "null"}
        made.append(tick)
        if fate == 0:
            made.append({"late": k, "used": False, "decide_ms": 70.0})
        elif fate == 2:
            made.append({"ack": k, "status": chance.choice(["executed", "expired"]), "why": "fresh", "t_s": k / 16})
        elif fate == 3:
            made.append({"called": "f", "arguments": {}, "k": k, "why": "fresh", "t_s": k / 16})
        elif fate == 4:
            made.append({"people": chance.choice(["pause", "resume"]), "by": "page", "t_s": k / 16})
            made.append({"instruction": f"go to {k}", "t_s": k / 16})
        elif fate == 5:
            made.append({"safe": "f()", "why": "miss", "t_s": k / 16, "attempt": 1, "in_force": k % 2 == 0})
            made.append({"fault": "tell", "t_s": k / 16, "error": f"ValueError: {k}", "where": "b:2"})
        elif fate == 6:
            made.append({"log": f"line {k}", "t_s": k / 16})
            made.append({"host_event": {"t_s": k / 16, "event": "lost", "seconds": 0.0}})
            made.append({"episode": {"seed": k, "return": 1.0, "success": k % 3 == 0, "seconds": 2.0, "detail": {}}})
        k += 1
    return made


def counted(account: Account) -> dict[str, Any]:
    return {name: value for name, value in report.build(account, "").items() if name != "record"}


def recorded(path: Path, most: int = MOST) -> tuple[Recorder, Account]:
    recorder = Recorder(path, HEADER, most=most)
    return recorder, recorder.recent.account


def flush(recorder: Recorder) -> None:
    recorder._due.set()
    until(lambda: not recorder._queue and not recorder.file.unwritten)


def on_disk(path: Path) -> int:
    """Bytes, of one instant: parts come and go meanwhile."""
    looks: list[dict[str, int]] = [{"": 0}]
    while len(looks) < 2 or looks[-1] != looks[-2]:
        looks.append({})
        for part in [*older_parts(path), path]:
            with suppress(FileNotFoundError):
                looks[-1][part.name] = part.stat().st_size
    return sum(looks[-1].values())


def test_the_oldest_parts_go_and_the_rest_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "record.mcap"
    recorder, live = recorded(path)
    made = events(2000)
    recorder.write({"start": {"host_info": {"engine": "torch"}}})
    for i, event in enumerate(made):
        recorder.write(event)
        if i % 100 == 0:
            flush(recorder)
            assert on_disk(path) <= MOST
    recorder.close()
    live.check()
    assert recorder.lost == 0 and not older_part(path, 1).exists() and live.ticks == 2000
    assert MOST // 2 < sum(p.stat().st_size for p in tmp_path.iterdir()) <= MOST
    left = [event for event in read_record(path) if "kind" in event]
    assert left == [event for event in made if "kind" in event][-len(left) :]
    assert 0 < recorder.file.first_k <= left[0]["k"] <= recorder.file.first_k + 1
    offline = report.of_record(path)
    assert offline["record"]["ticks_from"] == left[0]["k"] - left[0].get("skipped", 0)
    assert offline["ticks"] == len(left) and offline["engine"] == "torch"


@pytest.mark.parametrize("chunks", [None, 10])
def test_each_part_is_a_whole_file_that_begins_with_its_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks: int | None
) -> None:
    path, made = tmp_path / "record.mcap", events(1600 if chunks is None else 200)
    if chunks is not None:  # a part has so many at most, however large a record may be
        monkeypatch.setattr(recorders, "CHUNKS", chunks)
    recorder, _ = recorded(path, 10**6 if chunks is None else 10**12)
    began_ns = time.monotonic_ns()
    for i, event in enumerate(made):
        recorder._queue.append((began_ns + i, event))  # as if written while the part before was ended
        if i % (100 if chunks is None else 10) == 0:
            flush(recorder)
    recorder.close()
    parts = [*older_parts(path), path]
    assert len(parts) > 2
    for part in parts:
        with part.open("rb") as file:
            reader = make_reader(file, validate_crcs=True)
            said = [json.loads(m.data) for _, _, m in reader.iter_messages()]
            summary = reader.get_summary()
        assert said[0]["header"]["hz"] == 16.0
        assert summary is not None and summary.statistics is not None
        assert summary.statistics.chunk_count <= (chunks or 10**6)
    # Nothing was removed: they hold each event once.
    assert [e for e in read_record(path) if "header" not in e] == made
    assert report.of_record(path)["record"]["ticks_from"] == 0


@pytest.mark.parametrize("room", [26_000, 31_000])
def test_a_disk_that_is_full_between_two_parts_costs_no_event_and_counts_none_twice(tmp_path: Path, room: int) -> None:
    path = tmp_path / "record.mcap"
    recorder, live = recorded(path)
    made = events(215)
    for event in made[:300]:
        recorder.write(event)
    flush(recorder)
    with files_of(room):
        for event in made[300:]:
            recorder.write(event)
            recorder._due.set()
            time.sleep(0.0005)
        until(lambda: recorder.file._ended and recorder.lost)
    recorder.close()
    assert recorder.lost == 0
    offline = Account()
    for event in read_record(path):
        offline.add(event)
    assert counted(offline) == counted(live)


def test_a_new_run_in_the_folder_removes_the_parts_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "record.mcap"
    for number in (1, 2, 10):
        older_part(path, number).touch()
    other = tmp_path / "record-2.0001.mcap"
    other.touch()
    assert [p.name for p in older_parts(path)] == ["record.0001.mcap", "record.0002.mcap", "record.0010.mcap"]
    recorder = Recorder(path, HEADER, provisional=True)
    assert older_parts(path), "it may never begin"
    recorder.file.keep()
    assert not older_parts(path) and other.exists()
    recorder.close()


def test_a_run_killed_between_two_parts_is_read_and_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "record.mcap"
    recorder, live = recorded(path, 10**6)
    for i, event in enumerate(events(900)):
        recorder.write(event)
        if i % 100 == 0:
            flush(recorder)
    recorder.close()
    path.unlink()
    for begun in (None, b"", b"\x89MCAP0"):  # as if it had not got its name yet, or nothing of it was written
        if begun is not None:
            path.write_bytes(begun)
        assert 0 < report.of_record(record_in(tmp_path))["releases"] < live.releases
        with pytest.raises(UserError, match="holds the record"), Folder(tmp_path, Path()):
            pass


def test_a_run_that_never_began_takes_no_part_of_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "record.mcap"
    path.write_bytes(b"earlier")
    recorder = Recorder(path, HEADER, provisional=True, most=MOST)
    recorder.write({"log": random.Random(0).randbytes(MOST).hex()})
    recorder.file.discard()
    recorder.close()
    assert path.read_bytes() == b"earlier" and [*tmp_path.iterdir()] == [path]
