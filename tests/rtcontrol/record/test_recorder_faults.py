"""What goes wrong in our own counts is told, and costs the record nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commands import EXPERT, call

from rtcontrol.telemetry.account import Account
from rtcontrol.telemetry.record_reader import read_record
from rtcontrol.telemetry.recorder import Recorder


def test_a_fault_in_the_counts_is_told_and_costs_the_record_no_event(tmp_path: Path) -> None:
    recorder, folded = Recorder(tmp_path / "record.mcap", {"hz": 16.0}), []

    def fold(event: dict[str, Any]) -> None:
        if event.get("log") == "b":
            raise ValueError("release 3 was missed already")
        folded.append(event)

    recorder.fold = fold
    for name in "abc":
        recorder.write({"log": name})
    recorder.close()
    assert recorder.fault == "ValueError: release 3 was missed already"
    assert [e["log"] for e in folded if "log" in e] == ["a", "c"]
    assert [e["log"] for e in read_record(tmp_path / "record.mcap") if "log" in e] == ["a", "b", "c"]


def test_a_recorder_that_breaks_down_says_so_and_its_account_is_complete(tmp_path: Path) -> None:
    told: list[str] = []
    recorder, folded = Recorder(tmp_path / "record.mcap", {"hz": 16.0}, tell=told.append, patient=True), []
    recorder.fold = folded.append
    recorder._encoder.add = None  # type: ignore[assignment, method-assign]
    for k in range(6000):
        recorder.write({"log": str(k)})
    recorder.close()
    assert [e["log"] for e in folded if "log" in e] == [str(k) for k in range(6000)]
    assert recorder.lost >= 5999 and len(told) == 1 and "TypeError" in told[0]


def test_a_run_whose_counts_went_wrong_says_so_and_ends_with_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = Account._tick

    def tick(account: Account, event: dict[str, Any]) -> None:
        if event["k"] == 3:
            raise ValueError("release 3 was missed already")
        plain(account, event)

    monkeypatch.setattr(Account, "_tick", tick)
    assert call(*EXPERT, "--clock", "lockstep", "--duration", "0.5", "--out", str(tmp_path)) == 1
    assert "counts contradict each other (ValueError: release 3 was missed already)" in capsys.readouterr().err
