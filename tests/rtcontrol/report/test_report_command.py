"""`rtcontrol report`: what it writes, where, and with which exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import call, refused
from flown import flown, header, two_humps, written

TICK = {"kind": "null", "t_s": 0.0, "superseded": 0}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return written(tmp_path / "run", flown(16, 5, two_humps(3)))


def test_a_record_whose_header_tells_no_times_is_none_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"header": {"hz": 16}, "schema_version": 1}, {"kind": "null", "k": 0, "t_s": 0.0, "superseded": 0}]
    (tmp_path / "record.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("terminal", "json", "html", "perfetto"):
        assert "tells no period_ms" in refused(capsys, "report", str(tmp_path), "--format", name)


def test_a_record_whose_ticks_have_no_numbers_is_none_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for k in (-1, 1 << 40):
        folder = written(tmp_path / str(k), iter([{"header": header(16)}, {**TICK, "k": k}]))
        assert "a tick has no number" in refused(capsys, "report", str(folder), "--format", "html")


def test_without_a_format_the_table_is_shown_and_report_json_is_made_anew(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("report", str(run)) == 0
    assert "misses by cause: decide" in capsys.readouterr().out
    assert json.loads((run / "report.json").read_text())["releases"] == 80


def test_a_record_is_a_run_too_and_several_are_reported_together(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = written(tmp_path / "other", flown(20, 5, lambda k: 20.0))
    assert call("report", str(run / "record.mcap"), str(other), "--format", "json") == 0
    made = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["releases"]) for one in made] == [("run", 80), ("other", 100)]
    assert not (run / "report.json").exists()


@pytest.mark.parametrize(("name", "file"), [("html", "report.html"), ("perfetto", "report.pftrace")])
def test_what_is_a_file_is_written_beside_the_record(
    run: Path, tmp_path: Path, name: str, file: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert call("report", str(run), "--format", name) == 0
    made = (run / file).read_bytes()
    assert call("report", str(run), "--format", name, "--out", str(tmp_path / "new" / "x")) == 0
    assert (tmp_path / "new" / "x").read_bytes() == made
    capsysbinary.readouterr()
    assert call("report", str(run), "--format", name, "--out", "-") == 0
    assert capsysbinary.readouterr().out == made


def test_a_second_record_in_a_folder_has_reports_of_its_own(run: Path) -> None:
    assert call("report", str(run)) == 0
    first = (run / "report.json").read_bytes()
    (run / "record-2.mcap").write_bytes((run / "record.mcap").read_bytes())
    assert (
        call("report", str(run / "record-2.mcap"))
        == call("report", str(run / "record-2.mcap"), "--format", "html")
        == 0
    )
    assert (run / "report-2.json").exists() and (run / "report-2.html").exists()
    assert (run / "report.json").read_bytes() == first and not (run / "report.html").exists()


@pytest.mark.parametrize("name", ["terminal", "json", "junit", "perfetto", "html"])
def test_a_gate_that_does_not_hold_gives_status_3_in_every_format(
    run: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ("--format", name, "--out", str(tmp_path / "made"))
    assert call("report", str(run), *out, "--gate", "releases==80") == 0
    assert call("report", str(run), *out, "--gate", "releases==80", "--gate", "miss_rate<=0.001") == 3
    assert "miss_rate<=0.001: DOES NOT HOLD" in capsys.readouterr().err
    assert (tmp_path / "made").stat().st_size > 100


def test_mistakes_are_one_paragraph_with_the_remedy(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Perhaps miss_rate" in refused(capsys, "report", str(run), "--gate", "mis_rate<=0.005")
    assert "is no gate" in refused(capsys, "report", str(run), "--gate", "miss_rate")
    assert "No record" in refused(capsys, "report", str(run), str(tmp_path / "nothing"))
    assert "Give another --out" in refused(capsys, "report", str(run), "--format", "json", "--out", str(tmp_path))
    assert "without a gate" in refused(capsys, "report", str(run), "--format", "junit")
    nothing = written(tmp_path / "nothing", flown(16, 0, lambda k: 20.0))
    for name in ("terminal", "json", "junit", "perfetto", "html"):
        gate = ("--gate", "misses==0", "--out", str(tmp_path / "none"))
        assert "holds no tick" in refused(capsys, "report", str(nothing), "--format", name, *gate)
    assert not (tmp_path / "none").exists()
    (tmp_path / "odd.mcap").write_bytes(b"\x89MCAP0\r\nnonsense that goes on" * 9)
    assert "is no record of a run" in refused(capsys, "report", str(tmp_path / "odd.mcap"))


def test_counts_that_the_disk_kept_from_the_record_are_shown_and_judged(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("report", str(run)) == 0
    whole = json.loads((run / "report.json").read_text())
    (run / "report.json").write_text(json.dumps({**whole, "releases": 99, "ticks": 99, "misses": 50}))
    kept = (run / "report.json").read_bytes()
    for name in ("terminal", "json"):
        capsys.readouterr()
        assert call("report", str(run), "--format", name, "--gate", "releases==99", "--gate", "misses<=49") == 3
        told = capsys.readouterr()
        assert "99" in told.out and "is kept, and shown here: it counts 99" in told.err
        assert "misses<=49: DOES NOT HOLD (50)" in told.err
    assert (run / "report.json").read_bytes() == kept


def test_the_table_says_causes_with_their_sub_causes_and_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [*flown(16, 2, lambda k: 70.0 if k == 5 else 20.0)]
    events.insert(-1, {"ack": 9, "status": "failed", "why": "fresh", "error": "no [fuel]", "t_s": 1.0})
    assert call("report", str(written(tmp_path, iter(events)))) == 0
    said = capsys.readouterr().out
    assert "misses by cause: decide 1 (decoder_slow 1), execute 1 (failed 1)" in said.replace("\n", " ")
    assert "the client's word of its calls: failed 1" in said
    assert "1 x ack: no [fuel]" in said
