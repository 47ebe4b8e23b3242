"""Records that other programs wrote: read as ours where they hold ours, else refused by name, at a bounded cost."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from commands import EXPERT, call, refused
from foreign import MCAP0_MAGIC, TOOLS, bombs, found_in, parts, rewritten
from mcap.records import Attachment, DataEnd, Footer, Statistics

from rtcontrol.models.errors import UserError
from rtcontrol.telemetry import encoder, messages, report
from rtcontrol.telemetry.encoder import Encoder
from rtcontrol.telemetry.messages import MOST_MESSAGE
from rtcontrol.telemetry.record_reader import read_record

# What reading takes: a chunk, and a message of it as Python has it.
MOST_BYTES = 700_000_000


@pytest.fixture(scope="module")
def flown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("flown")
    assert call(*EXPERT, "--clock", "lockstep", "--episodes", "1", "--duration", "2", "--out", str(out)) == 0
    return out / "record.mcap"


@pytest.mark.parametrize("tool", TOOLS)
def test_a_record_is_the_same_after_other_tools_of_mcap(flown: Path, tmp_path: Path, tool: str) -> None:
    path = rewritten(found_in(flown), tmp_path / "record.mcap", **TOOLS[tool])
    assert [*read_record(path)] == [*read_record(flown)]
    assert report.of_record(path) == report.of_record(flown)
    assert call("report", str(tmp_path)) == 0 and call("replay", str(tmp_path)) == 0


def test_without_a_summary_or_with_one_that_lies_it_is_the_same(flown: Path, tmp_path: Path) -> None:
    path = rewritten(found_in(flown), tmp_path / "record.mcap", use_chunking=False)
    data = path.read_bytes()
    data = data[: data.rindex(parts(DataEnd(0))[:9])]
    lies = Statistics(9, 9, {1: 1 << 63}, 9, 1 << 63, 9, 9, 9, 9), Footer(1 << 63, 1 << 63, 1)
    attached = Attachment(0, 0, "../../x", "text/plain", b"abc" * 1000)
    for end in (b"", parts(DataEnd(0)), parts(attached, DataEnd(1), *lies) + MCAP0_MAGIC):
        path.write_bytes(data + end)
        assert [*read_record(path)] == [*read_record(flown)]


def test_a_tail_of_zeros_or_a_torn_chunk_ends_it_and_all_before_is_read(tmp_path: Path) -> None:
    made, pieces = Encoder(), []
    for k in range(5):
        made.add(k, {"log": f"line {k}"})
        pieces.append(made.take())
    whole = b"".join(pieces)
    cut = whole[: -len(pieces[-1]) + 30]
    torn = cut + bytes(len(pieces[-1]) - 30)
    path = tmp_path / "record.mcap"
    for data, lines in ((whole + bytes(4096), 5), (torn, 4), (cut, 4), (whole[:-1], 5)):
        path.write_bytes(data)
        assert [event["log"] for event in read_record(path)] == [f"line {k}" for k in range(lines)]


def test_what_holds_two_runs_is_refused(flown: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*EXPERT, "--clock", "lockstep", "--episodes", "1", "--duration", "1", "--out", str(tmp_path / "b")) == 0
    both = sorted(found_in(flown) + found_in(tmp_path / "b" / "record.mcap"), key=lambda one: one[2].log_time)
    path = rewritten(both, tmp_path / "both.mcap")
    capsys.readouterr()
    for command in ("report", "replay", "data from-recording"):
        assert "holds several runs" in refused(capsys, *command.split(), str(path))
    rewritten([one for one in found_in(flown) for _ in range(2)], path)  # merged with itself: each tick twice
    assert "holds one run twice" in refused(capsys, "report", str(path))


TOLD = {
    "it says so": "(1024 MiB)",
    "it says less": "unpacks to 1000 bytes, and it is more",
    "lz4 says less": "unpacks to 1000 bytes, and it is more",
    "many chunks": "bytes unpack to more than",
    "deep": "RecursionError",
    "a huge message": "a message has 16 MiB",
    "a huge part": "none may have more than 64",
    "unknown compression": "'xz'",
    "no such channel": "channel 7",
    "in CDR": "'cdr', no JSON",
}


@pytest.fixture(scope="module")
def hostile() -> dict[str, bytes]:
    return bombs()


@pytest.mark.parametrize("bomb", TOLD)
def test_a_file_that_unpacks_without_end_is_refused_by_name_in_little_memory(
    tmp_path: Path, hostile: dict[str, bytes], bomb: str
) -> None:
    path = tmp_path / "record.mcap"
    path.write_bytes(hostile[bomb])
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as refused:
            list(read_record(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert TOLD[bomb] in str(refused.value) and str(path) in str(refused.value) and peak < MOST_BYTES


def test_no_event_is_written_that_could_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert encoder.MOST_BYTES <= MOST_MESSAGE // 2
    monkeypatch.setattr(encoder, "MOST_BYTES", 1 << 18)
    monkeypatch.setattr(messages, "MOST_MESSAGE", 1 << 19)
    made, path = Encoder(), tmp_path / "record.mcap"
    large: dict[str, Any] = {"k": 3, "observation": "x" * ((1 << 19) + 1), "data": {"a": [0.5] * 300_000}}
    made.add(0, large)
    path.write_bytes(made.take() + made.finish())
    (event,) = read_record(path)
    assert event["k"] == 3 and event["data"] == {"unreadable": f"{300_000 * 4 + 7} bytes"}
    assert set(event["observation"]) == {"x"} and len(event["observation"]) < encoder.MOST_BYTES
