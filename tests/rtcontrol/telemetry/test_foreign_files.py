"""Tests of files from other programs: read if they contain our events, else refused by name, at a bounded cost."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cart import report_of
from commands import EXPERT, call, refused
from foreign import BOMBS, MCAP0_MAGIC, TOOLS, entries_of, parts, rewritten
from mcap.records import Attachment, DataEnd, Footer, Statistics

from rtcontrol.models.errors import UserError
from rtcontrol.telemetry import events, record_reader
from rtcontrol.telemetry.record_reader import read_record
from rtcontrol.telemetry.recorder import Encoder

# What reading takes: a chunk, and a message of it as Python has it.
MOST_BYTES = 700_000_000


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    assert call(*EXPERT, "--clock", "lockstep", "--episodes", "1", "--duration", "2", "--out", str(out)) == 0
    return out / "record.mcap"


@pytest.mark.parametrize("tool", TOOLS)
def test_record_is_the_same_after_other_tools_of_mcap(record: Path, tmp_path: Path, tool: str) -> None:
    path = rewritten(entries_of(record), tmp_path / "record.mcap", **TOOLS[tool])
    assert [*read_record(path)] == [*read_record(record)]
    assert report_of(path) == report_of(record)
    assert call("report", str(tmp_path)) == 0 and call("replay", str(tmp_path)) == 0


def test_summary_that_is_missing_or_wrong_changes_nothing(record: Path, tmp_path: Path) -> None:
    path = rewritten(entries_of(record), tmp_path / "record.mcap", use_chunking=False)
    data = path.read_bytes()
    data = data[: data.rindex(parts(DataEnd(0))[:9])]
    lies = Statistics(9, 9, {1: 1 << 63}, 9, 1 << 63, 9, 9, 9, 9), Footer(1 << 63, 1 << 63, 1)
    attached = Attachment(0, 0, "../../x", "text/plain", b"abc" * 1000)
    for end in (b"", parts(DataEnd(0)), parts(attached, DataEnd(1), *lies) + MCAP0_MAGIC):
        path.write_bytes(data + end)
        assert [*read_record(path)] == [*read_record(record)]


def test_tail_of_zeros_or_torn_chunk_ends_the_record(tmp_path: Path) -> None:
    encoder, sizes = Encoder(), []
    for k in range(5):
        encoder.add(k, {"log": f"line {k}"})
        encoder.end_chunk()
        sizes.append(len(encoder.waiting))
    whole = encoder.waiting
    cut = whole[: sizes[-2] + 30]
    torn = cut + bytes(len(whole) - len(cut))
    path = tmp_path / "record.mcap"
    for data, lines in ((whole + bytes(4096), 5), (torn, 4), (cut, 4), (whole[:-1], 5)):
        path.write_bytes(data)
        assert [event["log"] for event in read_record(path)] == [f"line {k}" for k in range(lines)]


def test_file_of_two_runs_is_refused(record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*EXPERT, "--clock", "lockstep", "--episodes", "1", "--duration", "1", "--out", str(tmp_path / "b")) == 0
    both = sorted(entries_of(record) + entries_of(tmp_path / "b" / "record.mcap"), key=lambda entry: entry[2].log_time)
    path = rewritten(both, tmp_path / "both.mcap")
    capsys.readouterr()
    for command in ("report", "replay", "data from-recording"):
        assert "has several runs" in refused(capsys, *command.split(), str(path))


@pytest.mark.parametrize(("says", "make"), BOMBS.values(), ids=BOMBS)
def test_file_that_unpacks_without_end_is_refused_in_little_memory(
    tmp_path: Path, says: str, make: Callable[[], bytes]
) -> None:
    path = tmp_path / "record.mcap"
    path.write_bytes(make())
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as refusal:
            list(read_record(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert says in str(refusal.value) and str(path) in str(refusal.value) and peak < MOST_BYTES


def test_every_event_that_is_written_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert events.MAX_BYTES <= record_reader.MAX_MESSAGE // 2
    monkeypatch.setattr(events, "MAX_BYTES", 1 << 18)
    monkeypatch.setattr(record_reader, "MAX_MESSAGE", 1 << 19)
    encoder, path = Encoder(), tmp_path / "record.mcap"
    large: dict[str, Any] = {"k": 3, "observation": "x" * ((1 << 19) + 1), "data": {"a": [0.5] * 300_000}}
    encoder.add(0, large)
    encoder.finish()
    path.write_bytes(encoder.waiting)
    (event,) = read_record(path)
    assert event["k"] == 3 and event["data"] == {"unreadable": f"{300_000 * 4 + 7} bytes"}
    assert set(event["observation"]) == {"x"} and len(event["observation"]) < events.MAX_BYTES
